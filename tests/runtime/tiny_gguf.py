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
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
ARCHITECTURES = {"mistral": "llama", "ministral3": "mistral3", "gemma3_text": "gemma3"}
INTERLEAVED = ("llama", "granite", "smollm3", "mistral3")


def write_gguf(
    path: Path,
    model: Any,
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
    architecture: str | None = None,
    extra: dict[str, Any] | None = None,
    tensors: dict[str, NDArray[np.float32]] | None = None,
    without: str = "no such tensor",
) -> None:
    """Write a transformers model with the tiny tokenizer. Vectors stay in float32, as llama.cpp keeps them.

    `extra` metadata (whole keys) and `tensors` are added, or put in place of what is written otherwise; tensors with
    `without` in their name are left out.
    """
    config = model.config
    kind = architecture or ARCHITECTURES.get(config.model_type, config.model_type)
    writer = GGUFWriter(path, kind)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    values: dict[str, Any] = {
        f"{kind}.context_length": config.max_position_embeddings,
        f"{kind}.embedding_length": config.hidden_size,
        f"{kind}.block_count": config.num_hidden_layers,
        f"{kind}.feed_forward_length": config.intermediate_size,
        f"{kind}.attention.head_count": config.num_attention_heads,
        f"{kind}.attention.head_count_kv": config.num_key_value_heads,
        f"{kind}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        f"{kind}.rope.freq_base": float(rope["rope_theta"]),
        f"{kind}.rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1)),
        f"{kind}.vocab_size": config.vocab_size,
    }
    if head_dim * config.num_attention_heads != config.hidden_size:
        values |= {f"{kind}.attention.key_length": head_dim, f"{kind}.attention.value_length": head_dim}
    for key, value in (values | _particulars(kind, config) | _vocabulary() | (extra or {})).items():
        _add(writer, key, value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = _interleaved(name, tensor.float().numpy(), config, kind)
        if kind == "gemma3" and name.endswith("norm.weight"):
            array = array + 1
        if without not in _renamed(name, kind):
            _add_tensor(writer, _renamed(name, kind), array, quantization)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _particulars(kind: str, config: Any) -> dict[str, Any]:
    """What the converter writes of an architecture's own."""
    rope = config.rope_parameters
    if kind == "granite":
        return {
            f"{kind}.attention.scale": float(config.attention_multiplier),
            f"{kind}.embedding_scale": float(config.embedding_multiplier),
            f"{kind}.residual_scale": float(config.residual_multiplier),
            f"{kind}.logit_scale": float(config.logits_scaling),
        }
    if kind == "gemma3":
        return {
            f"{kind}.rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
            f"{kind}.attention.sliding_window": config.sliding_window,
        }
    if kind == "mistral3":
        return {
            f"{kind}.rope.scaling.type": "yarn",
            f"{kind}.rope.scaling.factor": float(rope["factor"]),
            f"{kind}.rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            f"{kind}.rope.scaling.yarn_log_multiplier": float(rope["mscale_all_dim"]),
            f"{kind}.attention.temperature_scale": float(rope["llama_4_scaling_beta"]),
        }
    if kind == "phi3":
        return {
            f"{kind}.rope.scaling.original_context_length": config.original_max_position_embeddings,
            f"{kind}.attention.sliding_window": config.sliding_window or 0,
        }
    return {}


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


def _renamed(name: str, architecture: str) -> str:
    stem, _, suffix = name.rpartition(".")
    names = NAMES | (GEMMA_NAMES if architecture == "gemma3" else {})
    if not stem.startswith("model.layers."):
        return f"{names[stem]}.{suffix}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{names[part]}.{suffix}"


def _interleaved(name: str, array: NDArray[np.float32], config: Any, architecture: str) -> NDArray[np.float32]:
    """llama.cpp turns neighbouring rows of a head together; transformers turns row i and row i + head_dim / 2."""
    n_heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if architecture not in INTERLEAVED or n_heads is None:
        return array
    halves = array.reshape(n_heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
