"""A linear layer in four-bit groups for few tokens, in LLVM's language: each weight is read once, as it is stored.

A vector's lanes are rows of the layer. A code c becomes the bfloat16 128 + c by setting bits alone; the 128 leaves
again with the group's offset, times the sum of the group's inputs.
"""

from llvmlite import ir

from runtime.native.code import FLOAT, I8, I16, I32, Code, Fields, vector
from runtime.native.machine import Products

LANES = 16  # rows side by side
GROUP = 32  # weights of a row under one scale
STEP = 4  # weights of a row in one load: two bytes, of which each holds two codes
CODE_BYTES = GROUP * LANES // 2
GROUP_BYTES = CODE_BYTES + 2 * 2 * LANES  # with scales and offsets, in bfloat16
AT_ONCE = 8  # tokens whose sums are held in registers
CODE_BITS = 0x4300  # of 128 in bfloat16, whose lowest bits count ones
CODE_ZERO = 128 + 8  # offsets are those of code 8, which are small

# What the function is given, as i64 each. `inputs` and `outputs` lie [token, number]; there are `n_tiles` times LANES
# outputs. `sums` has room for a float for each token and group.
FIELDS = ("inputs", "weights", "outputs", "n_tokens", "n_groups", "n_tiles", "per_job", "n_threads", "sums", "next")


class LinearWork(Code):
    """What each thread does: it takes a few tiles of rows after the other."""

    def __init__(self, function: ir.Function, products: Products) -> None:
        super().__init__(function)
        self.multiplies_bfloat16 = products == "pairs"
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
        whole = b.mul(b.sdiv(self.n_tokens, n(AT_ONCE)), n(AT_ONCE))
        rest = b.srem(self.n_tokens, n(AT_ONCE))
        with self.loop(n(0), whole, AT_ONCE) as token:
            self._tile(AT_ONCE, token, weights, tile)
        for count in range(1, AT_ONCE):
            with b.if_then(b.icmp_signed("==", rest, n(count))):
                self._tile(count, whole, weights, tile)

    def _tile(self, count: int, token: ir.Value, weights: ir.Value, tile: ir.Value) -> None:
        """Outputs of one tile of rows for `count` tokens."""
        b, n = self.b, self.number
        row_bytes = b.mul(self.n_groups, n(2 * GROUP))
        tokens = [b.add(token, n(one)) for one in range(count)]
        inputs = [self.at(self.fields.pointer("inputs"), b.mul(one, row_bytes)) for one in tokens]
        sums = [self.at(self.fields.pointer("sums"), b.mul(one, b.mul(self.n_groups, n(4)))) for one in tokens]
        totals = [self.variable(self.floats(0, LANES)) for _ in tokens]
        with self.loop(n(0), self.n_groups) as group:
            place = self.at(weights, b.mul(group, n(GROUP_BYTES)))
            offset = b.mul(group, n(2 * GROUP))
            scale, zero = self.factors(place)
            products = [self.variable(self.floats(0, LANES)) for _ in tokens]
            for step in range(GROUP // STEP):
                for half, codes in enumerate(self.codes(place, 2 * LANES * step)):
                    for source, product in zip(inputs, products, strict=True):
                        pair = self.load(I32, source, b.add(offset, n(2 * STEP * step + 4 * half)))
                        product.value = self.add_products(
                            product.value, codes, self.spread(pair, LANES), self.multiplies_bfloat16
                        )
            for total, product, held in zip(totals, products, sums, strict=True):
                inputs_sum = self.spread(self.load(FLOAT, held, b.mul(group, n(4))), LANES)
                total.value = self.fma(zero, inputs_sum, self.fma(scale, product.value, total.value))
        for one, total in zip(tokens, totals, strict=True):
            self.write_output(total.value, one, tile)

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


def write_entry(function: ir.Function, work: ir.Function, parallel: ir.Function) -> None:
    """Sums the inputs of each group, then has the threads work."""
    code = Code(function)
    b, n = code.b, code.number
    fields = Fields(code, function.args[0], FIELDS)
    n_sums = b.mul(fields.number("n_tokens"), fields.number("n_groups"))
    inputs, sums = fields.pointer("inputs"), fields.pointer("sums")
    with code.loop(n(0), n_sums) as index:
        source = code.at(inputs, b.mul(index, n(2 * GROUP)))
        low, high = (code.widened(code.load(vector(I16, LANES), source, 2 * LANES * half)) for half in (0, 1))
        total = code.sum(b.fadd(low, high))
        code.store(total, sums, b.mul(index, n(4)))
    code.run_parallel(parallel, work, fields)
    code.end()
