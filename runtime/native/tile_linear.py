"""A linear layer in four-bit groups by AMX: a group of 16 rows, with its codes widened, is one tile."""

from llvmlite import ir

from runtime.native.code import I8
from runtime.native.linear import GROUP, GROUP_BYTES, LANES, STEP, LinearWork
from runtime.native.tiles import ROW_BYTES, ROWS, TILE, TileCode

TOKENS = (1, 2, 4, 8, ROWS)  # whose sums are held in registers: code is made for each number
AT_ONCE = 6  # groups
AHEAD = 2 * AT_ONCE * GROUP_BYTES  # so far before they are read, weights are asked for
SUMS, INPUTS, WEIGHTS = 0, 2, 4  # tiles


class TileLinearWork(TileCode, LinearWork):
    """What each thread does: it takes a few tiles of rows after the other."""

    def prepare(self) -> None:
        self.n_rows = self.smaller(self.n_tokens, self.number(ROWS))
        count = self.b.trunc(self.n_rows, I8)
        self.configure({SUMS: count, INPUTS: count})
        self.widened_codes = self.room(AT_ONCE * TILE)
        self.products = self.room(AT_ONCE * TILE)

    def rows(self, weights: ir.Value, tile: ir.Value) -> None:
        b, n = self.b, self.number
        last = b.sub(self.n_tokens, self.n_rows)
        with self.loop(n(0), self.n_tokens, ROWS) as token:
            # The last tokens are taken with some before them, which are computed twice.
            for least, most in zip((0, *TOKENS), TOKENS, strict=False):
                fits = b.and_(b.icmp_signed(">", self.n_rows, n(least)), b.icmp_signed("<=", self.n_rows, n(most)))
                with b.if_then(fits):
                    self._tile(most, self.smaller(token, last), weights, tile)

    def _tile(self, count: int, token: ir.Value, weights: ir.Value, tile: ir.Value) -> None:
        """Outputs of one tile of rows for `count` tokens; of those that are too many nothing is written."""
        b, n = self.b, self.number
        row_bytes = b.mul(self.n_groups, n(2 * GROUP))
        inputs = self.at(self.fields.pointer("inputs"), b.mul(token, row_bytes))
        sums_bytes = b.mul(self.n_groups, n(4))
        sums = self.at(self.fields.pointer("sums"), b.mul(token, sums_bytes))
        totals = [self.variable(self.floats(0, LANES)) for _ in range(count)]
        with self.loop(n(0), self.n_groups, AT_ONCE) as first:
            stop = self.smaller(b.add(first, n(AT_ONCE)), self.n_groups)
            # One after the other: what is written must have left the core's queue before a tile can be read from it.
            with self.loop(first, stop) as group:
                place = self.at(weights, b.mul(group, n(GROUP_BYTES)))
                for line in range(0, GROUP_BYTES, ROW_BYTES):
                    self.fetch(place, AHEAD + line)
                codes = self.at(self.widened_codes, b.mul(b.sub(group, first), n(TILE)))
                for step in range(GROUP // STEP):
                    for half, pairs in enumerate(self.codes(place, 2 * LANES * step)):
                        self.store(pairs, codes, ROW_BYTES * (2 * step + half))
            with self.loop(first, stop) as group:
                side = b.mul(b.sub(group, first), n(TILE))
                self.clear_tile(SUMS)
                self.load_tile(INPUTS, self.at(inputs, b.mul(group, n(2 * GROUP))), row_bytes)
                self.load_tile(WEIGHTS, self.at(self.widened_codes, side))
                self.multiply_tiles(SUMS, INPUTS, WEIGHTS)
                self.store_tile(SUMS, self.at(self.products, side))
            with self.loop(first, stop) as group:
                scale, zero = self.factors(self.at(weights, b.mul(group, n(GROUP_BYTES))))
                products = self.at(self.products, b.mul(b.sub(group, first), n(TILE)))
                for one, total in enumerate(totals):
                    product = self.load(scale.type, products, ROW_BYTES * one)
                    held = self.at(sums, b.add(b.mul(n(one), sums_bytes), b.mul(group, n(4))))
                    inputs_sum = self.spread(self.load(scale.type.element, held, align=4), LANES)
                    total.value = self.fma(zero, inputs_sum, self.fma(scale, product, total.value))
        for one, total in enumerate(totals):
            with b.if_then(b.icmp_signed("<", n(one), self.n_rows)):
                self.write_output(total.value, b.add(token, n(one)), tile)
