"""One forward pass over any KV store, of every supported family: what tells them apart are features, which cost
nothing where they are absent."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm

from runtime.kv.copying import CopyStream
from runtime.kv.queries import Observer
from runtime.kv.store import Cache, Store
from runtime.models.attention import Attend
from runtime.models.layer import Layer
from runtime.models.linear import Linear
from runtime.models.rope import Rope, rotate
from runtime.models.spec import Spec
from runtime.models.steps import FEW, Steps, TorchSteps, steps_for_few
from runtime.models.streamed import StreamedLayers


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a decoder. `embeddings` [vocab, hidden]."""

    embeddings: Tensor
    layers: tuple[Layer, ...] | StreamedLayers
    norm: Tensor
    head: Linear


@dataclass(frozen=True, slots=True)
class Pass:
    """What all layers of one forward pass share. `turns` are cosines and sines, one pair for each rotary embedding;
    `key_turns` those of all keys that are read, where they are held before RoPE. `temperatures` [tokens, 1, 1] multiply
    the queries. `start` is the sequence position of the first token."""

    cache: Cache
    start: int
    turns: tuple[tuple[Tensor, Tensor], ...]
    key_turns: tuple[tuple[Tensor, Tensor], ...]
    temperatures: Tensor | None
    attend: Attend
    observer: Observer | None = None


class Forward(Protocol):
    """A model as a scorer uses it."""

    @property
    def device(self) -> torch.device: ...

    def forward(self, ids: Tensor, store: Store, n_logits: int = 1, observer: Observer | None = None) -> Tensor:
        """As `Decoder.forward`."""
        ...


