"""A linear layer in four-bit groups for few tokens, in LLVM's language: each weight is read once, as it is stored.

A vector's lanes are rows of the layer. A code c becomes the bfloat16 128 + c by setting bits alone; the 128 leaves
again with the group's offset, times the sum of the group's inputs.
"""

from collections.abc import Sequence

from llvmlite import ir

from runtime.native.code import FLOAT, I8, I16, I32, Code, Fields, Variable, vector
from runtime.native.machine import Products

LANES = 16  # rows side by side
GROUP = 32  # weights of a row under one scale
STEP = 4  # weights of a row in one load: two bytes, of which each holds two codes
CODE_BYTES = GROUP * LANES // 2
GROUP_BYTES = CODE_BYTES + 2 * 2 * LANES  # with scales and offsets, in bfloat16
PAIRS_AT_ONCE, FLOATS_AT_ONCE = 8, 4  # tokens whose sums are held in registers: floats without AVX-512 take two each
CODE_BITS = 0x4300  # of 128 in bfloat16, whose lowest bits count ones
CODE_ZERO = 128 + 8  # offsets are those of code 8, which are small

# What the function is given, as i64 each. `inputs` and `outputs` lie [token, number]; there are `n_tiles` times LANES
# outputs. `sums` has room for a float for each token and group, `widened` for each input where floats are multiplied.
FIELDS = (
    *("inputs", "weights", "outputs", "n_tokens", "n_groups", "n_tiles", "per_job", "n_threads", "sums", "widened"),
    "next",
)


