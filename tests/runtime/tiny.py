"""Tiny random models of every supported architecture, and a small real tokenizer, made in the test."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from tokenizers import AddedToken, Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from torch import Tensor
from transformers import (
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from runtime.models.attention import Attend, attend_plainly
from runtime.models.decoder import Decoder
from runtime.models.rope import build_ropes
from runtime.models.spec import read_spec
from runtime.models.tensor_file import missing
from runtime.models.weights import WeightReader

Kind = Literal[
    "llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "smollm3", "granite", "phi3", "gemma3_text"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
CLASSES: dict[Kind, tuple[type[Any], type[Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "ministral": (MinistralConfig, MinistralForCausalLM),
    "ministral3": (Ministral3Config, Ministral3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "smollm3": (SmolLM3Config, SmolLM3ForCausalLM),
    "granite": (GraniteConfig, GraniteForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
    "gemma3_text": (Gemma3TextConfig, Gemma3ForCausalLM),
}
# Text models that also come inside of one that sees: its classes, and the kind of its vision tower.
WRAPPERS: dict[Kind, tuple[type[Any], type[Any], str]] = {
    "mistral": (Mistral3Config, Mistral3ForConditionalGeneration, "pixtral"),
    "ministral3": (Mistral3Config, Mistral3ForConditionalGeneration, "pixtral"),
    "gemma3_text": (Gemma3Config, Gemma3ForConditionalGeneration, "siglip_vision_model"),
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 64}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
# What makes each architecture what it is; a window of 40 tokens is shorter than most prompts here.
PARTICULARS: dict[Kind, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "ministral": {
        "head_dim": 16,
        "sliding_window": 40,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "ministral3": {
        "head_dim": 24,
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5},
    },
    "qwen3": {"head_dim": 16},
    "smollm3": {"no_rope_layers": [1, 0, 1], "pad_token_id": 0},
    "granite": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.4,
        "residual_multiplier": 0.6,
        "logits_scaling": 2.0,
    },
    "phi3": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.75},
        "pad_token_id": 0,
    },
    "gemma3_text": {
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": 40,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": GEMMA_ROPE,
    },
}

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (
    "t h",
    "th e",
    "i n",
    "a n",
    "Ġ the",
    "Ġ a",
    "Ġ in",
    "e r",
    "o n",
    "r e",
    "Ġ o",
    "Ġo n",
    "an d",
    "Ġ and",
    "i s",
)
N_TOKENS = 256 + len(MERGES) + len(SPECIAL)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_config(kind: Kind, **changes: Any) -> Any:
    """A transformers config of a model of some 100,000 weights; `changes` replace its values.

    Its vocabulary is padded beyond the tokenizer's `N_TOKENS`.
    """
    values: dict[str, Any] = {
        "vocab_size": N_TOKENS + 14,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    return CLASSES[kind][0](**values | PARTICULARS.get(kind, {}) | changes)


def tiny_model(kind: Kind, seed: int = 0, **changes: Any) -> Any:
    """A transformers model with random weights in float32, norms and biases random as well.

    Weights are larger than a fresh model's, so that attention is far from uniform and a wrong angle shows.
    """
    config = tiny_config(kind, **changes)
    config._attn_implementation = "eager"
    return _randomised(CLASSES[kind][1], config, seed)


def _randomised(model_class: type[Any], config: Any, seed: int) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config).eval()
        for parameter in model.parameters():
            mean, deviation = (1.0, 0.2) if parameter.dim() == 1 else (0.0, 0.15)
            torch.nn.init.normal_(parameter, mean, deviation)
    return model


def save_tiny_wrapped(folder: Path, kind: Kind) -> Any:
    """Write a tiny model of text and images whose text model is of `kind`; gives the transformers model."""
    config_class, model_class, tower = WRAPPERS[kind]
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14, "head_dim": 8}
    text = tiny_config(kind)
    config = config_class(
        text_config=text.to_dict(),
        vision_config={"model_type": tower, **vision},
        tie_word_embeddings=text.tie_word_embeddings,
        image_token_index=text.vocab_size - 1,
    )
    model = _randomised(model_class, config, 0)
    model.save_pretrained(folder)
    tiny_backend().save_pretrained(folder)
    return model


def tiny_backend() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, which encodes any text, with a ChatML template."""
    alphabet = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [(first, second) for first, second in (merge.split() for merge in MERGES)]
    vocabulary = {token: index for index, token in enumerate([*alphabet, *map("".join, merges)])}
    backend = Backend(BPE(vocab=vocabulary, merges=merges))
    word = r"'\w+| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(word), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=SPECIAL[0], eos_token=SPECIAL[2])
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def save_tiny(folder: Path, kind: Kind, seed: int = 0, shard: str = "5GB", **changes: Any) -> Any:
    """Write a tiny model as a folder of config, safetensors and tokenizer; gives the transformers model.

    `shard` is the largest size of one file of weights, as transformers writes it ("100KB").
    """
    model = tiny_model(kind, seed, **changes)
    model.save_pretrained(folder, max_shard_size=shard)
    tiny_backend().save_pretrained(folder)
    return model


def change_config(folder: Path, **changes: Any) -> None:
    """Replace values of a saved config.json; None takes a key away."""
    path = folder / "config.json"
    values = json.loads(path.read_text("utf-8")) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}), "utf-8")


def tiny_decoder(
    kind: Kind,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    attend: Attend = attend_plainly,
    n_tokens: int = 1,
    device: str = "cpu",
    **changes: Any,
) -> tuple[Decoder, Any]:
    """Our decoder and the transformers model whose weights it has.

    Its rotary embedding is for sequences of up to `n_tokens`; the whole vocabulary is kept.
    """
    model = tiny_model(kind, seed, **changes)
    return decoder_of(model, dtype, attend, n_tokens, device), model


def decoder_of(
    model: Any,
    dtype: torch.dtype = torch.float32,
    attend: Attend = attend_plainly,
    n_tokens: int = 1,
    device: str = "cpu",
) -> Decoder:
    """Our decoder with the weights of a transformers model."""
    spec, place = read_spec(model.config), torch.device(device)
    reader = WeightReader(HeldTensors(model.state_dict()), spec, dtype, place)
    weights = reader.whole(tuple(map(reader.layer, range(spec.n_layers))), spec.vocab_size)
    return Decoder(spec, weights, build_ropes(model.config, spec.trained_context, n_tokens, place), attend)


class HeldTensors:
    """Tensors in memory, as a model file."""

    name = "memory"

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape_of(self, name: str) -> tuple[int, ...]:
        if name not in self._tensors:
            raise missing(self.name, name)
        return tuple(self._tensors[name].shape)

    def read(self, name: str, out: Tensor) -> None:
        out.copy_(self._tensors[name])

    def groups(self, name: str) -> None:
        return None

    def digits(self, name: str) -> None:
        return None


def random_ids(n_tokens: int, seed: int = 0) -> Tensor:
    """Ids [tokens] of the tiny tokenizer."""
    return torch.randint(N_TOKENS, (n_tokens,), generator=torch.Generator().manual_seed(seed))
