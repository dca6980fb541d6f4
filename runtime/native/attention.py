"""Attention of few query rows to a long cache, in LLVM's language: every key and value is read once, as it lies.

A product of a few rows with many keys is bound by the memory that holds them. Libraries repack a matrix before they
multiply by it, which costs more than such a product. Here a vector's lanes are query rows: a key's numbers are each
multiplied by all rows at once, and the softmax runs along the lanes, block by block of keys (as in FlashAttention,
arXiv 2205.14135). Parts of the cache are computed apart and joined by their log-sum-exp. This is by products of pairs
of bfloat16; `float_attention` is for processors that are slow at them.
"""

from functools import reduce

from llvmlite import ir

from runtime.native.code import FLOAT, I16, I32, Code, Fields, Variable, vector
from runtime.native.joining import FIELDS, NO_SCORE, Shape, scratch_floats

BLOCK = 128  # keys whose scores are held at a time
AT_ONCE = 8  # keys multiplied at a time, so that one product need not wait for another
UNROLLED = 4  # products of a key in a row; the compiler would order more key by key
WIDTHS = (4, 8, 16)  # query rows a vector may hold
MOST_TILES = 4  # vectors of query rows
HEAD_UNIT = 32  # numbers of a head must be a multiple


class PairWork(Code):
    """What each thread does: it takes one part of one KV head after the other."""

    unit = 2  # keys whose weights are multiplied at once

    def __init__(self, function: ir.Function, shape: Shape) -> None:
        super().__init__(function)
        self.shape = shape
        self.fields = Fields(self, function.args[0], FIELDS)
        width, pairs = shape.width, shape.head_dim // 2
        self.packed = self.room(4 * MOST_TILES * pairs * width)  # queries [tile, pair, row], pairs of bfloat16
        self.tokens = self.room(4 * MOST_TILES * width)  # of each row
        self.scores = self.room(4 * BLOCK * width)  # [key, row]
        self.weights = self.room(4 * BLOCK // 2 * width)  # [pair of keys, row], pairs of bfloat16

    def write(self) -> None:
        b, n = self.b, self.number
        names = ("n_kv_heads", "group", "n_tokens", "n_held", "n_parts")
        n_kv_heads, group, self.n_tokens, n_held, n_parts = (self.fields.number(name) for name in names)
        self.n_rows = b.mul(group, self.n_tokens)
        width = self.shape.width
        self.n_tiles = b.sdiv(b.add(self.n_rows, n(width - 1)), n(width))
        self.past = b.sub(n_held, self.n_tokens)
        # log2(e) goes into the scale, for powers of two are cheaper than of e.
        self.scale = self.spread(b.bitcast(b.trunc(self.fields.number("scale"), I32), FLOAT), width)
        length = b.sdiv(b.sub(b.add(n_held, n_parts), n(1)), n_parts)
        length = b.mul(b.sdiv(b.add(length, n(AT_ONCE - 1)), n(AT_ONCE)), n(AT_ONCE))
        n_jobs = b.mul(n_kv_heads, n_parts)
        with self.jobs(self.fields.address("next"), n_jobs) as job:
            kv_head, part = b.sdiv(job, n_parts), b.srem(job, n_parts)
            start = b.mul(part, length)
            self._job(kv_head, job, start, self.smaller(b.add(start, length), n_held))
        self.end()

    def _job(self, kv_head: ir.Value, job: ir.Value, start: ir.Value, end: ir.Value) -> None:
        b, n, width, head_dim = self.b, self.number, self.shape.width, self.shape.head_dim
        self.keys = self.at(self.fields.pointer("keys"), b.mul(kv_head, self.fields.number("key_head")))
        self.values = self.at(self.fields.pointer("values"), b.mul(kv_head, self.fields.number("value_head")))
        tile_bytes = 4 * scratch_floats(head_dim, width)
        sums = self.at(self.fields.pointer("scratch"), b.mul(job, b.mul(self.n_tiles, n(tile_bytes))))
        self._pack(kv_head)
        with self.loop(n(0), self.n_tiles) as tile:
            place = self.at(sums, b.mul(tile, n(tile_bytes)))
            with self.loop(n(0), n(width * head_dim // 16)) as index:
                self.store(self.floats(0, 16), place, b.mul(index, n(64)))
            self.store(self.floats(NO_SCORE, width), place, 4 * width * head_dim)
            self.store(self.floats(0, width), place, 4 * width * (head_dim + 1))
        with self.loop(start, end, BLOCK) as first:
            stop = self.smaller(b.add(first, n(BLOCK)), end)
            self._ready(first, stop)
            with self.loop(n(0), self.n_tiles) as tile:
                self._block(tile, self.at(sums, b.mul(tile, n(tile_bytes))), first, stop)

    def _pack(self, kv_head: ir.Value) -> None:
        """Lays the queries of a KV head side by side, and notes each row's token."""
        b, n, width, pairs = self.b, self.number, self.shape.width, self.shape.head_dim // 2
        group = self.fields.number("group")
        stride, token_stride = self.fields.number("query_head"), self.fields.number("query_token")
        first = self.at(self.fields.pointer("queries"), b.mul(b.mul(kv_head, group), stride))
        with self.loop(n(0), b.mul(self.n_tiles, n(width))) as row:
            tile, lane = b.sdiv(row, n(width)), b.srem(row, n(width))
            is_real = b.icmp_signed("<", row, self.n_rows)
            shown = b.select(is_real, row, n(0))  # rows that fill a vector up are computed and never read
            token = b.srem(shown, self.n_tokens)
            self.store(b.trunc(token, I32), self.tokens, b.mul(row, n(4)), align=4)
            head = b.sdiv(shown, self.n_tokens)
            source = self.at(first, b.add(b.mul(head, stride), b.mul(token, token_stride)))
            target = self.at(self.packed, b.mul(b.add(b.mul(tile, n(pairs * width)), lane), n(4)))
            with self.loop(n(0), n(pairs)) as pair:
                value = self.load(I32, source, b.mul(pair, n(4)))
                self.store(value, target, b.mul(pair, n(4 * width)), align=4)

    def _ready(self, first: ir.Value, stop: ir.Value) -> None:
        """Prepares a block for all rows."""

    def pass_by(self, key: ir.Value) -> None:
        """While the weights of a key and the next are computed."""

    def padded(self, count: ir.Value) -> ir.Value:
        """So many keys of a block have weights, the last of them 0 where there are no more keys."""
        n = self.number
        return self.b.mul(self.b.sdiv(self.b.add(count, n(self.unit - 1)), n(self.unit)), n(self.unit))

    def _block(self, tile: ir.Value, sums: ir.Value, first: ir.Value, stop: ir.Value) -> None:
        """Adds the keys from `first` to `stop` to one vector of rows."""
        b, n, width, head_dim = self.b, self.number, self.shape.width, self.shape.head_dim
        count = b.sub(stop, first)
        self._score(tile, first, stop)
        self._mask(tile, first, stop)
        best, total = 4 * width * head_dim, 4 * width * (head_dim + 1)
        floats = vector(FLOAT, width)
        before = self.load(floats, sums, best)
        found = [self.variable(self.floats(NO_SCORE, width)) for _ in range(min(self.unit, 4))]
        with self.loop(n(0), self.padded(count), len(found)) as key:
            scores = self.at(self.scores, b.mul(key, n(4 * width)))
            for one, most in enumerate(found):
                most.value = self.larger(most.value, self.load(floats, scores, 4 * width * one))
        largest = self.larger(before, b.fmul(reduce(self.larger, (most.value for most in found)), self.scale))
        shrunk = self.exp2(b.fsub(before, largest))
        weight = self.variable(b.fmul(self.load(floats, sums, total), shrunk))
        with self.loop(n(0), self.padded(count), 2) as key:
            self.pass_by(b.add(first, key))
            low, high = (self._weight(b.add(key, n(side)), largest) for side in (0, 1))
            weight.value = b.fadd(weight.value, b.fadd(low, high))
            self.store(self.joined(low, high), self.weights, b.mul(key, n(2 * width)))
        self.store(largest, sums, best)
        self.store(weight.value, sums, total)
        shrink = self.room(4 * width)
        self.store(shrunk, shrink)
        self._mix(tile, sums, shrink, first, stop)

    def _score(self, tile: ir.Value, first: ir.Value, stop: ir.Value) -> None:
        """Scores [key, row] of a block; keys behind its end score nothing."""
        b, n, width, head_dim = self.b, self.number, self.shape.width, self.shape.head_dim
        pairs = head_dim // 2
        queries = self.at(self.packed, b.mul(tile, n(4 * pairs * width)))
        last = b.sub(stop, n(1))
        with self.loop(first, stop, AT_ONCE) as key:
            rows = [
                self.at(self.keys, b.mul(self.smaller(b.add(key, n(one)), last), n(2 * head_dim)))
                for one in range(AT_ONCE)
            ]
            scores = [self.variable(self.floats(0, width)) for _ in rows]
            with self.loop(n(0), n(pairs), UNROLLED) as start:
                for step in range(UNROLLED):
                    pair = b.add(start, n(step))
                    query = self.load(vector(I32, width), queries, b.mul(pair, n(4 * width)))
                    for row, score in zip(rows, scores, strict=True):
                        number = self.spread(self.load(I32, row, b.mul(pair, n(4))), width)
                        score.value = self.add_products(score.value, query, number, multiplies_bfloat16=True)
            place = b.mul(b.sub(key, first), n(4 * width))
            for one, score in enumerate(scores):
                is_key = b.icmp_signed("<", b.add(key, n(one)), stop)
                shown = b.select(is_key, score.value, self.floats(NO_SCORE, width))
                self.store(shown, self.scores, b.add(place, n(4 * width * one)))

    def _mask(self, tile: ir.Value, first: ir.Value, stop: ir.Value) -> None:
        """Takes the scores of keys that come after a row's own token."""
        b, n, width = self.b, self.number, self.shape.width
        tokens = self.load(vector(I32, width), self.tokens, b.mul(tile, n(4 * width)))
        own = b.add(self.past, n(1))
        begin = b.select(b.icmp_signed(">", own, first), own, first)
        with self.loop(begin, stop) as key:
            place = b.mul(b.sub(key, first), n(4 * width))
            number = self.spread(b.trunc(b.sub(key, self.past), I32), width)
            score = self.load(vector(FLOAT, width), self.scores, place)
            seen = b.icmp_signed(">=", tokens, number)
            self.store(b.select(seen, score, self.floats(NO_SCORE, width)), self.scores, place)

    def _weight(self, key: ir.Value, largest: ir.Value) -> ir.Value:
        b, width = self.b, self.shape.width
        score = self.load(vector(FLOAT, width), self.scores, b.mul(key, self.number(4 * width)))
        seen = b.fcmp_ordered(">", score, self.floats(NO_SCORE / 2, width))
        return b.select(seen, self.exp2(self.fma(score, self.scale, b.fneg(largest))), self.floats(0, width))

    def joined(self, low: ir.Value, high: ir.Value) -> ir.Value:
        """Pairs of bfloat16 side by side, of floats of the same lane."""
        low_bits = self.b.lshr(self.rounded(low), self.ints(16, low.type.count))
        return self.b.or_(low_bits, self.rounded(high))

    def _mix(self, tile: ir.Value, sums: ir.Value, shrink: ir.Value, first: ir.Value, stop: ir.Value) -> None:
        """Adds the values of a block to the sums of each row, a few rows at a time, so many as registers hold."""
        b, n, width, head_dim = self.b, self.number, self.shape.width, self.shape.head_dim
        at_once = max(1, min(width, 16 // (head_dim // 16)))
        begin = b.mul(tile, n(width))
        left = b.sub(self.n_rows, begin)
        n_rows = self.smaller(left, n(width))
        whole = b.mul(b.sdiv(n_rows, n(at_once)), n(at_once))
        with self.loop(n(0), whole, at_once) as row:
            self._mix_rows(at_once, row, sums, shrink, first, stop)
        rest = b.srem(n_rows, n(at_once))
        for count in range(1, at_once):
            with b.if_then(b.icmp_signed("==", rest, n(count))):
                self._mix_rows(count, whole, sums, shrink, first, stop)

    def _mix_rows(
        self, count: int, row: ir.Value, sums: ir.Value, shrink: ir.Value, first: ir.Value, stop: ir.Value
    ) -> None:
        b, n, width, head_dim = self.b, self.number, self.shape.width, self.shape.head_dim
        places = [self.at(sums, b.mul(b.add(row, n(one)), n(4 * head_dim))) for one in range(count)]
        kept: list[list[Variable]] = []
        for one, place in enumerate(places):
            factor = self.spread(self.load(FLOAT, shrink, b.mul(b.add(row, n(one)), n(4))), 16)
            parts = range(0, 4 * head_dim, 64)
            kept.append([self.variable(b.fmul(self.load(vector(FLOAT, 16), place, part), factor)) for part in parts])
        last = b.sub(stop, n(1))
        with self.loop(first, stop, 2) as key:
            even = self.at(self.values, b.mul(key, n(2 * head_dim)))
            odd = self.at(self.values, b.mul(self.smaller(b.add(key, n(1)), last), n(2 * head_dim)))
            pairs = [pair for unit in range(0, 2 * head_dim, 2 * HEAD_UNIT) for pair in self.paired(even, odd, unit)]
            weights = self.at(self.weights, b.mul(b.sub(key, first), n(2 * width)))
            for one, row_sums in enumerate(kept):
                weight = self.spread(self.load(I32, weights, b.mul(b.add(row, n(one)), n(4))), 16)
                for pair, part in zip(pairs, row_sums, strict=True):
                    part.value = self.add_products(part.value, pair, weight, multiplies_bfloat16=True)
        for place, row_sums in zip(places, kept, strict=True):
            for index, part in enumerate(row_sums):
                self.store(part.value, place, 64 * index)

    def paired(self, even: ir.Value, odd: ir.Value, offset: int) -> list[ir.Value]:
        """Numbers of two values side by side, 16 pairs in each of two vectors."""
        kind = vector(I16, HEAD_UNIT)
        left, right = self.load(kind, even, offset), self.load(kind, odd, offset)
        pairs = []
        for half in (0, 16):
            order = [place for lane in range(half, half + 16) for place in (lane, HEAD_UNIT + lane)]
            mixed = self.b.shuffle_vector(left, right, ir.Constant(vector(I32, HEAD_UNIT), order))
            pairs.append(self.b.bitcast(mixed, vector(I32, 16)))
        return pairs
