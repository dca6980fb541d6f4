"""The attention of `runtime.native.attention` as a backend."""

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from math import e, log2

import torch
from llvmlite import ir
from torch import Tensor

from runtime.native.attention import HEAD_UNIT, WIDTHS, AttentionWork
from runtime.native.code import I32, POINTER, VOID
from runtime.native.float_attention import FloatWork
from runtime.native.joining import FIELDS, Shape, scratch_floats, write_entry
from runtime.native.machine import (
    PARALLEL,
    Compiled,
    Products,
    can_compile,
    cpu_multiplies_pairs_fast,
    cpu_multiplies_tiles,
)
from runtime.native.pair_attention import PairWork
from runtime.native.tile_attention import TileWork
from runtime.native.widened_attention import WidenedWork

PART = 512  # keys in a part, at least; parts do not go by the threads there are, so that neither does the sum
MOST_PARTS = 8
UNWIDENED_ROWS = 4  # a KV head, for which widening keys by themselves costs more than it saves (Zen 3)

WORK: dict[Products, type[AttentionWork]] = {
    "pairs": PairWork,
    "floats": FloatWork,
    "widened": WidenedWork,
    "tiles": TileWork,
}

Function = Callable[[int], None]


def write_attention(shape: Shape) -> str:
    """A module with `attend(fields)`, which calls `PARALLEL(function, fields, n_threads, 0)` as GOMP_parallel is."""
    module = ir.Module(shape.name)
    kind = ir.FunctionType(VOID, [POINTER])
    work, attend = (ir.Function(module, kind, name) for name in ("work", "attend"))
    WORK[shape.products](work, shape).write()
    parallel = ir.Function(module, ir.FunctionType(VOID, [POINTER, POINTER, I32, I32]), PARALLEL)
    write_entry(attend, work, parallel, shape)
    return str(module)


@cache
def compiled(shape: Shape) -> tuple[Function, Compiled]:
    """The function, and what keeps it alive. It takes the address of its fields."""
    code = Compiled(write_attention(shape))
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address("attend")), code


def widths_of(products: Products) -> tuple[int, ...]:
    """The widths that code is made for: only pairs gain by narrower vectors."""
    return WIDTHS if products == "pairs" else WIDTHS[-1:]


def products_here(n_rows: int) -> Products:
    """What this processor multiplies so many query rows a KV head best by."""
    if cpu_multiplies_tiles():
        return "tiles"
    if cpu_multiplies_pairs_fast():
        return "pairs"
    return "floats" if n_rows <= UNWIDENED_ROWS else "widened"


def serves(head_dim: int, dtype: torch.dtype) -> bool:
    return can_compile() and dtype == torch.bfloat16 and head_dim % HEAD_UNIT == 0


def most_rows(products: Products | None = None) -> int:
    """Query rows a KV head that can be attended for at a time; `products` None asks the processor."""
    return WORK[products or products_here(UNWIDENED_ROWS + 1)].most_tiles * WIDTHS[-1]


def attend_natively(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    products: Products | None = None,
) -> Tensor:
    """As `Attend`, for bfloat16 on a CPU, heads that `serves` and `most_rows` query rows.

    `products` None asks the processor.
    """
    n_heads, n_tokens, head_dim = queries.shape
    n_kv_heads, n_held, _ = keys.shape
    group = n_heads // n_kv_heads
    n_rows = group * n_tokens
    if products is None:
        products = products_here(n_rows)
    widths = widths_of(products)
    width = next((width for width in widths if n_rows <= width), widths[-1])
    n_parts = max(1, min(MOST_PARTS, n_held // PART))
    output = torch.empty(n_tokens, n_heads, head_dim, dtype=torch.bfloat16)
    n_floats = n_kv_heads * n_parts * -(-n_rows // width) * scratch_floats(head_dim, width)
    scratch = torch.empty(n_floats, dtype=torch.float32)
    query_head, query_token, _ = queries.stride()
    fields = (ctypes.c_int64 * len(FIELDS))(
        queries.data_ptr(),
        2 * query_head,
        2 * query_token,
        keys.data_ptr(),
        2 * keys.stride(0),
        values.data_ptr(),
        2 * values.stride(0),
        output.data_ptr(),
        n_kv_heads,
        group,
        n_tokens,
        n_held,
        n_parts,
        torch.get_num_threads(),
        scratch.data_ptr(),
        struct.unpack("<i", struct.pack("<f", scale * log2(e)))[0],
        0,
    )
    compiled(Shape(head_dim, width, products))[0](ctypes.addressof(fields))
    return output.transpose(0, 1)
