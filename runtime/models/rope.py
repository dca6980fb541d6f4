"""Rotary position embeddings (arXiv 2104.09864), their frequencies from transformers' own initialisers."""

import copy
import math
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

YARN_STEP = 0.5  # factors are rounded up to a multiple, so that a few more tokens seldom need another factor
LARGEST_YARN_FACTOR = 4.0


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

    Only a model without a scaling of its own is stretched.
    """
    if n_tokens <= trained_context or _kind(config) != "default":
        return 1.0
    return math.ceil(n_tokens / trained_context / YARN_STEP) * YARN_STEP


def longest_context(config: Any, trained_context: int) -> int:
    """Tokens that can be read with the largest YaRN factor in use here."""
    stretch = LARGEST_YARN_FACTOR if _kind(config) == "default" and not _slides(config) else 1.0
    return int(trained_context * stretch)


def build_rope(
    config: Any, trained_context: int, n_tokens: int, device: torch.device, factors: Tensor | None = None
) -> Rope:
    """RoPE for a sequence of up to `n_tokens`; `factors` [head_dim / 2] divide the frequencies (GGUF's llama3)."""
    kind = _kind(config)
    factor = yarn_factor(n_tokens, config, trained_context)
    if factor > 1:
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
        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=n_tokens)
    if factors is not None:
        frequencies = frequencies / factors.float()
    return Rope(frequencies.to(device, torch.float32), scaling)


def _kind(config: Any) -> str:
    return str((config.rope_parameters or {}).get("rope_type", "default"))


def _slides(config: Any) -> bool:
    return bool(getattr(config, "sliding_window", None)) and bool(getattr(config, "use_sliding_window", True))
