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
    if kind not in SUPPORTED:
        raise UnsupportedModel(kind, tuple(SUPPORTED.values()))
    if config.hidden_act != "silu":
        raise UnsupportedModel(f"{kind} with activation {config.hidden_act}", tuple(SUPPORTED.values()))
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


def _trained_context(config: Any) -> int:
    """Tokens the model can attend over as configured: positions, stretched by its own scaling, within its window."""
    rope = config.rope_parameters or {}
    context = int(config.max_position_embeddings)
    if rope.get("rope_type", "default") == "yarn":
        context = max(context, int(rope.get("original_max_position_embeddings", 0) * rope["factor"]))
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        # Within one window sliding attention is full attention; beyond it this decoder would differ.
        context = min(context, int(window))
    return context
