"""Attention of more query rows in float32 products: keys and values of a block are widened once for all of them.

What is widened lies as a matrix product wants it: keys with those side by side that one vector holds, values as they
are. A row's scores and sums then take a product for each number, and no crosswise addition.
"""

from collections.abc import Callable

from llvmlite import ir

from runtime.native.attention import BLOCK
from runtime.native.code import FLOAT, I32, vector
from runtime.native.float_attention import FLOATS, LANES, UNIT, FloatWork, RowsWriter
from runtime.native.joining import Shape
from runtime.native.machine import cpu_has_wide_vectors

ROWS_AT_ONCE = 8 if cpu_has_wide_vectors() else 4  # eight sums to add to in turn, each of 16 floats or of eight
SIDE = 8  # keys, and pairs of their numbers, that change places at a time
UNROLLED = 4

EIGHT = vector(I32, SIDE)


class WidenedWork(FloatWork):
    """What each thread does, block by block."""

    most_tiles = 16

    def __init__(self, function: ir.Function, shape: Shape) -> None:
        super().__init__(function, shape)
        self.wide_keys = self.room(4 * BLOCK * shape.head_dim)  # [number, key]
        self.wide_values = self.room(4 * BLOCK * shape.head_dim)  # [key, number]

    def block(self, first: ir.Value, stop: ir.Value) -> None:
        self._widen_keys(first, stop)
        self._in_parts(lambda count, row: self._score(count, row, first, stop))
        count = self.b.sub(stop, first)
        with self.loop(self.number(0), self.n_rows) as row:
            self._weigh(row, count)
        with self.loop(self.number(0), count) as key:
            value = self._widened(self.at(self.values, self._key_offset(self.b.add(first, key), 2)))
            for index, part in enumerate(value):
                self.store(part, self.wide_values, self.b.add(self._key_offset(key, 4), self.number(64 * index)))
        self._in_parts(lambda n_rows, row: self._mix(n_rows, row, first, stop))

    def _in_parts(self, write: RowsWriter) -> None:
        """Has code written for `ROWS_AT_ONCE` rows, and for half as many of those that are left, down to one."""
        b, n = self.b, self.number
        done: ir.Value = n(0)
        count = ROWS_AT_ONCE
        while count:
            whole = b.add(done, b.mul(b.sdiv(b.sub(self.n_rows, done), n(count)), n(count)))
            with self.loop(done, whole, count) as row:
                write(count, row)
            done, count = whole, count // 2

    def _key_offset(self, key: ir.Value, n_bytes: int) -> ir.Value:
        return self.b.mul(key, self.number(n_bytes * self.shape.head_dim))

    def _widen_keys(self, first: ir.Value, stop: ir.Value) -> None:
        """The last key stands for those after it, which no row sees."""
        b, n = self.b, self.number
        last = b.sub(stop, n(1))
        with self.loop(first, stop, SIDE) as key:
            for offset in range(0, 2 * SIDE * self.shape.head_dim, 64):
                for side in (self.keys, self.values):
                    self.fetch(side, b.add(self._key_offset(b.add(key, n(BLOCK)), 2), n(offset)))
            rows = [self._key_offset(self.smaller(b.add(key, n(side)), last), 2) for side in range(SIDE)]
            target = self.at(self.wide_keys, b.mul(b.sub(key, first), n(4)))
            for pair in range(0, self.shape.head_dim // 2, SIDE):
                numbers = [self.load(EIGHT, self.at(self.keys, row), 4 * pair) for row in rows]
                for index, pairs in enumerate(self._turned(numbers), pair):
                    # Numbers lie as in `queries`: the even ones of a unit before the odd ones.
                    place = index // LANES * UNIT + index % LANES
                    self.store(b.shl(pairs, self.ints(16, SIDE)), target, 4 * BLOCK * place)
                    self.store(b.and_(pairs, self.ints(-0x10000, SIDE)), target, 4 * BLOCK * (place + LANES))

    def _turned(self, rows: list[ir.Value]) -> list[ir.Value]:
        """A square of numbers turned round its diagonal, by exchanging ever smaller squares."""
        rows, size = list(rows), len(rows)
        lanes = range(size)
        while size := size // 2:
            # Of two rows `size` apart, the upper keeps its left squares and gets the lower's, the lower the other way.
            upper = [lane if not lane & size else len(rows) + lane - size for lane in lanes]
            lower = [lane + size if not lane & size else len(rows) + lane for lane in lanes]
            orders = [ir.Constant(vector(I32, len(rows)), order) for order in (upper, lower)]
            for row in (row for row in lanes if not row & size):
                both = rows[row], rows[row + size]
                rows[row], rows[row + size] = (self.b.shuffle_vector(*both, order) for order in orders)
        return rows

    def _score(self, count: int, row: ir.Value, first: ir.Value, stop: ir.Value) -> None:
        b, n, head_dim = self.b, self.number, self.shape.head_dim
        limits = self.limits(count, row, first, stop)
        queries = [self.at(self.queries, b.mul(b.add(row, n(one)), n(4 * head_dim))) for one in range(count)]
        with self.loop(n(0), b.sub(stop, first), LANES) as key:
            keys = self.at(self.wide_keys, b.mul(key, n(4)))
            scores = self._multiplied(queries, [self.floats(0, LANES)] * count, n(head_dim), keys, 4 * BLOCK)
            self.store_scores(scores, row, key, limits)

    def _mix(self, count: int, row: ir.Value, first: ir.Value, stop: ir.Value) -> None:
        b, n = self.b, self.number
        rows = [b.add(row, n(one)) for one in range(count)]
        factors = [self.spread(self.load(FLOAT, self.shrunk, b.mul(one, n(4)), align=4), LANES) for one in rows]
        weights = [self.at(self.weights, b.mul(one, n(4 * BLOCK))) for one in rows]
        with self.loop(n(0), n(4 * self.shape.head_dim), 4 * LANES) as offset:
            sums = [self.at(self._sums(one), offset) for one in rows]
            before = [b.fmul(self.load(FLOATS, place), factor) for place, factor in zip(sums, factors, strict=True)]
            values = self.at(self.wide_values, offset)
            after = self._multiplied(weights, before, b.sub(stop, first), values, 4 * self.shape.head_dim)
            for place, value in zip(sums, after, strict=True):
                self.store(value, place)

    def _multiplied(
        self, rows: list[ir.Value], totals: list[ir.Value], count: ir.Value, vectors: ir.Value, stride: int
    ) -> list[ir.Value]:
        """`totals` and the products of each row's first `count` numbers with as many vectors, `stride` bytes apart."""
        b, n = self.b, self.number
        sums = [self.variable(total) for total in totals]

        def add(index: ir.Value, offset: int) -> None:
            vector_ = self.load(FLOATS, vectors, b.add(b.mul(index, n(stride)), n(stride * offset)))
            for row, sum_ in zip(rows, sums, strict=True):
                number = self.load(FLOAT, row, b.add(b.mul(index, n(4)), n(4 * offset)), align=4)
                sum_.value = self.fma(self.spread(number, LANES), vector_, sum_.value)

        self._unrolled(count, add)
        return [sum_.value for sum_ in sums]

    def _unrolled(self, count: ir.Value, write: Callable[[ir.Value, int], None]) -> None:
        b, n = self.b, self.number
        whole = b.mul(b.sdiv(count, n(UNROLLED)), n(UNROLLED))
        with self.loop(n(0), whole, UNROLLED) as index:
            for offset in range(UNROLLED):
                write(index, offset)
        with self.loop(whole, count) as index:
            write(index, 0)