class LinearWork(Code):
    """What each thread does: it takes a few tiles of rows after the other."""

    def __init__(self, function: ir.Function, products: Products) -> None:
        super().__init__(function)
        self.multiplies_bfloat16 = products == "pairs"
        self.at_once = PAIRS_AT_ONCE if self.multiplies_bfloat16 else FLOATS_AT_ONCE
        self.fields = Fields(self, function.args[0], FIELDS)

    def write(self) -> None:
        b, n = self.b, self.number
        names = ("n_tokens", "n_groups", "n_tiles", "per_job")
        self.n_tokens, self.n_groups, self.n_tiles, per_job = (self.fields.number(name) for name in names)
        self.prepare()
        n_jobs = b.sdiv(b.sub(b.add(self.n_tiles, per_job), n(1)), per_job)
        with self.jobs(self.fields.address("next"), n_jobs) as job:
            start = b.mul(job, per_job)
            with self.loop(start, self.smaller(b.add(start, per_job), self.n_tiles)) as tile:
                weights = b.mul(tile, b.mul(self.n_groups, n(GROUP_BYTES)))
                self.rows(self.at(self.fields.pointer("weights"), weights), tile)
        self.end()

    def prepare(self) -> None:
        """Before the first tile."""

    def rows(self, weights: ir.Value, tile: ir.Value) -> None:
        """Outputs of one tile of rows for all tokens."""
        b, n = self.b, self.number
        whole = b.mul(b.sdiv(self.n_tokens, n(self.at_once)), n(self.at_once))
        rest = b.srem(self.n_tokens, n(self.at_once))
        with self.loop(n(0), whole, self.at_once) as token:
            self._tile(self.at_once, token, weights, tile)
        for count in range(1, self.at_once):
            with b.if_then(b.icmp_signed("==", rest, n(count))):
                self._tile(count, whole, weights, tile)

    def _tile(self, count: int, token: ir.Value, weights: ir.Value, tile: ir.Value) -> None:
        """Outputs of one tile of rows for `count` tokens."""
        b, n = self.b, self.number
        n_bytes, source = (2, "inputs") if self.multiplies_bfloat16 else (4, "widened")  # of an input
        row_bytes = b.mul(self.n_groups, n(n_bytes * GROUP))
        tokens = [b.add(token, n(one)) for one in range(count)]
        inputs = [self.at(self.fields.pointer(source), b.mul(one, row_bytes)) for one in tokens]
        sums = [self.at(self.fields.pointer("sums"), b.mul(one, b.mul(self.n_groups, n(4)))) for one in tokens]
        totals = [self.variable(self.floats(0, LANES)) for _ in tokens]
        with self.loop(n(0), self.n_groups) as group:
            place = self.at(weights, b.mul(group, n(GROUP_BYTES)))
            offset = b.mul(group, n(n_bytes * GROUP))
            scale, zero = self.factors(place)
            products = [self.variable(self.floats(0, LANES)) for _ in tokens]
            for step in range(GROUP // STEP):
                for half, codes in enumerate(self.codes(place, 2 * LANES * step)):
                    place_of_pair = b.add(offset, n(n_bytes * (STEP * step + 2 * half)))
                    add = self._pair_added if self.multiplies_bfloat16 else self._floats_added
                    add(products, codes, inputs, place_of_pair)
            for total, product, held in zip(totals, products, sums, strict=True):
                inputs_sum = self.spread(self.load(FLOAT, held, b.mul(group, n(4))), LANES)
                total.value = self.fma(zero, inputs_sum, self.fma(scale, product.value, total.value))
        for one, total in zip(tokens, totals, strict=True):
            self.write_output(total.value, one, tile)

    def _pair_added(
        self, products: Sequence[Variable], codes: ir.Value, inputs: Sequence[ir.Value], offset: ir.Value
    ) -> None:
        """Adds to each token's `products` those of pairs of codes and the token's pair of inputs at `offset`."""
        for source, product in zip(inputs, products, strict=True):
            pair = self.load(I32, source, offset)
            product.value = self.add_products(product.value, codes, self.spread(pair, LANES))

    def _floats_added(
        self, products: Sequence[Variable], codes: ir.Value, inputs: Sequence[ir.Value], offset: ir.Value
    ) -> None:
        """As `_pair_added`, of floats: the codes are widened once for all tokens, the inputs were before."""
        b = self.b
        shift, upper = self.ints(16, LANES), self.ints(-0x10000, LANES)
        for side, bits in enumerate((b.shl(codes, shift), b.and_(codes, upper))):
            weights = b.bitcast(bits, vector(FLOAT, LANES))
            for source, product in zip(inputs, products, strict=True):
                number = self.load(FLOAT, source, b.add(offset, self.number(4 * side)), align=4)
                product.value = self.fma(weights, self.spread(number, LANES), product.value)

    def write_output(self, total: ir.Value, token: ir.Value, tile: ir.Value) -> None:
        b, n = self.b, self.number
        place = b.mul(b.add(b.mul(token, self.n_tiles), tile), n(2 * LANES))
        self.store(self.halves(total), self.fields.pointer("outputs"), place)

    def factors(self, place: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Of a group: what its products with 128 + code are multiplied by, and what its inputs' sum is."""
        scale, zero = (self._unpacked(place, CODE_BYTES + 2 * LANES * part) for part in (0, 1))
        return scale, self.fma(scale, self.floats(-CODE_ZERO, LANES), zero)

    def codes(self, place: ir.Value, offset: int) -> tuple[ir.Value, ir.Value]:
        """Two vectors of pairs of bfloat16, of 128 and a code each."""
        b, wide = self.b, vector(I16, 2 * LANES)
        both = b.zext(self.load(vector(I8, 2 * LANES), place, offset), wide)
        bits, low, shift = (ir.Constant(wide, [value] * 2 * LANES) for value in (CODE_BITS, 15, 4))
        first, second = b.or_(b.and_(both, low), bits), b.or_(b.lshr(both, shift), bits)
        return b.bitcast(first, vector(I32, LANES)), b.bitcast(second, vector(I32, LANES))

    def _unpacked(self, place: ir.Value, offset: int) -> ir.Value:
        return self.widened(self.load(vector(I16, LANES), place, offset))


def write_entry(function: ir.Function, work: ir.Function, parallel: ir.Function, widens: bool) -> None:
    """Sums the inputs of each group, keeps them as floats if it `widens`, then has the threads work."""
    code = Code(function)
    b, n = code.b, code.number
    fields = Fields(code, function.args[0], FIELDS)
    n_sums = b.mul(fields.number("n_tokens"), fields.number("n_groups"))
    inputs, sums = fields.pointer("inputs"), fields.pointer("sums")
    with code.loop(n(0), n_sums) as index:
        source = code.at(inputs, b.mul(index, n(2 * GROUP)))
        low, high = (code.widened(code.load(vector(I16, LANES), source, 2 * LANES * half)) for half in (0, 1))
        if widens:
            for half, part in enumerate((low, high)):
                code.store(part, fields.pointer("widened"), b.add(b.mul(index, n(4 * GROUP)), n(4 * LANES * half)))
        total = code.sum(b.fadd(low, high))
        code.store(total, sums, b.mul(index, n(4)))
    code.run_parallel(parallel, work, fields)
    code.end()
