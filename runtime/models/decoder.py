"""One forward pass of the Llama family over any KV store."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, silu

from runtime.kv.store import Store
from runtime.models.attention import Attend
from runtime.models.linear import Linear
from runtime.models.rope import Rope, rotate
from runtime.models.spec import Spec


class Observer(Protocol):
    """Sees the queries of each layer, after RoPE, as they pass."""

    def observe(self, layer: int, start: int, queries: Tensor) -> None:
        """`queries` [heads, tokens, head_dim] of the tokens from sequence position `start`."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer. `qkv` gives queries, keys and values side by side, `gate_up` gate and up."""

    attention_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a decoder. `embeddings` [vocab, hidden]."""

    embeddings: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear


class Decoder:
    """A model with its rotary embedding. It holds no sequence: that is in the store it is given."""

    def __init__(self, spec: Spec, weights: Weights, rope: Rope, attend: Attend) -> None:
        self.spec = spec
        self._weights = weights
        self._rope = rope
        self._attend = attend

    def with_rope(self, rope: Rope) -> "Decoder":
        """The same weights under another rotary embedding (another YaRN factor)."""
        return Decoder(self.spec, self._weights, rope, self._attend)

    @property
    def device(self) -> torch.device:
        return self._weights.embeddings.device

    @property
    def dtype(self) -> torch.dtype:
        return self._weights.embeddings.dtype

    @torch.inference_mode()
    def forward(self, ids: Tensor, store: Store, n_logits: int = 1, observer: Observer | None = None) -> Tensor:
        """Logits [n_logits, vocab] in float32 after each of the last `n_logits` of `ids` [tokens].

        The tokens continue what the store holds; their keys and values become its newest, uncommitted. On any error
        the store is as before.
        """
        start = store.length
        store.extend(len(ids))
        try:
            rotations = self._rope.at(store.positions(len(ids)), self.dtype)
            hidden = embedding(ids, self._weights.embeddings)
            for index, layer in enumerate(self._weights.layers):
                hidden = hidden + self._attention(index, layer, hidden, store, rotations, start, observer)
                hidden = hidden + self._feed_forward(layer, hidden)
            return self._logits(hidden[len(hidden) - n_logits :])
        except BaseException:
            store.trim(start)
            raise

    def _logits(self, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, (self.spec.hidden_size,), self._weights.norm, self.spec.norm_eps)
        return self._weights.head(normed).float()

    def _attention(
        self,
        index: int,
        layer: Layer,
        hidden: Tensor,
        store: Store,
        rotations: tuple[Tensor, Tensor],
        start: int,
        observer: Observer | None,
    ) -> Tensor:
        spec, n_tokens = self.spec, len(hidden)
        normed = rms_norm(hidden, (spec.hidden_size,), layer.attention_norm, spec.norm_eps)
        heads = layer.qkv(normed).view(n_tokens, -1, spec.head_dim)
        queries, keys, values = heads.split((spec.n_heads, spec.n_kv_heads, spec.n_kv_heads), 1)
        if layer.query_norm is not None:
            queries = rms_norm(queries, (spec.head_dim,), layer.query_norm, spec.norm_eps)
            keys = rms_norm(keys, (spec.head_dim,), layer.key_norm, spec.norm_eps)
        queries = rotate(queries, *rotations).transpose(0, 1)
        if store.keys_are_rotated:
            store.write(index, rotate(keys, *rotations).transpose(0, 1), values.transpose(0, 1))
            held_keys, held_values = store.read(index)
        else:
            store.write(index, keys.transpose(0, 1), values.transpose(0, 1))
            held_keys, held_values = store.read(index)
            in_window = self._rope.at(range(held_keys.shape[1]), self.dtype)
            held_keys = rotate(held_keys.transpose(0, 1), *in_window).transpose(0, 1)
        if observer is not None:
            observer.observe(index, start, queries)
        mixed = self._attend(queries, held_keys, held_values, spec.attention_scale)
        return layer.output(mixed.transpose(0, 1).reshape(n_tokens, -1))

    def _feed_forward(self, layer: Layer, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, (self.spec.hidden_size,), layer.mlp_norm, self.spec.norm_eps)
        gate, up = layer.gate_up(normed).chunk(2, -1)
        return layer.down(silu(gate) * up)
