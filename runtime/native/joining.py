"""What attention's threads leave behind, and how it is joined: by the log-sum-exp of each part's scores."""

from dataclasses import dataclass

from llvmlite import ir

from runtime.native.code import FLOAT, I32, Code, Fields, vector
from runtime.native.machine import Products

NO_SCORE = -1e30

# What the function is given, as i64 each; strides in bytes.
FIELDS = (
    *("queries", "query_head", "query_token", "keys", "key_head", "values", "value_head", "output", "n_kv_heads"),
    *("group", "n_tokens", "n_held", "n_parts", "n_threads", "scratch", "scale", "next"),
)


def scratch_floats(head_dim: int, width: int) -> int:
    """Floats of memory that each KV head, part and vector of rows needs: sums, largest scores, weights."""
    return width * (head_dim + 2)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the code is made for: numbers in a head, rows in a vector (of scratch memory, where vectors hold
    numbers), and what is multiplied."""

    head_dim: int
    width: int
    products: Products

    @property
    def name(self) -> str:
        return f"attend_{self.head_dim}_{self.width}"


def write_entry(function: ir.Function, work: ir.Function, parallel: ir.Function, shape: Shape) -> None:
    """Has the threads work, then joins what they found."""
    code = Code(function)
    b, n, fields = code.b, code.number, Fields(code, function.args[0], FIELDS)
    code.run_parallel(parallel, work, fields)
    width, head_dim = shape.width, shape.head_dim
    tile_bytes = 4 * scratch_floats(head_dim, width)
    group, n_tokens, n_parts = (fields.number(name) for name in ("group", "n_tokens", "n_parts"))
    n_rows = b.mul(group, n_tokens)
    n_tiles = b.sdiv(b.add(n_rows, n(width - 1)), n(width))
    part_bytes = b.mul(n_tiles, n(tile_bytes))
    n_heads = b.mul(fields.number("n_kv_heads"), group)
    with code.loop(n(0), fields.number("n_kv_heads")) as kv_head, code.loop(n(0), n_rows) as row:
        sums = code.at(fields.pointer("scratch"), b.mul(b.mul(kv_head, n_parts), part_bytes))
        lane = b.srem(row, n(width))
        tile = code.at(sums, b.mul(b.sdiv(row, n(width)), n(tile_bytes)))
        best = code.at(tile, b.add(n(4 * width * head_dim), b.mul(lane, n(4))))
        one = vector(FLOAT, 1)
        largest = code.variable(code.floats(NO_SCORE, 1))
        with code.loop(n(0), n_parts) as part:
            found = code.load(one, best, b.mul(part, part_bytes), align=4)
            largest.value = code.larger(largest.value, found)
        total = code.variable(code.floats(0, 1))
        mixed = [code.variable(code.floats(0, 16)) for _ in range(head_dim // 16)]
        with code.loop(n(0), n_parts) as part:
            offset = b.mul(part, part_bytes)
            factor = code.exp2(b.fsub(code.load(one, best, offset, align=4), largest.value))
            held = code.load(one, code.at(best, 4 * width), offset, align=4)
            total.value = code.fma(factor, held, total.value)
            scale = code.spread(b.extract_element(factor, ir.Constant(I32, 0)), 16)
            values = code.at(tile, b.add(offset, b.mul(lane, n(4 * head_dim))))
            for index, sum_ in enumerate(mixed):
                sum_.value = code.fma(code.load(vector(FLOAT, 16), values, 64 * index), scale, sum_.value)
        share = b.fdiv(code.floats(1, 1), total.value)
        share = code.spread(b.extract_element(share, ir.Constant(I32, 0)), 16)
        # The output lies as its reader wants it: [token, head, head_dim].
        head = b.add(b.mul(kv_head, group), b.sdiv(row, n_tokens))
        place = b.add(b.mul(b.srem(row, n_tokens), n_heads), head)
        target = code.at(fields.pointer("output"), b.mul(place, n(2 * head_dim)))
        for index, sum_ in enumerate(mixed):
            code.store(code.halves(b.fmul(sum_.value, share)), target, 32 * index)
    code.end()
