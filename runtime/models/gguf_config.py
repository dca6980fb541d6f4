"""A GGUF file's metadata as the values of a transformers config.

Transformers' own reading leaves out the RoPE scaling and a head size of its own, and takes seconds.
"""

import numpy as np

from runtime.errors import ModelDamaged, UnsupportedModel
from runtime.models.gguf_header import GgufHeader, Value
from runtime.models.spec import SUPPORTED

END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
YARN_KEYS = {
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}


def config_values(header: GgufHeader) -> dict[str, object]:
    """The config's values, by transformers' names for them.

    Raises `UnsupportedModel`, or `ModelDamaged` where a number is missing.
    """
    kind = header.architecture
    if kind not in SUPPORTED:
        raise UnsupportedModel(kind or "a GGUF file without architecture", tuple(SUPPORTED.values()))
    if _number(header, "expert_count", 0):
        raise UnsupportedModel(f"{kind} with experts", tuple(SUPPORTED.values()))
    embeddings = header.tensors.get("token_embd.weight")
    if embeddings is None:
        raise ModelDamaged(str(header.path), "the tensor token_embd.weight is missing")
    n_heads = int(_number(header, "attention.head_count"))
    hidden_size = int(_number(header, "embedding_length"))
    head_dim = int(_number(header, "attention.key_length", hidden_size // max(n_heads, 1)))
    for key in ("attention.value_length", "rope.dimension_count"):
        if (found := int(_number(header, key, head_dim))) != head_dim:
            raise UnsupportedModel(f"{kind} with {key} {found} where heads are {head_dim}", tuple(SUPPORTED.values()))
    ends = [header.metadata.get(f"tokenizer.ggml.{key}") for key in END_KEYS]
    window = int(_number(header, "attention.sliding_window", 0))
    return {
        "model_type": kind,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": int(_number(header, "feed_forward_length")),
        "num_hidden_layers": int(_number(header, "block_count")),
        "num_attention_heads": n_heads,
        "num_key_value_heads": int(_number(header, "attention.head_count_kv", n_heads)),
        "head_dim": head_dim,
        "max_position_embeddings": int(_number(header, "context_length")),
        "sliding_window": window or None,
        "rms_norm_eps": float(_number(header, "attention.layer_norm_rms_epsilon")),
        "vocab_size": embeddings.shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": _rope(header),
        "eos_token_id": [end for end in ends if isinstance(end, int)],
    }


def _rope(header: GgufHeader) -> dict[str, object]:
    """RoPE as transformers names its kinds and numbers."""
    base: dict[str, object] = {"rope_type": "default", "rope_theta": float(_number(header, "rope.freq_base", 10_000.0))}
    context = int(_number(header, "context_length"))
    factors = header.tensors.get("rope_freqs.weight")
    if factors is not None:
        # Llama 3's scaling, worked out: a divisor for each frequency, which LongRoPE's form states as it is.
        divisors = header.bytes_of(factors).reshape(-1).view(np.float32).tolist()
        lists = {"short_factor": divisors, "long_factor": divisors, "attention_factor": 1.0, "factor": 1.0}
        return base | lists | {"rope_type": "longrope", "original_max_position_embeddings": context}
    factor = float(_number(header, "rope.scaling.factor", _number(header, "rope.scale_linear", 1.0)))
    scaling = header.get("rope.scaling.type") or "linear"
    if factor in (0, 1) or scaling == "none":
        return base
    if scaling == "linear":
        return base | {"rope_type": "linear", "factor": factor}
    if scaling != "yarn":
        raise UnsupportedModel(f"{header.architecture} with RoPE scaling {scaling}", tuple(SUPPORTED.values()))
    given = {name: value for key, name in YARN_KEYS.items() if (value := header.get(key)) is not None}
    original = int(_number(header, "rope.scaling.original_context_length", context))
    return base | given | {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}


def _number(header: GgufHeader, key: str, absent: float | None = None) -> float:
    """The architecture's number `key`; one number for all layers where the file lists one for each."""
    value: Value | None = header.get(key)
    if isinstance(value, tuple) and value:
        if len(set(value)) > 1:
            raise UnsupportedModel(f"{header.architecture} with layers that differ in {key}", tuple(SUPPORTED.values()))
        value = value[0]
    if value is None and absent is not None:
        return absent
    if not isinstance(value, int | float):
        raise ModelDamaged(str(header.path), f"it does not say {header.architecture}.{key}")
    return value
