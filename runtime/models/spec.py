"""Architecture facts, read from a model's transformers config."""

from dataclasses import dataclass
from typing import Any

from runtime.errors import UnsupportedModel

SUPPORTED = {
    "llama": "Llama 2, Llama 3.x, SmolLM2 and others of the Llama architecture",
    "mistral": "Mistral",
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen3": "Qwen3",
}
ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, slots=True)
class Spec:
    """What the decoder must know. `trained_context` in tokens, with the config's own RoPE scaling applied."""

    architecture: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    norm_eps: float
    ties_embeddings: bool
    has_qk_norm: bool
    trained_context: int

    @property
    def attention_scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def n_parameters(self) -> int:
        """Weights, biases and norms left aside."""
        attention = self.hidden_size * self.head_dim * 2 * (self.n_heads + self.n_kv_heads)
        feed_forward = 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.ties_embeddings else 2)
        return self.n_layers * (attention + feed_forward) + embeddings

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * element_bytes


def read_spec(config: Any) -> Spec:
    """The facts of a transformers config; raises `UnsupportedModel`, naming what is not supported."""
    kind = config.model_type
    _require(kind in SUPPORTED, kind)
    _require(config.hidden_act == "silu", f"{kind} with activation {config.hidden_act}")
    quantization = getattr(config, "quantization_config", None)
    _require(not quantization, f"{kind} with quantised safetensors ({_method(quantization)})")
    rope = config.rope_parameters or {}
    _require(_has_known_rope(rope), f"{kind} with RoPE scaling {rope.get('rope_type')}")
    _require(rope.get("partial_rotary_factor", 1) == 1, f"{kind} with RoPE on a part of each head")
    return Spec(
        architecture=kind,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        norm_eps=config.rms_norm_eps,
        ties_embeddings=bool(config.tie_word_embeddings),
        has_qk_norm=kind == "qwen3",
        trained_context=_trained_context(config),
    )


def _require(is_supported: bool, name: str) -> None:
    if not is_supported:
        raise UnsupportedModel(name, tuple(SUPPORTED.values()))


def _method(quantization: Any) -> str:
    """The name of a quantisation, which a config holds as a dictionary or as an object."""
    found = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return str(found or type(quantization).__name__)


def _has_known_rope(rope: dict[str, Any]) -> bool:
    """LongRoPE changes its frequencies with the length; only where it says the same for short and long is it known."""
    kind = rope.get("rope_type", "default")
    return kind in ROPE_KINDS or (kind == "longrope" and rope["short_factor"] == rope["long_factor"])


def _trained_context(config: Any) -> int:
    """Tokens the model can attend over as configured: positions, stretched by its own scaling, within its window.

    The positions of linear scaling are those before it, those of YaRN are often those after it. Dynamic scaling is
    made for going beyond what was trained.
    """
    rope = config.rope_parameters or {}
    kind, factor = rope.get("rope_type", "default"), rope.get("factor") or 1
    context = int(config.max_position_embeddings)
    if kind == "linear":
        context = int(context * factor)
    if kind == "yarn":
        context = max(context, int(rope.get("original_max_position_embeddings", 0) * factor))
    # Within one window sliding attention is full attention; beyond it this decoder would differ.
    return min(context, attention_window(config) or context)


def attention_window(config: Any) -> int | None:
    """Tokens a layer with sliding attention sees; None where attention is full."""
    window = getattr(config, "sliding_window", None)
    return int(window) if window and getattr(config, "use_sliding_window", True) else None