class Decoder:
    """A model with its rotary embeddings. It holds no sequence: that is in the store it is given."""

    def __init__(self, spec: Spec, weights: Weights, ropes: tuple[Rope, ...], attend: Attend) -> None:
        self.spec = spec
        self._weights = weights
        self._ropes = ropes
        self._attend = attend
        self._steps = TorchSteps(spec)
        self._few_steps = steps_for_few(spec, self.device, self.dtype)
        # In the weights' dtype, as models were trained with it: in bfloat16 Gemma's sqrt(3072) is 55.5.
        scale = spec.embedding_multiplier
        self._embedding_scale = None if scale is None else float(torch.tensor(scale, dtype=self.dtype))

    def with_rope(self, ropes: tuple[Rope, ...]) -> "Decoder":
        """The same weights under other rotary embeddings (another YaRN factor)."""
        return Decoder(self.spec, self._weights, ropes, self._attend)

    def streaming(self, stream: CopyStream | None = None) -> "Decoder":
        """The same model with its layers in main memory, from where every pass brings them to the device."""
        layers = StreamedLayers(self._weights.layers, self.spec.n_layers, self.device, stream)
        return Decoder(self.spec, replace(self._weights, layers=layers), self._ropes, self._attend)

    @property
    def carried_bytes(self) -> int:
        """Bytes of weights that a pass moves to the device, whatever its store."""
        return self._streamed.n_bytes if self._streamed else 0

    @property
    def moved_bytes(self) -> int:
        """Those that have been moved so far, by all decoders of the same weights."""
        return self._streamed.moved_bytes if self._streamed else 0

    @property
    def can_be_captured(self) -> bool:
        """Whether its passes depend on nothing outside of it (`graphs`): not where copies must be waited for."""
        return self._streamed is None

    @property
    def _streamed(self) -> StreamedLayers | None:
        layers = self._weights.layers
        return layers if isinstance(layers, StreamedLayers) else None

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
            return self.run(ids, self._pass(store, start, store.positions(len(ids)), observer), n_logits)
        except BaseException:
            store.trim(start)
            raise

    def run(self, ids: Tensor, shared: Pass, n_logits: int) -> Tensor:
        """The layers of `forward`, over a cache that has room for the tokens."""
        scale = self.spec.residual_multiplier
        hidden, steps = embedding(ids, self._weights.embeddings), self._steps_for(len(ids))
        if self._embedding_scale is not None:
            hidden = hidden * self._embedding_scale
        for index, layer in enumerate(self._weights.layers):
            hidden = torch.add(hidden, self._attention(index, layer, hidden, shared, steps), alpha=scale)
            hidden = torch.add(hidden, self._feed_forward(layer, hidden, steps), alpha=scale)
        return self._weights.head(steps.norm(hidden[hidden.shape[0] - n_logits :], self._weights.norm)).float()

    def turns(self, positions: range) -> tuple[tuple[Tensor, Tensor], ...]:
        """Cosines and sines of each rotary embedding, as `Rope.at` gives them."""
        return tuple(rope.at(positions, self.dtype) for rope in self._ropes)

    def temperatures(self, positions: Tensor) -> Tensor | None:
        """What multiplies the queries of tokens at `positions` [tokens], [tokens, 1, 1]; None where nothing does."""
        temperature = self.spec.query_temperature
        if temperature is None:
            return None
        factors = 1 + temperature.beta * torch.log1p(torch.floor(positions.float() / temperature.length))
        return factors.to(self.dtype)[:, None, None]

    def _pass(self, store: Store, start: int, positions: range, observer: Observer | None) -> Pass:
        temperature, temperatures = self.spec.query_temperature, None
        if temperature is not None and positions.stop > temperature.length:  # up to there it is 1
            temperatures = self.temperatures(torch.arange(positions.start, positions.stop, device=self.device))
        key_turns = () if store.keys_are_rotated else self.turns(range(positions.stop))
        return Pass(store, start, self.turns(positions), key_turns, temperatures, self._attend, observer)

    def _steps_for(self, n_tokens: int) -> Steps:
        return self._few_steps if n_tokens <= FEW else self._steps

    def _head_norm(self, heads: Tensor, norm: Tensor) -> Tensor:
        return rms_norm(heads, (heads.shape[-1],), norm, self.spec.norm_eps)

    def _attention(self, index: int, layer: Layer, hidden: Tensor, shared: Pass, steps: Steps) -> Tensor:
        spec, cache, n_tokens = self.spec, shared.cache, hidden.shape[0]
        heads = layer.qkv(steps.norm(hidden, layer.attention_norm)).view(n_tokens, -1, spec.head_dim)
        queries, keys, values = heads.split((spec.n_heads, spec.n_kv_heads, spec.n_kv_heads), 1)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = self._head_norm(queries, layer.query_norm), self._head_norm(keys, layer.key_norm)
            if layer.rope is not None and cache.keys_are_rotated:
                keys = steps.rotate(keys, *shared.turns[layer.rope])
            if layer.rope is not None:
                queries = steps.rotate(queries, *shared.turns[layer.rope])
        elif layer.rope is not None and cache.keys_are_rotated:  # they lie side by side: at once costs half
            both = steps.rotate(heads[:, : spec.n_heads + spec.n_kv_heads], *shared.turns[layer.rope])
            queries, keys = both.split((spec.n_heads, spec.n_kv_heads), 1)
        elif layer.rope is not None:
            queries = steps.rotate(queries, *shared.turns[layer.rope])
        if shared.temperatures is not None:
            queries = queries * shared.temperatures
        queries = queries.transpose(0, 1)
        cache.write(index, keys.transpose(0, 1), values.transpose(0, 1))
        held_keys, held_values = cache.read(index)
        if layer.rope is not None and not cache.keys_are_rotated:
            held_keys = rotate(held_keys.transpose(0, 1), *shared.key_turns[layer.rope]).transpose(0, 1)
        if shared.observer is not None:
            shared.observer.observe(index, shared.start, queries)
        mixed = shared.attend(queries, held_keys, held_values, spec.attention_scale, layer.window)
        output = layer.output(mixed.transpose(0, 1).reshape(n_tokens, -1))
        return output if layer.attention_post_norm is None else steps.norm(output, layer.attention_post_norm)

    def _feed_forward(self, layer: Layer, hidden: Tensor, steps: Steps) -> Tensor:
        output = layer.down(steps.gate(layer.gate_up(steps.norm(hidden, layer.mlp_norm))))
        return output if layer.mlp_post_norm is None else steps.norm(output, layer.mlp_post_norm)
