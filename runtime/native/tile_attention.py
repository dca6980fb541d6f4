"""Attention of few query rows by AMX: the processor multiplies 16 rows by 16 columns of 32 bfloat16 at a time.

A vector's lanes are query rows, as in `pair_attention`. Scores are keys times queries, so keys are read as they lie. A
tile of the right-hand side holds pairs of numbers side by side: queries are packed so, and values, once for all rows of
a block. Weights come out as [key, row] and go in as [row, key]: they change sides on the way.
"""

from llvmlite import ir

from runtime.native.attention import BLOCK, HEAD_UNIT
from runtime.native.code import I16, I32, BFloat, vector
from runtime.native.joining import NO_SCORE, Shape
from runtime.native.pair_attention import PairWork
from runtime.native.tiles import ROW_BYTES, ROWS, TILE, TileCode

KEYS = 32  # that weights in a tile's row are for
SUMS = (0, 1, 2, 3)  # tiles that products are added up in, so many that one need not wait for another
LEFT, RIGHT = (4, 5), (6, 7)


class TileWork(TileCode, PairWork):
    """What each thread does, vector of rows by vector, with the values of a block packed for all of them."""

    most_tiles = 16
    unit = KEYS

    def __init__(self, function: ir.Function, shape: Shape) -> None:
        super().__init__(function, shape)
        self.tail = self.room(2 * BLOCK * shape.head_dim)  # keys of a block that is not whole
        self.packed_values = self.room(2 * BLOCK * shape.head_dim)  # [keys / 32, numbers / 16, pair of keys, number]
        self.crossed = self.room(2 * BLOCK * ROWS)  # weights [keys / 32, row, key]
        self.configure()

    def ready(self, first: ir.Value, stop: ir.Value) -> None:
        b, n = self.b, self.number
        count, row_bytes = b.sub(stop, first), 2 * self.shape.head_dim
        self._pack_values(first, stop)
        self.block_keys = self.variable(self.at(self.keys, b.mul(first, n(row_bytes))))
        with b.if_then(b.icmp_signed("<", count, n(BLOCK))):  # tiles would be read beyond the last key
            with self.loop(n(0), b.mul(count, n(row_bytes)), ROW_BYTES) as offset:
                number = self.load(vector(I32, ROWS), self.block_keys.value, offset)
                self.store(number, self.tail, offset)
            self.block_keys.value = self.tail

    def _pack_values(self, first: ir.Value, stop: ir.Value) -> None:
        """Lays pairs of values side by side; behind the last there are zeros."""
        b, n, head_dim = self.b, self.number, self.shape.head_dim
        count, last = b.sub(stop, first), b.sub(stop, n(1))
        n_pairs = b.sdiv(b.add(count, n(1)), n(2))

        def place(pair: ir.Value) -> ir.Value:
            group = b.mul(b.sdiv(pair, n(ROWS)), n(2 * KEYS * head_dim))
            return self.at(self.packed_values, b.add(group, b.mul(b.srem(pair, n(ROWS)), n(ROW_BYTES))))

        with self.loop(n(0), n_pairs) as pair:
            key = b.add(first, b.mul(pair, n(2)))
            even, odd = (
                self.at(self.values, b.mul(self.smaller(b.add(key, n(side)), last), n(2 * head_dim))) for side in (0, 1)
            )
            columns = [part for unit in range(0, 2 * head_dim, 2 * HEAD_UNIT) for part in self.paired(even, odd, unit)]
            for index, column in enumerate(columns):
                self.store(column, place(pair), TILE * index)
        with self.loop(n_pairs, b.sdiv(self.padded(count), n(2))) as pair:
            for index in range(head_dim // ROWS):
                self.store(self.ints(0, ROWS), place(pair), TILE * index)

    def pass_by(self, key: ir.Value) -> None:
        """Asks for the next block."""
        b, n, head_dim = self.b, self.number, self.shape.head_dim
        for side in (self.keys, self.values):
            for offset in range(0, 4 * head_dim, ROW_BYTES):
                self.fetch(side, b.add(b.mul(b.add(key, n(BLOCK)), n(2 * head_dim)), n(offset)))

    def exp2(self, value: ir.Value) -> ir.Value:
        """As `Code`'s, but for 0 where that is too small to be a number: one instruction puts the exponent in."""
        power, whole = self.power_parts(value)
        everywhere, as_usual = ir.Constant(I16, -1), ir.Constant(I32, 4)  # lanes, rounding
        arguments = (power, whole, self.floats(0, ROWS), everywhere, as_usual)
        return self.call("llvm.x86.avx512.mask.scalef.ps.512", value.type, arguments)

    def joined(self, low: ir.Value, high: ir.Value) -> ir.Value:
        kind = vector(BFloat(), 2 * ROWS)
        both = self.b.bitcast(
            self.call("llvm.x86.avx512bf16.cvtne2ps2bf16.512", kind, (high, low)), vector(I16, 2 * ROWS)
        )
        order = [lane + side for lane in range(ROWS) for side in (0, ROWS)]
        return self.b.bitcast(
            self.b.shuffle_vector(both, both, ir.Constant(vector(I32, 2 * ROWS), order)), vector(I32, ROWS)
        )

    def score(self, tile: ir.Value, first: ir.Value, stop: ir.Value) -> None:
        """Scores [key, row] of a block; keys behind its end score nothing."""
        b, n, head_dim = self.b, self.number, self.shape.head_dim
        queries = self.at(self.packed, b.mul(tile, n(2 * ROWS * head_dim)))
        count = b.sub(stop, first)
        stride = n(2 * head_dim)
        with self.loop(n(0), count, ROWS * len(SUMS)) as key:
            keys = self.at(self.block_keys.value, b.mul(key, stride))
            scores = self.at(self.scores, b.mul(key, n(ROW_BYTES)))
            for sum_ in SUMS:
                self.clear_tile(sum_)
            for chunk in range(head_dim // HEAD_UNIT):
                self.load_tile(RIGHT[chunk % 2], self.at(queries, TILE * chunk))
                for sum_ in SUMS:
                    place = self.at(keys, 2 * ROWS * head_dim * sum_ + ROW_BYTES * chunk)
                    self.load_tile(LEFT[sum_ % 2], place, stride)
                    self.multiply_tiles(sum_, LEFT[sum_ % 2], RIGHT[chunk % 2])
            for sum_ in SUMS:
                self.store_tile(sum_, self.at(scores, TILE * sum_))
        with self.loop(count, self.padded(count)) as key:
            self.store(self.floats(NO_SCORE, ROWS), self.scores, b.mul(key, n(ROW_BYTES)))

    def mix(self, tile: ir.Value, sums: ir.Value, shrink: ir.Value, first: ir.Value, stop: ir.Value) -> None:
        """Adds the values of a block to the sums of each row."""
        b, n, head_dim = self.b, self.number, self.shape.head_dim
        for row in range(ROWS):
            factor = self.spread(self.load(self.scale.type.element, shrink, 4 * row, align=4), ROWS)
            for offset in range(4 * head_dim * row, 4 * head_dim * (row + 1), ROW_BYTES):
                self.store(b.fmul(self.load(factor.type, sums, offset), factor), sums, offset)
        padded = self.padded(b.sub(stop, first))
        with self.loop(n(0), padded, KEYS) as key:
            offset = b.mul(key, n(2 * ROWS))
            self._cross(self.at(self.weights, offset), self.at(self.crossed, offset))
        columns = range(head_dim // ROWS)
        for start in range(0, len(columns), len(SUMS)):
            some = columns[start : start + len(SUMS)]
            for sum_, column in zip(SUMS, some, strict=False):
                self.load_tile(sum_, self.at(sums, ROW_BYTES * column), n(4 * head_dim))
            with self.loop(n(0), padded, KEYS) as key:
                self.load_tile(LEFT[0], self.at(self.crossed, b.mul(key, n(2 * ROWS))))
                values = self.at(self.packed_values, b.mul(key, n(2 * head_dim)))
                for sum_, column in zip(SUMS, some, strict=False):
                    self.load_tile(RIGHT[sum_ % 2], self.at(values, TILE * column))
                    self.multiply_tiles(sum_, LEFT[0], RIGHT[sum_ % 2])
            for sum_, column in zip(SUMS, some, strict=False):
                self.store_tile(sum_, self.at(sums, ROW_BYTES * column), n(4 * head_dim))

    def _cross(self, source: ir.Value, target: ir.Value) -> None:
        """Turns a square of 16 times 16 numbers round its diagonal, by exchanging ever smaller squares."""
        numbers = [self.load(vector(I32, ROWS), source, ROW_BYTES * row) for row in range(ROWS)]
        for size in (8, 4, 2, 1):
            # Of two rows `size` apart, the upper keeps its left squares and gets the lower's, the lower the other way.
            lanes = range(ROWS)
            upper = [lane if not lane & size else ROWS + lane - size for lane in lanes]
            lower = [lane + size if not lane & size else ROWS + lane for lane in lanes]
            orders = [ir.Constant(vector(I32, ROWS), order) for order in (upper, lower)]
            for row in (row for row in lanes if not row & size):
                pair = numbers[row], numbers[row + size]
                numbers[row], numbers[row + size] = (self.b.shuffle_vector(*pair, order) for order in orders)
        for row, number in enumerate(numbers):
            self.store(number, target, ROW_BYTES * row)
