"""Rotary position embeddings (arXiv 2104.09864), their frequencies from transformers' own initialisers."""

import copy
import math
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from runtime.models.spec import attention_window

STEP = 0.5  # a stretch is rounded up to a multiple, so that a few more tokens seldom need another one
LARGEST_YARN_FACTOR = 16.0  # 8,192 trained tokens become 131,072; how well so much is read is another matter


class Rope:
    """Cosines and sines by position, computed once and kept."""

    def __init__(self, inverse_frequencies: Tensor, scaling: float) -> None:
        """`inverse_frequencies` [head_dim / 2] float32; `scaling` multiplies cosines and sines (YaRN's m)."""
        self._inverse_frequencies = inverse_frequencies
        self._scaling = scaling
        self._cos = self._sin = torch.empty(0)

    def at(self, positions: range, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines [tokens, head_dim] for consecutive positions."""
        if positions.stop > len(self._cos) or self._cos.dtype != dtype:
            self._tabulate(max(positions.stop, 2 * len(self._cos)), dtype)
        return self._cos[positions.start : positions.stop], self._sin[positions.start : positions.stop]

    def _tabulate(self, n_positions: int, dtype: torch.dtype) -> None:
        positions = torch.arange(n_positions, device=self._inverse_frequencies.device, dtype=torch.float32)
        angles = torch.outer(positions, self._inverse_frequencies).repeat(1, 2)  # [positions, head_dim]
        self._cos = (angles.cos() * self._scaling).to(dtype)
        self._sin = (angles.sin() * self._scaling).to(dtype)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [tokens, heads, head_dim] by each token's angle; `cos`, `sin` [tokens, head_dim]."""
    first, second = heads.chunk(2, -1)
    return heads * cos.unsqueeze(1) + torch.cat((-second, first), -1) * sin.unsqueeze(1)


def yarn_factor(n_tokens: int, config: Any, trained_context: int) -> float:
    """The smallest YaRN factor (arXiv 2309.00071) that makes `n_tokens` fit; 1 when none is needed.

    Only a model without a scaling of its own is stretched by YaRN. For one with dynamic NTK scaling it is the
    stretch of that: frequencies are fixed for a whole sequence, as keys are kept rotated.
    """
    if n_tokens <= trained_context or rope_kind(config) not in ("default", "dynamic"):
        return 1.0
    return math.ceil(n_tokens / trained_context / STEP) * STEP


def longest_context(config: Any, trained_context: int) -> int:
    """Tokens that can be read with the largest stretch in use here, within the window of a model that has one."""
    stretches = {"default": LARGEST_YARN_FACTOR, "dynamic": (config.rope_parameters or {}).get("factor", 1.0)}
    stretch = 1.0 if attention_window(config) else stretches.get(rope_kind(config), 1.0)
    return int(trained_context * stretch)


def build_rope(config: Any, trained_context: int, n_tokens: int, device: torch.device) -> Rope:
    """RoPE for a sequence of up to `n_tokens`."""
    kind = rope_kind(config)
    factor = yarn_factor(n_tokens, config, trained_context)
    if kind == "default" and factor > 1:
        config, kind = copy.deepcopy(config), "yarn"
        config.rope_parameters = {
            "rope_type": "yarn",
            "rope_theta": config.rope_parameters["rope_theta"],
            "factor": factor,
            "original_max_position_embeddings": trained_context,
        }
    if kind == "default":
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies, scaling = 1.0 / config.rope_parameters["rope_theta"] ** exponents, 1.0
    else:
        n_tokens = math.ceil(factor * trained_context)  # dynamic NTK; the other kinds do not look at it
        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=n_tokens)
    return Rope(frequencies.to(device, torch.float32), scaling)


def rope_kind(config: Any) -> str:
    """Which of transformers' kinds of RoPE the config asks for."""
    return str((config.rope_parameters or {}).get("rope_type", "default"))
