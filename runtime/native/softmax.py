"""The softmax of a prompt block's scores, where they lie: PyTorch's takes three times as long in bfloat16."""

import ctypes
from collections.abc import Callable
from functools import cache
from math import e, log2

import torch
from llvmlite import ir
from torch import Tensor

from runtime.native.code import FLOAT, I16, I32, POINTER, VOID, Code, Fields, vector
from runtime.native.joining import NO_SCORE
from runtime.native.machine import PARALLEL, Compiled

LANES = 16
# What the function is given, as i64 each.
FIELDS = ("scores", "sums", "n_rows", "n_columns", "n_tokens", "position", "n_threads", "next")


def write_softmax() -> str:
    """A module with `weigh(fields)`, which calls `PARALLEL(function, fields, n_threads, 0)` as GOMP_parallel is."""
    module = ir.Module("softmax")
    kind = ir.FunctionType(VOID, [POINTER])
    work, weigh = (ir.Function(module, kind, name) for name in ("work", "weigh"))
    _Work(work).write()
    parallel = ir.Function(module, ir.FunctionType(VOID, [POINTER, POINTER, I32, I32]), PARALLEL)
    code = Code(weigh)
    code.run_parallel(parallel, work, Fields(code, weigh.args[0], FIELDS))
    code.end()
    return str(module)


class _Work(Code):
    """What each thread does: it takes one row after the other."""

    def write(self) -> None:
        b, n, fields = self.b, self.number, Fields(self, self.function.args[0], FIELDS)
        scores, sums = fields.pointer("scores"), fields.pointer("sums")
        n_columns, n_tokens, position = (fields.number(name) for name in ("n_columns", "n_tokens", "position"))
        with self.jobs(fields.address("next"), fields.number("n_rows")) as row:
            self.row = self.at(scores, b.mul(row, b.mul(n_columns, n(2))))
            seen = self.smaller(b.add(b.add(position, b.srem(row, n_tokens)), n(1)), n_columns)
            self.store(self._weigh(seen), sums, b.mul(row, n(4)), align=4)
            self._clear(seen, n_columns)
        self.end()

    def _weigh(self, seen: ir.Value) -> ir.Value:
        """Makes the first `seen` scores of a row weights, the largest 1; gives their sum."""
        b, n = self.b, self.number
        whole = b.mul(b.sdiv(seen, n(LANES)), n(LANES))
        parts = ((n(0), whole, LANES), (whole, seen, 1))
        largest = self.variable(self.floats(NO_SCORE, 1))
        for start, stop, width in parts:
            most = self.variable(self.floats(NO_SCORE, width))
            with self.loop(start, stop, width) as column:
                most.value = self.larger(most.value, self._read(column, width))
            for lane in range(width):
                largest.value = self.larger(largest.value, self._lane(most.value, lane))
        total = self.variable(ir.Constant(FLOAT, 0))
        for start, stop, width in parts:
            spread = self.spread(b.extract_element(largest.value, ir.Constant(I32, 0)), width)
            found = self.variable(self.floats(0, width))
            with self.loop(start, stop, width) as column:
                below = b.fsub(self._read(column, width), spread)
                weight = self.exp2(b.fmul(below, self.floats(log2(e), width)))
                self.store(self.halves(weight), self.row, b.mul(column, n(2)))
                found.value = b.fadd(found.value, weight)
            total.value = b.fadd(total.value, self.sum(found.value))
        return total.value

    def _clear(self, seen: ir.Value, n_columns: ir.Value) -> None:
        """No weight for the columns that a row does not see."""
        b, n = self.b, self.number
        whole = b.add(seen, b.mul(b.sdiv(b.sub(n_columns, seen), n(LANES)), n(LANES)))
        for start, stop, width in ((seen, whole, LANES), (whole, n_columns, 1)):
            with self.loop(start, stop, width) as column:
                self.store(ir.Constant(vector(I16, width), [0] * width), self.row, b.mul(column, n(2)))

    def _read(self, column: ir.Value, width: int) -> ir.Value:
        return self.widened(self.load(vector(I16, width), self.row, self.b.mul(column, self.number(2))))

    def _lane(self, value: ir.Value, lane: int) -> ir.Value:
        return self.b.shuffle_vector(value, value, ir.Constant(vector(I32, 1), [lane]))


@cache
def compiled() -> tuple[Callable[[int], None], Compiled]:
    """The function, and what keeps it alive. It takes the address of its fields."""
    code = Compiled(write_softmax())
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address("weigh")), code


def weigh_in_place(scores: Tensor, n_tokens: int, position: int) -> Tensor:
    """Makes scores [rows, keys] weights before division by what is given, the sum of each row [rows, 1] in float32.

    bfloat16 and contiguous. Rows are of one token after the other, `n_tokens` of them, then of the same once more; the
    first sees `position` + 1 keys and each one key more. What it does not see weighs nothing, whatever it scored.
    """
    n_rows, n_keys = scores.shape
    sums = torch.empty(n_rows, 1)
    fields = (ctypes.c_int64 * len(FIELDS))(
        *(scores.data_ptr(), sums.data_ptr(), n_rows, n_keys, n_tokens, position, torch.get_num_threads(), 0)
    )
    compiled()[0](ctypes.addressof(fields))
    return sums
