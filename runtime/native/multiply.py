"""The linear layer of `runtime.native.linear`, and the form it reads."""

import ctypes
from collections.abc import Callable
from functools import cache

import torch
from llvmlite import ir
from torch import Tensor
from torch.nn.functional import pad

from runtime.native.code import I32, POINTER, VOID
from runtime.native.linear import FIELDS, GROUP, GROUP_BYTES, LANES, STEP, LinearWork, write_entry
from runtime.native.machine import PARALLEL, Compiled, Products, cpu_has_pair_products, cpu_multiplies_tiles
from runtime.native.tile_linear import TileLinearWork
from runtime.native.tiles import ROWS

FEW: dict[Products, int] = {"pairs": 32, "tiles": 64, "floats": 128}  # where floats are multiplied, dense ones are too
JOBS_A_THREAD = 4  # a thread that other work holds up leaves its jobs to the rest


def write_linear(products: Products) -> str:
    """A module with `multiply(fields)`."""
    module = ir.Module("linear")
    kind = ir.FunctionType(VOID, [POINTER])
    work, multiply = (ir.Function(module, kind, name) for name in ("work", "multiply"))
    parallel = ir.Function(module, ir.FunctionType(VOID, [POINTER, POINTER, I32, I32]), PARALLEL)
    (TileLinearWork if products == "tiles" else LinearWork)(work, products).write()
    write_entry(multiply, work, parallel, widens=products == "floats")
    return str(module)


def products_here() -> Products:
    """What this processor multiplies best by."""
    if cpu_multiplies_tiles():
        return "tiles"
    return "pairs" if cpu_has_pair_products() else "floats"


def few() -> int:
    """Up to so many tokens the packed form is faster than the dense one."""
    return FEW[products_here()]


@cache
def compiled(products: Products) -> tuple[Callable[[int], None], Compiled]:
    """The function, and what keeps it alive. It takes the address of its fields."""
    code = Compiled(write_linear(products))
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address("multiply")), code


def packed(codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Weights `(codes - 8) * scales + zeros` as `multiply` reads them, [tiles, groups, bytes] in uint8.

    `codes` [rows, columns], 0 to 15, in uint8; `scales` and `zeros` [rows, columns / GROUP], which are rounded to
    bfloat16. Rows are filled up to a multiple of LANES with zeros.
    """
    filling = -len(codes) % LANES
    codes, scales, zeros = (pad(part, (0, 0, 0, filling)) for part in (codes, scales, zeros))
    n_tiles, n_groups = len(codes) // LANES, scales.shape[1]
    # A byte holds a row's numbers two apart: [tile, group, step, row, number of two, half].
    steps = codes.view(n_tiles, LANES, n_groups, GROUP // STEP, 2, 2).permute(0, 2, 3, 1, 5, 4)
    bytes_ = (steps[..., 0] | (steps[..., 1] << 4)).reshape(n_tiles, n_groups, -1)
    factors = torch.stack([part.view(n_tiles, LANES, n_groups).transpose(1, 2) for part in (scales, zeros)], 2)
    factor_bytes = factors.bfloat16().contiguous().view(torch.uint8).reshape(n_tiles, n_groups, -1)
    return torch.cat([bytes_, factor_bytes], -1)


def packed_bytes(n_rows: int, n_columns: int) -> int:
    """What `packed` gives for so many weights."""
    return -(-n_rows // LANES) * (n_columns // GROUP) * GROUP_BYTES


def multiply(inputs: Tensor, weights: Tensor, products: Products | None = None) -> Tensor:
    """`inputs` [tokens, columns] in bfloat16 times `packed` weights: [tokens, tiles * LANES].

    `products` None asks the processor. Raises `ValueError` where the columns are not those of the weights.
    """
    if products is None:
        products = products_here()
    inputs = inputs.contiguous()
    (n_tokens, n_columns), (n_tiles, n_groups, _), n_threads = inputs.shape, weights.shape, torch.get_num_threads()
    if n_columns != n_groups * GROUP:
        raise ValueError(f"{n_columns} columns for weights of {n_groups * GROUP}")
    outputs = torch.empty(n_tokens, n_tiles * LANES, dtype=torch.bfloat16)
    if n_tokens == 0:
        return outputs
    sums = torch.empty((n_tokens + ROWS) * n_groups)  # of tokens that there are not, too, where tiles count them
    widened = torch.empty(n_tokens * n_columns if products == "floats" else 0)
    per_job = max(1, n_tiles // (JOBS_A_THREAD * n_threads))
    fields = (ctypes.c_int64 * len(FIELDS))(
        *(inputs.data_ptr(), weights.data_ptr(), outputs.data_ptr()),
        *(n_tokens, n_groups, n_tiles, per_job, n_threads, sums.data_ptr(), widened.data_ptr(), 0),
    )
    compiled(products)[0](ctypes.addressof(fields))
    return outputs
