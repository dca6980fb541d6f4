"""Architecture facts, read from a model's transformers config."""

from dataclasses import dataclass
from typing import Any, Literal

from runtime.errors import UnsupportedModel

# By transformers' model types; the last two hold a text model beside others, of which only the text model is read.
SUPPORTED = {
    "llama": "Llama 2, Llama 3.x, SmolLM2 and others of the Llama architecture",
    "mistral": "Mistral",
    "ministral": "Ministral",
    "ministral3": "Ministral",
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen3": "Qwen3",
    "smollm3": "SmolLM3",
    "granite": "Granite without experts",
    "phi3": "Phi-3 and Phi-4",
    "gemma3_text": "Gemma 3",
    "mistral3": "Mistral",
    "gemma3": "Gemma 3",
}
ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
Activation = Literal["silu", "gelu_tanh"]
ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True)
class QueryTemperature:
    """Queries grow with their position p, by 1 + beta * log(1 + floor(p / length))."""

    beta: float
    length: int


@dataclass(frozen=True, slots=True)
class Spec:
    """What the decoder must know. `trained_context` in tokens, with the config's own RoPE scaling applied.

    What most models do not have comes last: None, empty or of no effect where it is absent. `sliding_layers` see the
    newest `window` tokens, by a rotary embedding of their own where `has_local_rope`. Norms are stored less
    `norm_offset`. The embeddings are multiplied, what each block adds to the residual stream as well, and the logits
    divided.
    """

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
    window: int | None = None
    sliding_layers: frozenset[int] = frozenset()
    unrotated_layers: frozenset[int] = frozenset()
    has_local_rope: bool = False
    has_post_norms: bool = False
    norm_offset: float = 0.0
    activation: Activation = "silu"
    attention_multiplier: float | None = None
    query_temperature: QueryTemperature | None = None
    embedding_multiplier: float | None = None
    residual_multiplier: float = 1.0
    logits_divisor: float | None = None

    @property
    def attention_scale(self) -> float:
        return float(self.head_dim**-0.5) if self.attention_multiplier is None else self.attention_multiplier

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Tokens each layer sees, its own among them; None where it sees all."""
        return tuple(self.window if layer in self.sliding_layers else None for layer in range(self.n_layers))

    @property
    def n_parameters(self) -> int:
        """Weights, biases and norms left aside."""
        attention = self.hidden_size * self.head_dim * 2 * (self.n_heads + self.n_kv_heads)
        feed_forward = 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.ties_embeddings else 2)
        return self.n_layers * (attention + feed_forward) + embeddings

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * element_bytes

    def seen_tokens(self, n_tokens: int, budget: int) -> float:
        """Tokens a layer attends to in a sequence of `n_tokens`, on average; those that see all, at most `budget`."""
        share = len(self.sliding_layers) / self.n_layers
        return share * min(self.window or 0, n_tokens) + (1 - share) * min(budget, n_tokens)

    def rope_of(self, layer: int) -> int | None:
        """Which of the model's rotary embeddings a layer uses: 0 its main one, 1 the local one; None for none."""
        if layer in self.unrotated_layers:
            return None
        return int(self.has_local_rope and layer in self.sliding_layers)


def read_spec(config: Any) -> Spec:
    """The facts of a transformers config; raises `UnsupportedModel`, naming what is not supported."""
    kind = config.model_type
    require(kind in SUPPORTED, kind)
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    require(activation in ACTIVATIONS, f"{kind} with activation {activation}")
    quantization = getattr(config, "quantization_config", None)
    require(not quantization, f"{kind} with quantised safetensors ({_method(quantization)})")
    for feature in ("final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention"):
        require(not getattr(config, feature, None), f"{kind} with {feature}")
    rope = rope_parameters(config)
    require(rope.get("rope_type", "default") in ROPE_KINDS, f"{kind} with RoPE scaling {rope.get('rope_type')}")
    is_whole = rope.get("partial_rotary_factor", 1) == 1
    require(is_whole or kind == "phi3", f"{kind} with RoPE on a part of each head")
    window, trained_context = attention_window(config), _trained_context(config)
    require(window is None or window > 0, f"{kind} with a window of {window} tokens")
    if window is not None and window >= trained_context:
        window = None  # it hides nothing
    is_gemma = kind == "gemma3_text"
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
        has_qk_norm=kind == "qwen3" or is_gemma,
        trained_context=trained_context,
        window=window,
        sliding_layers=_sliding_layers(config, window),
        unrotated_layers=_unrotated_layers(config),
        has_local_rope="sliding_attention" in (config.rope_parameters or {}),
        has_post_norms=is_gemma,
        norm_offset=getattr(config, "norm_offset", 1.0 if is_gemma else 0.0),
        activation=ACTIVATIONS[activation],
        attention_multiplier=_attention_multiplier(config),
        query_temperature=_query_temperature(config),
        embedding_multiplier=config.hidden_size**0.5 if is_gemma else _multiplier(config, "embedding_multiplier"),
        residual_multiplier=_multiplier(config, "residual_multiplier") or 1.0,
        logits_divisor=_multiplier(config, "logits_scaling"),
    )


