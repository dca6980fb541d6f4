"""Linear layers in four-bit groups, as GGUF files store them, for passes of few tokens on a CPU.

One token needs every weight once, so the bytes read are what it costs: a quarter of bfloat16's. Many tokens share what
is read, and for them the dense form is as fast. Both forms round a weight to bfloat16's precision, so they differ by no
more than two orders of summation do.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from runtime.models.dequantize import BLOCKS, float16_at, halves, parts_of_k
from runtime.models.linear import Linear
from runtime.native import multiply as native
from runtime.native.linear import LANES
from runtime.native.machine import can_compile


@dataclass(frozen=True, slots=True)
class Groups:
    """Weights [rows, columns] as `codes` (0 to 15, uint8, of the same shape) times `scales` plus `offsets`
    [rows, columns / GROUP] in float32.

    With two `digits` the columns are twice those of the weights: a weight is the sum of its code in either half.
    """

    codes: Tensor
    scales: Tensor
    offsets: Tensor
    digits: int = 1


class PackedLinear(Linear):
    """A linear layer in both forms. All is in bfloat16; the dense one is `weight`."""

    def __init__(self, weight: Tensor, parts: Iterable[Groups], bias: Tensor | None = None) -> None:
        """`parts` are rows one below the other, as many digits in all; they are packed as they come."""
        super().__init__(weight, bias)
        self._n_rows, self._digits = len(weight), 1
        self._few = native.few()
        packed = []
        for part in in_tiles(parts):
            self._digits = part.digits
            # Offsets are counted from code 8, where they are small and rounding them costs little.
            packed.append(native.packed(part.codes, part.scales, part.offsets + 8 * part.scales))
        self._packed = torch.cat(packed)

    @property
    def n_bytes(self) -> int:
        return super().n_bytes + self._packed.nbytes

    def __call__(self, hidden: Tensor) -> Tensor:
        # What changes nothing is not called: a pass of one token has 121 of these, and a call costs some microseconds.
        if hidden.shape[0] > self._few:
            return super().__call__(hidden)
        product = native.multiply(hidden if self._digits == 1 else hidden.repeat(1, self._digits), self._packed)
        if product.shape[1] != self._n_rows:
            product = product[:, : self._n_rows]
        return product if self.bias is None else product + self.bias


def packed_bytes(n_rows: int, n_columns: int, digits: int) -> int:
    """What the packed form of a layer takes, beside the dense one."""
    return native.packed_bytes(n_rows, n_columns * digits)


def digits_of(quantization: GGMLQuantizationType) -> int | None:
    """Four-bit digits that a weight is stored in; None where the format is not packed."""
    if quantization not in READERS:
        return None
    return 2 if quantization is GGMLQuantizationType.Q8_0 else 1


def can_pack(device: torch.device) -> bool:
    """Whether there is a kernel for the packed form here."""
    return device.type == "cpu" and can_compile()


def read_groups(stored: NDArray[np.uint8], quantization: GGMLQuantizationType) -> Groups | None:
    """The groups of `stored` [rows, bytes]; None where the format has none of this size with four-bit codes."""
    if quantization not in READERS:
        return None
    block_bytes = BLOCKS[quantization][0]
    blocks = torch.from_numpy(stored.reshape(-1, block_bytes).copy())
    digits = [_rows(len(stored), *parts) for parts in READERS[quantization](blocks)]
    codes, scales, offsets = (torch.cat(parts, 1) for parts in zip(*digits, strict=True))
    return Groups(codes, scales, offsets, len(digits))


def in_tiles(parts: Iterable[Groups]) -> Iterator[Groups]:
    """The rows of `parts`, cut anew so that each part but the last has a multiple of what a tile holds."""
    left: tuple[Tensor, ...] | None = None
    digits = 1
    for part in parts:
        rows: tuple[Tensor, ...] = (part.codes, part.scales, part.offsets)
        digits = part.digits
        if left is not None:
            rows = tuple(torch.cat(both) for both in zip(left, rows, strict=True))
        whole = len(rows[0]) // LANES * LANES
        if whole:
            yield Groups(rows[0][:whole], rows[1][:whole], rows[2][:whole], digits)
        left = tuple(numbers[whole:] for numbers in rows) if whole < len(rows[0]) else None
    if left is not None:
        yield Groups(left[0], left[1], left[2], digits)


Parts = tuple[Tensor, Tensor, Tensor]
"""Codes, scales and offsets of blocks, [blocks, ...]."""


def _rows(n_rows: int, *parts: Tensor) -> list[Tensor]:
    return [part.reshape(n_rows, -1) for part in parts]


def _q4_0(blocks: Tensor) -> list[Parts]:
    scales = float16_at(blocks, 0)
    return [(halves(blocks[:, 2:]), scales, -8 * scales)]


def _q4_1(blocks: Tensor) -> list[Parts]:
    return [(halves(blocks[:, 4:]), float16_at(blocks, 0), float16_at(blocks, 2))]


def _q4_k(blocks: Tensor) -> list[Parts]:
    codes, scales, minima = parts_of_k(blocks)
    return [(codes, scales, -minima)]


def _q8_0(blocks: Tensor) -> list[Parts]:
    """Eight bits are two digits of four: 16 * (high - 8) + low."""
    scales, bytes_ = float16_at(blocks, 0), blocks[:, 2:]
    high = (bytes_ >> 4) ^ 8  # a signed digit counted from 8
    return [(high, 16 * scales, -128 * scales), (bytes_ & 15, scales, torch.zeros_like(scales))]


READERS: dict[GGMLQuantizationType, Callable[[Tensor], list[Parts]]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q8_0: _q8_0,
}
