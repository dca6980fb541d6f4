"""GGUF's block quantisations to numbers. The common ones in torch; the rest by `gguf`.

A stored row is a run of blocks; each format's docstring gives a block's bytes in their order.
"""

from collections.abc import Callable

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as dequantize_by_gguf
from numpy.typing import NDArray
from torch import Tensor

from runtime.errors import UnsupportedModel

STEP = 32_768  # numbers made at once: what they pass through stays in the processor's cache


def dequantize(stored: NDArray[np.uint8], quantization: GGMLQuantizationType, out: Tensor) -> None:
    """Fill `out`, in its own dtype, from `stored` [rows, bytes]; raises `UnsupportedModel` for what cannot be read."""
    if quantization in PLAIN:
        out.copy_(torch.from_numpy(stored.copy()).view(PLAIN[quantization]).view(out.shape))
        return
    if quantization not in BLOCKS:
        out.copy_(_by_gguf(stored, quantization).view(out.shape))
        return
    block_bytes, block_size, read = BLOCKS[quantization]
    blocks, numbers = stored.reshape(-1, block_bytes), out.view(-1, block_size)
    step = STEP // block_size
    for start in range(0, len(blocks), step):
        numbers[start : start + step] = read(torch.from_numpy(blocks[start : start + step].copy()))


def _by_gguf(stored: NDArray[np.uint8], quantization: GGMLQuantizationType) -> Tensor:
    try:
        return torch.from_numpy(np.ascontiguousarray(dequantize_by_gguf(stored, quantization)))
    except NotImplementedError as error:
        known = tuple(kind.name for kind in (*PLAIN, *BLOCKS))
        raise UnsupportedModel(f"GGUF quantisation {quantization.name}", known) from error


def _q8_0(blocks: Tensor) -> Tensor:
    """Scale, 32 signed bytes."""
    numbers: Tensor = blocks[:, 2:].view(torch.int8).float().mul_(float16_at(blocks, 0))
    return numbers


def _q4_0(blocks: Tensor) -> Tensor:
    """Scale, 16 bytes of two numbers around 8: the low halves are the first sixteen."""
    return halves(blocks[:, 2:]).float().sub_(8).mul_(float16_at(blocks, 0))


def _q4_1(blocks: Tensor) -> Tensor:
    """Scale, offset, 16 bytes as in `_q4_0`."""
    return halves(blocks[:, 4:]).float().mul_(float16_at(blocks, 0)).add_(float16_at(blocks, 2))


def _q4_k(blocks: Tensor) -> Tensor:
    """Scale of scales, scale of minima, 8 six-bit scales and minima in 12 bytes, 4 runs of 32 bytes of two numbers."""
    codes, scales, minima = parts_of_k(blocks)
    return codes.float().mul_(scales.unsqueeze(2)).sub_(minima.unsqueeze(2)).flatten(1)


def parts_of_k(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [blocks, 8, 32], scales and minima [blocks, 8] of Q4_K."""
    first, second, both = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([first & 63, (both & 15) | ((first >> 2) & 48)], 1).float() * float16_at(blocks, 0)
    minima = torch.cat([second & 63, (both >> 4) | ((second >> 2) & 48)], 1).float() * float16_at(blocks, 2)
    runs = blocks[:, 16:].unflatten(1, (4, 32))
    return torch.stack([runs & 15, runs >> 4], 2).flatten(1, 2), scales, minima


def _q6_k(blocks: Tensor) -> Tensor:
    """128 bytes of low halves, 64 of two-bit tops, 16 signed scales, scale of scales; 256 numbers around 32."""
    low = blocks[:, :128].unflatten(1, (2, 1, 64))
    top = blocks[:, 128:192].unflatten(1, (2, 1, 32))
    low = torch.cat([low & 15, low >> 4], 2).flatten(1)  # [blocks, 256]
    top = torch.cat([(top >> shift) & 3 for shift in (0, 2, 4, 6)], 2).flatten(1)
    scales = blocks[:, 192:208].view(torch.int8).float() * float16_at(blocks, 208)
    numbers: Tensor = (low | (top << 4)).float().sub_(32).unflatten(1, (16, 16))
    return numbers.mul_(scales.unsqueeze(2)).flatten(1)


def float16_at(blocks: Tensor, place: int) -> Tensor:
    """The half-precision number at byte `place` of each block, [blocks, 1]."""
    return blocks[:, place : place + 2].contiguous().view(torch.float16).float()


def halves(pairs: Tensor) -> Tensor:
    """Low then high halves of the bytes, [blocks, 2 * bytes]."""
    return torch.cat([pairs & 15, pairs >> 4], 1)


PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
BLOCKS: dict[GGMLQuantizationType, tuple[int, int, Callable[[Tensor], Tensor]]] = {
    GGMLQuantizationType.Q8_0: (34, 32, _q8_0),
    GGMLQuantizationType.Q4_0: (18, 32, _q4_0),
    GGMLQuantizationType.Q4_1: (20, 32, _q4_1),
    GGMLQuantizationType.Q4_K: (144, 256, _q4_k),
    GGMLQuantizationType.Q6_K: (210, 256, _q6_k),
}
