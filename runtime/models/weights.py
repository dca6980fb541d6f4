"""A model's weights as the decoder takes them, read out of a file tensor by tensor."""

from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import pad

from runtime.errors import ModelDamaged
from runtime.models.decoder import Weights
from runtime.models.layer import Layer
from runtime.models.linear import Linear
from runtime.models.packed import PackedLinear, packed_bytes
from runtime.models.spec import Spec
from runtime.models.streamed import StreamedLayers
from runtime.models.tensor_file import TensorFile


class WeightReader:
    """Reads a model's weights out of a file, each checked for its shape."""

    def __init__(
        self, file: TensorFile, spec: Spec, dtype: torch.dtype, device: torch.device, packs: bool = False
    ) -> None:
        """`packs`: what the file stores in four-bit groups is kept so as well."""
        self._file, self._spec = file, spec
        self._dtype, self._device, self._packs = dtype, device, packs

    def layer(self, index: int) -> Layer:
        """The weights of one layer."""
        spec, stem = self._spec, f"model.layers.{index}"
        qkv, output, gate_up, down = self._projections(index)
        post_norm, mlp_norm = None, self._norm(f"{stem}.post_attention_layernorm")
        if spec.has_post_norms:
            post_norm, mlp_norm = mlp_norm, self._norm(f"{stem}.pre_feedforward_layernorm")
        return Layer(
            attention_norm=self._norm(f"{stem}.input_layernorm"),
            qkv=self._linear(*qkv),
            query_norm=self._norm(f"{stem}.self_attn.q_norm", spec.head_dim) if spec.has_qk_norm else None,
            key_norm=self._norm(f"{stem}.self_attn.k_norm", spec.head_dim) if spec.has_qk_norm else None,
            output=self._linear(*output),
            attention_post_norm=post_norm,
            mlp_norm=mlp_norm,
            gate_up=self._linear(*gate_up),
            down=self._linear(*down),
            mlp_post_norm=self._norm(f"{stem}.post_feedforward_layernorm") if spec.has_post_norms else None,
            window=spec.windows[index],
            rope=spec.rope_of(index),
        )

    def whole(self, layers: tuple[Layer, ...] | StreamedLayers, n_tokens: int) -> Weights:
        """The model, from its layers: embeddings, last norm and output head besides.

        Rows of the head beyond the tokenizer's `n_tokens` are padding, which could only be drawn by mistake: they
        are cut. A tokenizer may know more than the model (an image's place, in a small Gemma): those are never drawn.
        """
        spec = self._spec
        embeddings = self._tensor("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
        head = embeddings
        if not spec.ties_embeddings:
            head = self._tensor("lm_head.weight", spec.vocab_size, spec.hidden_size)
        norm = self._norm("model.norm")
        if spec.logits_divisor is not None:
            norm = norm / spec.logits_divisor  # the head is linear
        if n_tokens > spec.vocab_size:
            rows = (0, 0, 0, n_tokens - spec.vocab_size)
            unknown = torch.zeros(n_tokens, dtype=self._dtype, device=self._device)
            unknown[spec.vocab_size :] = -torch.inf
            padded = pad(embeddings, rows)
            head = padded if spec.ties_embeddings else pad(head, rows)
            return Weights(padded, layers, norm, Linear(head, unknown))
        return Weights(embeddings, layers, norm, self._linear_of(head[:n_tokens], [self._head_name()]))

    def packed_bytes(self, n_tokens: int) -> int:
        """What the layers of a model for `n_tokens` tokens take in groups beside their dense form, where that is used;
        nothing is read for it."""
        spec = self._spec
        layers = [linear for index in range(spec.n_layers) for linear in self._projections(index)]
        if n_tokens <= spec.vocab_size:
            layers.append(({self._head_name(): spec.vocab_size}, spec.hidden_size))
        packed = 0
        for rows, n_columns in layers:
            if (digits := self._digits(rows)) is not None:
                packed += packed_bytes(sum(rows.values()), n_columns, digits)
        return packed

    def _projections(self, index: int) -> tuple[tuple[dict[str, int], int], ...]:
        """The linear layers of a layer, in the order of `Layer`: the rows of each part by its name, and the columns."""
        spec, stem = self._spec, f"model.layers.{index}"
        queries, keys = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
        attention = {f"{stem}.self_attn.q_proj": queries}
        attention |= dict.fromkeys((f"{stem}.self_attn.k_proj", f"{stem}.self_attn.v_proj"), keys)
        gate_up = dict.fromkeys((f"{stem}.mlp.gate_proj", f"{stem}.mlp.up_proj"), spec.intermediate_size)
        return (
            (self._fused(attention, f"{stem}.self_attn.qkv_proj"), spec.hidden_size),
            ({f"{stem}.self_attn.o_proj": spec.hidden_size}, queries),
            (self._fused(gate_up, f"{stem}.mlp.gate_up_proj"), spec.hidden_size),
            ({f"{stem}.mlp.down_proj": spec.hidden_size}, spec.intermediate_size),
        )

    def _head_name(self) -> str:
        return "model.embed_tokens" if self._spec.ties_embeddings else "lm_head"

    def _fused(self, rows: dict[str, int], fused: str) -> dict[str, int]:
        """The projections named by `rows`, or where the file has no first of them, the one that holds them all."""
        names = [f"{name}.weight" in self._file for name in (next(iter(rows)), fused)]
        return {fused: sum(rows.values())} if names == [False, True] else rows

    def _linear(self, rows: dict[str, int], n_columns: int) -> Linear:
        """The projections named by `rows`, with their numbers of rows, one below the other."""
        weight = self._joined("weight", rows, n_columns)
        has_bias = f"{next(iter(rows))}.bias" in self._file
        return self._linear_of(weight, list(rows), self._joined("bias", rows) if has_bias else None)

    def _linear_of(self, weight: Tensor, names: list[str], bias: Tensor | None = None) -> Linear:
        """A layer of the dense `weight`, in groups as well where the file stores all its parts so and that helps."""
        if not self._packs or self._digits(names) is None:
            return Linear(weight, bias)
        return PackedLinear(weight, chain.from_iterable(self._file.groups(f"{name}.weight") for name in names), bias)

    def _digits(self, names: Iterable[str]) -> int | None:
        """Those that the projections have in common; None where they differ, or where some have none."""
        digits = {self._file.digits(f"{name}.weight") for name in names}
        return digits.pop() if len(digits) == 1 else None

    def _joined(self, kind: str, rows: dict[str, int], *columns: int) -> Tensor:
        for name, n_rows in rows.items():
            shape = self._file.shape_of(f"{name}.{kind}")
            if shape != (n_rows, *columns):
                reason = f"the tensor {name}.{kind} has the shape {shape}, not {(n_rows, *columns)}"
                raise ModelDamaged(self._file.name, reason)
        whole = torch.empty(sum(rows.values()), *columns, dtype=self._dtype)
        for name, out in zip(rows, whole.split(list(rows.values())), strict=True):
            self._file.read(f"{name}.{kind}", out)
        return whole.to(self._device)

    def _norm(self, name: str, n_columns: int | None = None) -> Tensor:
        """A norm over the hidden state, or over `n_columns` numbers, as the factors it multiplies by."""
        norm = self._tensor(f"{name}.weight", n_columns or self._spec.hidden_size)
        return norm + self._spec.norm_offset if self._spec.norm_offset else norm

    def _tensor(self, name: str, n_rows: int, *columns: int) -> Tensor:
        stem, _, kind = name.rpartition(".")
        return self._joined(kind, {stem: n_rows}, *columns)
