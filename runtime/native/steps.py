"""The steps of `runtime.native.small` as functions of tensors. All are for bfloat16 on a CPU and few tokens."""

import ctypes
import struct
from functools import cache
from typing import Any

import torch
from torch import Tensor

from runtime.native.machine import Compiled
from runtime.native.small import LANES, write_small


@cache
def compiled() -> tuple[Any, Any, Any, Compiled]:
    """The three functions, and what keeps them alive."""
    code = Compiled(write_small())
    kinds = {"norm": 6, "gate": 4, "rotate": 8}
    norm, gate, rotate = (
        ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * n)(code.address(name)) for name, n in kinds.items()
    )
    return norm, gate, rotate, code


def serves(*sizes: int) -> bool:
    """Whether rows of these sizes can be read in whole vectors."""
    return all(size % LANES == 0 for size in sizes)


@cache
def _bits(number: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", number))[0])


def norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The root-mean-square norm of `hidden` [tokens, size], contiguous."""
    output = torch.empty_like(hidden)
    n_tokens, size = hidden.shape
    compiled()[0](hidden.data_ptr(), weight.data_ptr(), output.data_ptr(), n_tokens, size, _bits(epsilon))
    return output


def gate(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of `gate_up` [tokens, 2 * size], contiguous, of which the gate is the first half."""
    n_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    output = torch.empty(n_tokens, size, dtype=gate_up.dtype)
    compiled()[1](gate_up.data_ptr(), output.data_ptr(), n_tokens, size)
    return output


def rotate_in_place(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """As `runtime.models.rope.rotate`; `heads` [tokens, heads, head_dim] may be a part of a larger tensor."""
    token_stride, head_stride, _ = heads.stride()
    compiled()[2](
        *(heads.data_ptr(), cos.data_ptr(), sin.data_ptr()),
        *(len(heads), token_stride, heads.shape[1], head_stride, cos.shape[-1]),
    )
