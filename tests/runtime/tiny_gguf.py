"""Tiny models as GGUF files, written in the test with the `gguf` package as llama.cpp's converter writes them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from numpy.typing import NDArray

from tests.runtime.tiny import CHAT_TEMPLATE, SPECIAL, tiny_backend

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path,
    model: Any,
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
    architecture: str | None = None,
    extra: dict[str, Any] | None = None,
    tensors: dict[str, NDArray[np.float32]] | None = None,
) -> None:
    """Write a transformers model with the tiny tokenizer. Vectors stay in float32, as llama.cpp keeps them.

    `extra` metadata (whole keys) and `tensors` are added, or put in place of what is written otherwise.
    """
    config = model.config
    kind = architecture or {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = GGUFWriter(path, kind)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    values: dict[str, Any] = {
        f"{kind}.context_length": config.max_position_embeddings,
        f"{kind}.embedding_length": config.hidden_size,
        f"{kind}.block_count": config.num_hidden_layers,
        f"{kind}.feed_forward_length": config.intermediate_size,
        f"{kind}.attention.head_count": config.num_attention_heads,
        f"{kind}.attention.head_count_kv": config.num_key_value_heads,
        f"{kind}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        f"{kind}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        f"{kind}.rope.dimension_count": head_dim,
        f"{kind}.vocab_size": config.vocab_size,
    }
    if head_dim * config.num_attention_heads != config.hidden_size:
        values |= {f"{kind}.attention.key_length": head_dim, f"{kind}.attention.value_length": head_dim}
    for key, value in (values | _vocabulary() | (extra or {})).items():
        _add(writer, key, value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        _add_tensor(writer, _renamed(name), _interleaved(name, tensor.float().numpy(), config, kind), quantization)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama3_divisors(config: Any, parameters: dict[str, Any]) -> NDArray[np.float32]:
    """`rope_freqs.weight` [head_dim / 2]: how much slower Llama 3's scaling turns each pair."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    waves = 2 * np.pi * config.rope_parameters["rope_theta"] ** exponents
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    turns = parameters["original_max_position_embeddings"] / waves
    smooth = ((turns - low) / (high - low)).clip(0, 1)
    return (1 / ((1 - smooth) / parameters["factor"] + smooth)).astype(np.float32)


def _vocabulary() -> dict[str, Any]:
    backend = tiny_backend()
    tokens = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    model = backend.backend_tokenizer.model.__getstate__()
    merges = json.loads(model)["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [token for token, _ in tokens],
        "tokenizer.ggml.token_type": [
            int(TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL) for token, _ in tokens
        ],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def _add_tensor(writer: GGUFWriter, name: str, array: NDArray[np.float32], quantization: GGMLQuantizationType) -> None:
    kind = GGMLQuantizationType.F32 if array.ndim == 1 else quantization
    writer.add_tensor(name, quantize(array, kind), raw_dtype=kind)


def _renamed(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{NAMES[stem]}.{suffix}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[part]}.{suffix}"


def _interleaved(name: str, array: NDArray[np.float32], config: Any, architecture: str) -> NDArray[np.float32]:
    """llama.cpp turns neighbouring rows of a head together; transformers turns row i and row i + head_dim / 2."""
    n_heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if architecture != "llama" or n_heads is None:
        return array
    halves = array.reshape(n_heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
