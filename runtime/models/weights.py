"""Tensors of a model file by their transformers names: safetensors folders and GGUF files."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn.functional import pad

from runtime.errors import ModelDamaged
from runtime.models.decoder import Layer, Weights
from runtime.models.dequantize import dequantize
from runtime.models.gguf_header import GgufHeader, StoredTensor
from runtime.models.linear import Linear
from runtime.models.packed import Groups, PackedLinear, can_pack, joined, read_groups
from runtime.models.spec import Spec

INDEX = "model.safetensors.index.json"


class TensorFile(Protocol):
    """Named tensors, read one at a time."""

    @property
    def name(self) -> str:
        """The file's or folder's path, for messages."""
        ...

    def __contains__(self, name: str) -> bool: ...

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The tensor's shape; raises `ModelDamaged` when it is missing."""
        ...

    def read(self, name: str, out: Tensor) -> None:
        """Fill `out`, of the tensor's shape, on the CPU; raises `ModelDamaged`, `UnsupportedModel`."""
        ...

    def groups(self, name: str) -> Groups | None:
        """The tensor in four-bit groups, where it is stored so."""
        ...


class SafetensorsFolder:
    """`model.safetensors`, or shards with an index, in a folder. Each file is mapped once.

    Where a text model lies beside others, its tensors go by the names they have in a text model alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, Any] = {}
        self._files = self._listed() if (folder / INDEX).exists() else self._found()
        self._stored_names = {_name_in_text_model(name): name for name in self._files}

    @property
    def name(self) -> str:
        return str(self._folder)

    def __contains__(self, name: str) -> bool:
        return name in self._stored_names

    def shape_of(self, name: str) -> tuple[int, ...]:
        with self._reading(name) as (file, stored_name):
            return tuple(file.get_slice(stored_name).get_shape())

    def read(self, name: str, out: Tensor) -> None:
        with self._reading(name) as (file, stored_name):
            out.copy_(file.get_tensor(stored_name))

    def groups(self, name: str) -> Groups | None:
        return None

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[tuple[Any, str]]:
        """The open file that holds the tensor, and the tensor's name in it."""
        if name not in self._stored_names:
            raise missing(self.name, name)
        stored_name = self._stored_names[name]
        file = self._files[stored_name]
        try:
            yield self._opened(file), stored_name
        except SafetensorError as error:
            raise ModelDamaged(self.name, f"{file} cannot be read ({error})") from error

    def _listed(self) -> dict[str, str]:
        """Tensor to file, by the index."""
        try:
            listed = json.loads((self._folder / INDEX).read_text("utf-8"))["weight_map"]
            files = {str(name): str(file) for name, file in listed.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelDamaged(self.name, f"{INDEX} cannot be read ({error})") from error
        outside = next((file for file in files.values() if Path(file).name != file), None)
        if outside is not None:
            raise ModelDamaged(self.name, f"{INDEX} names a file outside the folder: {outside}")
        return files

    def _found(self) -> dict[str, str]:
        """Tensor to file, by the files that are there."""
        whole = self._folder / "model.safetensors"
        paths = [whole] if whole.exists() else sorted(self._folder.glob("*.safetensors"))
        if not paths:
            raise ModelDamaged(self.name, "there are no *.safetensors weights in it")
        return {name: path.name for path in paths for name in self._opened(path.name).keys()}  # noqa: SIM118

    def _opened(self, file: str) -> Any:
        if file not in self._open:
            try:
                self._open[file] = safe_open(self._folder / file, "pt")
            except (OSError, SafetensorError) as error:
                raise ModelDamaged(self.name, f"{file} cannot be read ({error})") from error
        return self._open[file]


def _name_in_text_model(name: str) -> str:
    """`language_model.model.norm.weight` and `model.language_model.norm.weight` are `model.norm.weight`."""
    return name.removeprefix("language_model.").replace("model.language_model.", "model.", 1)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Where a norm follows attention, it has the name that elsewhere is the norm's before the MLP.
POST_NORM_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
# llama.cpp stores the query and key rows of these architectures in interleaved rotary order.
INTERLEAVED = ("llama", "granite", "smollm3", "mistral3")


class GgufFile:
    """A GGUF file, dequantised tensor by tensor."""

    def __init__(self, header: GgufHeader, spec: Spec) -> None:
        self._header, self._spec = header, spec
        self._is_interleaved = header.architecture in INTERLEAVED
        self._names = GGUF_NAMES | (POST_NORM_NAMES if spec.has_post_norms else {})

    @property
    def name(self) -> str:
        return str(self._header.path)

    def __contains__(self, name: str) -> bool:
        return self._stored_name(name) in self._header.tensors

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self._found(name).shape

    def read(self, name: str, out: Tensor) -> None:
        tensor = self._found(name)
        stored = self._header.bytes_of(tensor)
        order = self._order(name, len(out))
        if order is not None and out.dim() > 1:
            dequantize(stored[order], tensor.quantization, out)
            return
        dequantize(stored, tensor.quantization, out)
        if order is not None:
            out.copy_(out[torch.from_numpy(order)])

    def groups(self, name: str) -> Groups | None:
        tensor = self._found(name)
        stored = self._header.bytes_of(tensor)
        order = self._order(name, len(stored))
        return read_groups(stored if order is None else stored[order], tensor.quantization)

    def _found(self, name: str) -> StoredTensor:
        tensor = self._header.tensors.get(self._stored_name(name))
        if tensor is None:
            raise missing(self.name, name)
        return tensor

    def _stored_name(self, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        if not stem.startswith("model.layers."):
            return f"{self._names.get(stem, stem)}.{kind}"
        layer, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{self._names[part]}.{kind}"

    def _order(self, name: str, n_rows: int) -> NDArray[np.int64] | None:
        """Which stored row each row is: (x0, y0, x1, y1, ...) of each head becomes (x0, x1, ..., y0, y1, ...)."""
        n_heads = {"q_proj": self._spec.n_heads, "k_proj": self._spec.n_kv_heads}.get(name.split(".")[-2])
        if n_heads is None or not self._is_interleaved:
            return None
        return np.arange(n_rows).reshape(n_heads, -1, 2).swapaxes(1, 2).reshape(-1)


def missing(file: str, name: str) -> ModelDamaged:
    return ModelDamaged(file, f"the tensor {name} is missing")


class WeightReader:
    """Reads a model's weights out of a file, each checked for its shape."""

    def __init__(self, file: TensorFile, spec: Spec, dtype: torch.dtype, device: torch.device) -> None:
        self._file, self._spec = file, spec
        self._dtype, self._device = dtype, device

    def layer(self, index: int) -> Layer:
        """The weights of one layer."""
        spec, stem = self._spec, f"model.layers.{index}"
        queries, keys = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
        attention = {f"{stem}.self_attn.q_proj": queries}
        attention |= dict.fromkeys((f"{stem}.self_attn.k_proj", f"{stem}.self_attn.v_proj"), keys)
        gate_up = dict.fromkeys((f"{stem}.mlp.gate_proj", f"{stem}.mlp.up_proj"), spec.intermediate_size)
        post_norm, mlp_norm = None, self._norm(f"{stem}.post_attention_layernorm")
        if spec.has_post_norms:
            post_norm, mlp_norm = mlp_norm, self._norm(f"{stem}.pre_feedforward_layernorm")
        return Layer(
            attention_norm=self._norm(f"{stem}.input_layernorm"),
            qkv=self._linear(self._fused(attention, f"{stem}.self_attn.qkv_proj"), spec.hidden_size),
            query_norm=self._norm(f"{stem}.self_attn.q_norm", spec.head_dim) if spec.has_qk_norm else None,
            key_norm=self._norm(f"{stem}.self_attn.k_norm", spec.head_dim) if spec.has_qk_norm else None,
            output=self._linear({f"{stem}.self_attn.o_proj": spec.hidden_size}, queries),
            attention_post_norm=post_norm,
            mlp_norm=mlp_norm,
            gate_up=self._linear(self._fused(gate_up, f"{stem}.mlp.gate_up_proj"), spec.hidden_size),
            down=self._linear({f"{stem}.mlp.down_proj": spec.hidden_size}, spec.intermediate_size),
            mlp_post_norm=self._norm(f"{stem}.post_feedforward_layernorm") if spec.has_post_norms else None,
            window=spec.windows[index],
            rope=spec.rope_of(index),
        )

    def whole(self, layers: tuple[Layer, ...], n_tokens: int) -> Weights:
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
            return Weights(pad(embeddings, rows), layers, norm, Linear(pad(head, rows), unknown))
        name = "model.embed_tokens" if spec.ties_embeddings else "lm_head"
        return Weights(embeddings, layers, norm, self._linear_of(head[:n_tokens], [name]))

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
        if not can_pack(self._dtype, self._device):
            return Linear(weight, bias)
        parts = [groups for name in names if (groups := self._file.groups(f"{name}.weight")) is not None]
        whole = joined(parts) if len(parts) == len(names) else None
        return Linear(weight, bias) if whole is None else PackedLinear(weight, whole, bias)

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
