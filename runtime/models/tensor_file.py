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

from runtime.errors import ModelDamaged
from runtime.models.dequantize import dequantize
from runtime.models.gguf_header import GgufHeader, StoredTensor
from runtime.models.packed import Groups, digits_of, read_groups
from runtime.models.spec import Spec

GROUPED = 1 << 20  # stored bytes that are put in groups at a time: what they pass through is some ten times as much
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

    def groups(self, name: str) -> Iterator[Groups]:
        """The tensor in four-bit groups, some rows after the other; none where it is not stored so."""
        ...

    def digits(self, name: str) -> int | None:
        """The digits of these groups, without reading them; None where there are none."""
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

    def groups(self, name: str) -> Iterator[Groups]:
        return iter(())

    def digits(self, name: str) -> int | None:
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

    def groups(self, name: str) -> Iterator[Groups]:
        tensor = self._found(name)
        stored = self._header.bytes_of(tensor)
        order = self._order(name, len(stored))
        at_once = max(1, GROUPED // stored.shape[1])
        for start in range(0, len(stored), at_once):
            rows = slice(start, start + at_once)
            if (groups := read_groups(stored[rows if order is None else order[rows]], tensor.quantization)) is not None:
                yield groups

    def digits(self, name: str) -> int | None:
        return digits_of(self._found(name).quantization)

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
