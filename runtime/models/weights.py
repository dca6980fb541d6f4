"""Tensors of a model file by their transformers names: safetensors folders and GGUF files."""

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors import SafetensorError, safe_open
from torch import Tensor

from runtime.errors import ModelDamaged
from runtime.models.decoder import Layer, Weights
from runtime.models.linear import Linear
from runtime.models.spec import Spec


class TensorFile(Protocol):
    """Named tensors, read one at a time."""

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str) -> Tensor:
        """The tensor, on the CPU, in the file's dtype or float32; raises `ModelDamaged` when it is missing."""
        ...


class SafetensorsFolder:
    """`model.safetensors`, or shards with an index, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = folder / "model.safetensors.index.json"
        try:
            if index.exists():
                self._files: dict[str, str] = json.loads(index.read_text("utf-8"))["weight_map"]
            else:
                with safe_open(folder / "model.safetensors", "pt") as file:
                    self._files = dict.fromkeys(file.keys(), "model.safetensors")
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise ModelDamaged(str(folder), f"its safetensors cannot be read ({error})") from error

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str) -> Tensor:
        if name not in self._files:
            raise ModelDamaged(str(self._folder), f"the tensor {name} is missing")
        try:
            with safe_open(self._folder / self._files[name], "pt") as file:
                tensor: Tensor = file.get_tensor(name)
                return tensor
        except (OSError, SafetensorError) as error:
            raise ModelDamaged(str(self._folder), f"{self._files[name]} cannot be read ({error})") from error


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class GgufFile:
    """A GGUF file, dequantised to float32 tensor by tensor."""

    def __init__(self, path: Path, spec: Spec) -> None:
        self._path, self._spec = path, spec
        reader = GGUFReader(path)
        self._tensors: dict[str, Any] = {tensor.name: tensor for tensor in reader.tensors}
        # llama.cpp stores the query and key rows of this architecture in interleaved rotary order.
        self._is_interleaved = reader.get_field("general.architecture").contents() == "llama"

    def __contains__(self, name: str) -> bool:
        return self._gguf_name(name) in self._tensors

    def read(self, name: str) -> Tensor:
        stored = self._tensors.get(self._gguf_name(name))
        if stored is None:
            raise ModelDamaged(str(self._path), f"the tensor {name} is missing")
        tensor = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy())
        if self._is_interleaved and ".q_proj." in name:
            return _split_halves(tensor, self._spec.n_heads)
        if self._is_interleaved and ".k_proj." in name:
            return _split_halves(tensor, self._spec.n_kv_heads)
        return tensor

    def _gguf_name(self, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        if not stem.startswith("model.layers."):
            return f"{GGUF_NAMES.get(stem, stem)}.{kind}"
        layer, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"


def _split_halves(tensor: Tensor, n_heads: int) -> Tensor:
    """Rows (x0, y0, x1, y1, ...) of each head to (x0, x1, ..., y0, y1, ...)."""
    pairs: Tensor = tensor.unflatten(0, (n_heads, -1, 2))  # [heads, head_dim / 2, 2, ...]
    return pairs.transpose(1, 2).flatten(0, 2)


def read_layer(file: TensorFile, spec: Spec, index: int, dtype: torch.dtype, device: torch.device) -> Layer:
    """One layer's weights, checked for shape."""

    def tensor(name: str) -> Tensor:
        return file.read(f"model.layers.{index}.{name}").to(device, dtype)

    def joined(out_features: int, in_features: int, *names: str) -> Linear:
        weight = torch.cat([tensor(f"{name}.weight") for name in names])
        if tuple(weight.shape) != (out_features, in_features):
            reason = f"layer {index}, {' + '.join(names)}: {tuple(weight.shape)}, not {(out_features, in_features)}"
            raise ModelDamaged("the model", reason)
        has_bias = f"model.layers.{index}.{names[0]}.bias" in file
        return Linear(weight, torch.cat([tensor(f"{name}.bias") for name in names]) if has_bias else None)

    queries = spec.n_heads * spec.head_dim
    keys = spec.n_kv_heads * spec.head_dim
    attention = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    return Layer(
        attention_norm=tensor("input_layernorm.weight"),
        qkv=joined(queries + 2 * keys, spec.hidden_size, *attention),
        query_norm=tensor("self_attn.q_norm.weight") if spec.has_qk_norm else None,
        key_norm=tensor("self_attn.k_norm.weight") if spec.has_qk_norm else None,
        output=joined(spec.hidden_size, queries, "self_attn.o_proj"),
        mlp_norm=tensor("post_attention_layernorm.weight"),
        gate_up=joined(2 * spec.intermediate_size, spec.hidden_size, "mlp.gate_proj", "mlp.up_proj"),
        down=joined(spec.hidden_size, spec.intermediate_size, "mlp.down_proj"),
    )


def read_ends(
    file: TensorFile,
    spec: Spec,
    layers: tuple[Layer, ...],
    n_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Weights:
    """The whole, from its layers: embeddings, last norm and output head besides.

    Rows of the head beyond the tokenizer's `n_tokens` are padding, which could only be drawn by mistake: they are cut.
    """
    embeddings = file.read("model.embed_tokens.weight").to(device, dtype)
    is_tied = spec.ties_embeddings or "lm_head.weight" not in file
    head = embeddings if is_tied else file.read("lm_head.weight").to(device, dtype)
    return Weights(embeddings, layers, file.read("model.norm.weight").to(device, dtype), Linear(head[:n_tokens]))
