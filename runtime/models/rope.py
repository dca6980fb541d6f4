"""Rotary position embeddings (arXiv 2104.09864), their frequencies from transformers' own initialisers."""

import copy
import math
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from runtime.models.spec import attention_window, rope_parameters

STEP = 0.5  # a stretch is rounded up to a multiple, so that a few more tokens seldom need another one
LARGEST_YARN_FACTOR = 16.0  # 8,192 trained tokens become 131,072; how well so much is read is another matter


class Rope:
    """Cosines and sines by position, computed once and kept."""

    def __init__(self, inverse_frequencies: Tensor, scaling: float) -> None:
        """`inverse_frequencies` [rotary_dim / 2] float32; `scaling` multiplies cosines and sines (YaRN's m)."""
        self._inverse_frequencies = inverse_frequencies
        self._scaling = scaling
        self._cos = self._sin = torch.empty(0)

    def on(self, device: torch.device) -> "Rope":
        """The same on another device."""
        return Rope(self._inverse_frequencies.to(device), self._scaling)

    def at(self, positions: range, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines [tokens, 1, rotary_dim] for consecutive positions; of the sines the first half is negative,
        as `rotate` needs them."""
        if positions.stop > len(self._cos) or self._cos.dtype != dtype:
            self._tabulate(max(positions.stop, 2 * len(self._cos)), dtype)
        return self._cos[positions.start : positions.stop], self._sin[positions.start : positions.stop]

    def _tabulate(self, n_positions: int, dtype: torch.dtype) -> None:
        positions = torch.arange(n_positions, device=self._inverse_frequencies.device, dtype=torch.float32)
        angles = torch.outer(positions, self._inverse_frequencies).unsqueeze(1)  # [positions, 1, rotary_dim / 2]
        cos, sin = angles.cos() * self._scaling, angles.sin() * self._scaling
        self._cos = torch.cat((cos, cos), -1).to(dtype)
        self._sin = torch.cat((-sin, sin), -1).to(dtype)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [tokens, heads, head_dim] by each token's angle; `cos`, `sin` [tokens, 1, rotary_dim] as `Rope.at` gives.

    What a head has beyond `rotary_dim` stays as it is.
    """
    rotary_dim = cos.shape[-1]
    if rotary_dim < heads.shape[-1]:
        return torch.cat((rotate(heads[..., :rotary_dim], cos, sin), heads[..., rotary_dim:]), -1)
    first, second = heads.chunk(2, -1)
    return torch.addcmul(heads * cos, torch.cat((second, first), -1), sin)


def stretch(n_tokens: int, config: Any, trained_context: int) -> float:
    """How far the frequencies for a sequence of `n_tokens` are stretched; 1 when they are the model's shortest.

    The smallest YaRN factor (arXiv 2309.00071) that makes `n_tokens` fit, where the model has no scaling of its own;
    with dynamic NTK scaling the stretch of that. LongRoPE knows two states, of which this gives the lengths' ratio.
    Frequencies are fixed for a whole sequence, as keys are kept rotated.
    """
    if (switch := switch_length(config)) is not None:
        return 1.0 if n_tokens <= switch else trained_context / switch
    if n_tokens <= trained_context or rope_kind(config) not in ("default", "dynamic"):
        return 1.0
    return math.ceil(n_tokens / trained_context / STEP) * STEP


def planned_length(n_tokens: int, config: Any, trained_context: int) -> int:
    """The longest sequence that has the same frequencies as one of `n_tokens`, as far as that costs nothing."""
    switch = switch_length(config)
    return switch if switch is not None and n_tokens <= switch else max(n_tokens, trained_context)


def switch_length(config: Any) -> int | None:
    """Tokens up to which LongRoPE (arXiv 2402.13753) uses its short factors; None where it knows but one list."""
    rope = rope_parameters(config)
    if rope.get("rope_type") != "longrope" or rope["short_factor"] == rope["long_factor"]:
        return None
    return int(rope["original_max_position_embeddings"])


def longest_context(config: Any, trained_context: int) -> int:
    """Tokens that can be read with the largest stretch in use here; models with sliding layers are not stretched."""
    stretches = {"default": LARGEST_YARN_FACTOR, "dynamic": rope_parameters(config).get("factor", 1.0)}
    largest = 1.0 if attention_window(config) else stretches.get(rope_kind(config), 1.0)
    return int(trained_context * largest)


def build_ropes(config: Any, trained_context: int, n_tokens: int, device: torch.device) -> tuple[Rope, ...]:
    """The rotary embeddings for a sequence of up to `n_tokens`, by `Spec.rope_of`: the model's main one, and that of
    its sliding layers where they have their own."""
    main, local = rope_parameters(config), (config.rope_parameters or {}).get("sliding_attention")
    factor = stretch(n_tokens, config, trained_context)
    if factor > 1 and rope_kind(config) == "default":
        main = {
            "rope_type": "yarn",
            "rope_theta": main["rope_theta"],
            "factor": factor,
            "original_max_position_embeddings": trained_context,
        }
    if rope_kind(config) == "dynamic":
        n_tokens = math.ceil(factor * trained_context)
    return tuple(_rope(config, parameters, n_tokens, device) for parameters in (main, local) if parameters)


def _rope(config: Any, parameters: dict[str, Any], n_tokens: int, device: torch.device) -> Rope:
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        rotary_dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
        frequencies, scaling = 1.0 / parameters["rope_theta"] ** exponents, 1.0
    else:
        config = copy.deepcopy(config)
        config.rope_parameters = dict(parameters)
        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=n_tokens)
    return Rope(frequencies.to(device, torch.float32), scaling)


def rope_kind(config: Any) -> str:
    """Which of transformers' kinds of RoPE the config asks for."""
    return str(rope_parameters(config).get("rope_type", "default"))
