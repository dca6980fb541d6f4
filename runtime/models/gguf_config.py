"""A GGUF file's metadata as the values of a transformers config.

Transformers' own reading leaves out the RoPE scaling and a head size of its own, and takes seconds.
"""

import numpy as np
from gguf import GGMLQuantizationType

from runtime.errors import ModelDamaged
from runtime.models.gguf_header import GgufHeader, Value
from runtime.models.spec import require

KINDS = {  # transformers' model type of each architecture
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "mistral3": "ministral3",
    "smollm3": "smollm3",
    "granite": "granite",
    "phi3": "phi3",
    "gemma3": "gemma3_text",
}
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
YARN_KEYS = {
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
    "attention.temperature_scale": "llama_4_scaling_beta",
}
GRANITE_KEYS = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}
# What llama.cpp knows of these models by itself, and their files do not say.
SMOLLM3_STEP = 4  # each fourth layer is without RoPE
GEMMA_PATTERN = 6  # each sixth layer sees all
GEMMA_27B_LAYERS = 62  # its scores are scaled by its hidden size, not by its heads'
GEMMA_LOCAL_BASE, GEMMA_BASE = 10_000.0, 1_000_000.0


def config_values(header: GgufHeader) -> dict[str, object]:
    """The config's values, by transformers' names for them.

    Raises `UnsupportedModel`, or `ModelDamaged` where a number is missing.
    """
    kind = header.architecture
    require(kind in KINDS, kind or "a GGUF file without architecture")
    require(not _number(header, "expert_count", 0), f"{kind} with experts")
    embeddings = header.tensors.get("token_embd.weight")
    if embeddings is None:
        raise ModelDamaged(str(header.path), "the tensor token_embd.weight is missing")
    n_heads = int(_number(header, "attention.head_count"))
    hidden_size = int(_number(header, "embedding_length"))
    head_dim = int(_number(header, "attention.key_length", hidden_size // max(n_heads, 1)))
    if n_heads < 1 or head_dim < 1:
        raise ModelDamaged(str(header.path), f"it has {n_heads} heads of {head_dim} numbers")
    value_dim = int(_number(header, "attention.value_length", head_dim))
    require(value_dim == head_dim, f"{kind} with attention.value_length {value_dim} where heads are {head_dim}")
    rotary_dim = int(_number(header, "rope.dimension_count", head_dim))
    is_known = rotary_dim == head_dim or kind == "phi3"
    require(is_known, f"{kind} with rope.dimension_count {rotary_dim} where heads are {head_dim}")
    ends = [header.metadata.get(f"tokenizer.ggml.{key}") for key in END_KEYS]
    values: dict[str, object] = {
        "model_type": KINDS[kind],
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": int(_number(header, "feed_forward_length")),
        "num_hidden_layers": int(_number(header, "block_count")),
        "num_attention_heads": n_heads,
        "num_key_value_heads": int(_number(header, "attention.head_count_kv", n_heads)),
        "head_dim": head_dim,
        "max_position_embeddings": int(_number(header, "context_length")),
        "sliding_window": int(_number(header, "attention.sliding_window", 0)) or None,
        "rms_norm_eps": float(_number(header, "attention.layer_norm_rms_epsilon")),
        "vocab_size": embeddings.shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": _rope(header, rotary_dim, rotary_dim / head_dim),
        "eos_token_id": [end for end in ends if isinstance(end, int)],
    }
    return values | _particulars(header, values, hidden_size / n_heads)


def _particulars(header: GgufHeader, values: dict[str, object], share: float) -> dict[str, object]:
    """What makes the architecture another than Llama; `share` is each head's of the hidden size."""
    layers = range(int(_number(header, "block_count")))
    if header.architecture == "smollm3":
        return {"no_rope_layers": [int((layer + 1) % SMOLLM3_STEP != 0) for layer in layers]}
    if header.architecture == "granite":
        # Granite 4's small models, without RoPE, say so by this switch.
        has_rope = int(header.get("rope.scaling.finetuned") is not False)
        return {"no_rope_layers": [has_rope] * len(layers)} | _given(header, GRANITE_KEYS)
    if header.architecture == "gemma3":
        local = {"rope_type": "default", "rope_theta": float(_number(header, "rope.freq_base_swa", GEMMA_LOCAL_BASE))}
        scalar = share if len(layers) == GEMMA_27B_LAYERS else values["head_dim"]
        return {
            "hidden_activation": "gelu_pytorch_tanh",
            "norm_offset": 0.0,
            "query_pre_attn_scalar": scalar,
            "final_logit_softcapping": header.get("final_logit_softcapping"),
            "layer_types": _gemma_layers(header, layers) if values["sliding_window"] else None,
            "rope_parameters": {"full_attention": values["rope_parameters"], "sliding_attention": local},
        }
    return {}


def _gemma_layers(header: GgufHeader, layers: range) -> list[str]:
    """By a pattern for each layer, or by every how manieth sees all."""
    pattern = header.get("attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        slides = [bool(slides) for slides in pattern]
    else:
        step = int(_number(header, "attention.sliding_window_pattern", GEMMA_PATTERN))
        slides = [step > 0 and (layer + 1) % step != 0 for layer in layers]
    return ["sliding_attention" if does else "full_attention" for does in slides]


def _given(header: GgufHeader, keys: dict[str, str]) -> dict[str, object]:
    """Those of the file's own values that it has, by other names."""
    return {name: value for key, name in keys.items() if (value := header.get(key)) is not None}


def _rope(header: GgufHeader, rotary_dim: int, rotary_part: float) -> dict[str, object]:
    """RoPE as transformers names its kinds and numbers; it turns `rotary_dim` numbers, a part of each head."""
    absent = GEMMA_BASE if header.architecture == "gemma3" else 10_000.0
    base: dict[str, object] = {"rope_type": "default", "rope_theta": float(_number(header, "rope.freq_base", absent))}
    if rotary_part != 1:
        base["partial_rotary_factor"] = rotary_part
    context = int(_number(header, "context_length"))
    original = int(_number(header, "rope.scaling.original_context_length", 0)) or context
    names = ("freqs", "factors_short", "factors_long")
    divisors = {name: _divisors(header, f"rope_{name}.weight", rotary_dim // 2) for name in names}
    if divisors["freqs"]:
        # Llama 3's scaling, worked out: a divisor for each frequency, which LongRoPE's form states as it is.
        lists = {"short_factor": divisors["freqs"], "long_factor": divisors["freqs"], "attention_factor": 1.0}
        rest = {"rope_type": "longrope", "factor": 1.0, "original_max_position_embeddings": context}
        return base | lists | rest
    if divisors["factors_short"] and divisors["factors_long"]:
        return base | {
            "rope_type": "longrope",
            "short_factor": divisors["factors_short"],
            "long_factor": divisors["factors_long"],
            "factor": context / original,
            "attention_factor": header.get("rope.scaling.attn_factor"),
            "original_max_position_embeddings": original,
        }
    factor = float(_number(header, "rope.scaling.factor", _number(header, "rope.scale_linear", 1.0)))
    scaling = header.get("rope.scaling.type") or "linear"
    if scaling == "none" or (factor in (0, 1) and scaling != "longrope"):
        return base
    if scaling == "linear":
        return base | {"rope_type": "linear", "factor": factor}
    require(scaling == "yarn", f"{header.architecture} with RoPE scaling {scaling}")
    given = _given(header, YARN_KEYS)
    if "mscale_all_dim" in given:
        given["mscale"] = 1.0
    return base | given | {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}


def _divisors(header: GgufHeader, name: str, count: int) -> list[float]:
    """What the tensor `name` divides each of `count` frequencies by; none where the file has no such tensor."""
    tensor = header.tensors.get(name)
    if tensor is None:
        return []
    if tensor.quantization != GGMLQuantizationType.F32 or tensor.shape != (count,):
        found = f"{tensor.shape} in {tensor.quantization.name}"
        raise ModelDamaged(str(header.path), f"the tensor {name} is {found}, not ({count},) in F32")
    numbers: list[float] = header.bytes_of(tensor).reshape(-1).view(np.float32).tolist()
    return numbers


def _number(header: GgufHeader, key: str, absent: float | None = None) -> float:
    """The architecture's number `key`; one number for all layers where the file lists one for each."""
    value: Value | None = header.get(key)
    if isinstance(value, tuple) and value:
        require(len(set(value)) == 1, f"{header.architecture} with layers that differ in {key}")
        value = value[0]
    if value is None and absent is not None:
        return absent
    if not isinstance(value, int | float):
        raise ModelDamaged(str(header.path), f"it does not say {header.architecture}.{key}")
    return value
