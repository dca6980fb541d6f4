"""The `flash-attn` package (arXiv 2307.08691) as an attention backend, where it imports and the card can run it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from runtime.models.attention import Attend

LARGEST_HEAD_DIM = 256
LEAST_CAPABILITY = (8, 0)  # Ampere


class FlashAttention:
    """An `Attend` by `flash_attn_func`, which takes grouped heads and windows as they are.

    Its causal mask ends at the newest key, as ours does, from version 2.1 on.
    """

    def __init__(self, function: Callable[..., Tensor], otherwise: "Attend") -> None:
        """`otherwise` attends for heads wider than the kernels have."""
        self._function = function
        self._otherwise = otherwise

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        if queries.shape[2] > LARGEST_HEAD_DIM:
            return self._otherwise(queries, keys, values, scale, window)
        # [1, tokens, heads, head_dim], by strides alone: only the last axis must be contiguous.
        laid_out = (part.transpose(0, 1)[None] for part in (queries, keys, values))
        before = -1 if window is None else window - 1  # it counts the tokens before a query, without its own
        mixed = self._function(*laid_out, softmax_scale=scale, causal=True, window_size=(before, 0 if window else -1))
        return mixed[0].transpose(0, 1)


def find_flash_attn(device: torch.device, dtype: torch.dtype) -> Callable[..., Tensor] | None:
    """`flash_attn_func` where it imports and takes tensors of `dtype` on `device`; else None."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return None
    try:
        from flash_attn import flash_attn_func
    except ImportError:  # not installed, or built for another PyTorch
        return None
    function: Callable[..., Tensor] = flash_attn_func
    return function