def require(is_supported: bool, name: str) -> None:
    """Raise `UnsupportedModel` with `name` and the list of what is supported, unless `is_supported`."""
    if not is_supported:
        raise UnsupportedModel(name, tuple(dict.fromkeys(SUPPORTED.values())))


def text_config(config: Any) -> Any:
    """The config of the text model, of one that holds others beside it; with the quantisation that is named outside."""
    text = getattr(config, "text_config", None)
    if text is None:
        return config
    text.quantization_config = getattr(config, "quantization_config", None)
    return text


def rope_parameters(config: Any) -> dict[str, Any]:
    """The parameters of the model's rotary embedding; of the full layers' where sliding layers have their own."""
    every: dict[str, Any] = config.rope_parameters or {}
    parameters: dict[str, Any] = every.get("full_attention", every)
    return parameters


def attention_window(config: Any) -> int | None:
    """Tokens a layer with sliding attention sees; None where attention is full."""
    window = getattr(config, "sliding_window", None)
    return int(window) if window and getattr(config, "use_sliding_window", True) else None


def _method(quantization: Any) -> str:
    """The name of a quantisation, which a config holds as a dictionary or as an object."""
    found = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return str(found or type(quantization).__name__)


def _sliding_layers(config: Any, window: int | None) -> frozenset[int]:
    """Those the config lists, or all where it gives a window and no list."""
    if window is None:
        return frozenset()
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")


def _unrotated_layers(config: Any) -> frozenset[int]:
    """Layers without RoPE; the list `no_rope_layers` has a 0 for each of them."""
    has_rope = getattr(config, "no_rope_layers", None) or ()
    return frozenset(layer for layer, flag in enumerate(has_rope) if not flag)


def _attention_multiplier(config: Any) -> float | None:
    """What scores are multiplied by, where it is not 1 / sqrt(head_dim)."""
    scalar = getattr(config, "query_pre_attn_scalar", None)
    return float(scalar**-0.5) if scalar else getattr(config, "attention_multiplier", None)


def _query_temperature(config: Any) -> QueryTemperature | None:
    rope = rope_parameters(config)
    beta = rope.get("llama_4_scaling_beta")
    length = rope.get("original_max_position_embeddings", config.max_position_embeddings)
    return QueryTemperature(float(beta), int(length)) if beta else None


def _multiplier(config: Any, name: str) -> float | None:
    """A multiplier of the config; None where it has no effect."""
    value = getattr(config, name, None)
    return None if value in (None, 1) else float(value)


def _trained_context(config: Any) -> int:
    """Tokens the model can attend over as configured: positions, stretched by its own scaling.

    The positions of linear scaling are those before it, those of YaRN are often those after it. Dynamic scaling is
    made for going beyond what was trained.
    """
    rope = rope_parameters(config)
    kind, factor = rope.get("rope_type", "default"), rope.get("factor") or 1
    context = int(config.max_position_embeddings)
    if kind == "linear" and not _counts_scaled(config):
        return int(context * factor)
    if kind == "yarn":
        return max(context, int(rope.get("original_max_position_embeddings", 0) * factor))
    return context


def _counts_scaled(config: Any) -> bool:
    """Whether `max_position_embeddings` counts the tokens after linear scaling, as in Gemma 3."""
    return bool(config.model_type == "gemma3_text")
