"""Attention by products of pairs of bfloat16, which are one instruction on processors that have it.

A vector's lanes are query rows: a key's numbers are each multiplied by all rows at once, and the softmax runs along the
lanes.
"""

from functools import reduce

from llvmlite import ir

from runtime.native.attention import BLOCK, HEAD_UNIT, AttentionWork
from runtime.native.code import FLOAT, I16, I32, Variable, vector
from runtime.native.joining import NO_SCORE, Shape

AT_ONCE = 8  # keys multiplied at a time, so that one product need not wait for another
UNROLLED = 4  # products of a key in a row; the compiler would order more key by key


class PairWork(AttentionWork):
    """What each thread does, vector of rows by vector."""

    unit = 2  # keys whose weights are multiplied at once

    def __init__(self, function: ir.Function, shape: Shape) -> None:
        super().__init__(function, shape)
        width, pairs = shape.width, shape.head_dim // 2
        self.packed = self.room(4 * self.most_tiles * pairs * width)  # queries [tile, pair, row], pairs of bfloat16
        self.tokens = self.room(4 * self.most_tiles * width)  # of each row
        self.scores = self.room(4 * BLOCK * width)  # [key, row]
        self.weights = self.room(4 * BLOCK // 2 * width)  # [pair of keys, row], pairs of bfloat16

    def pack(self, kv_head: ir.Value) -> None:
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

    def block(self, first: ir.Value, stop: ir.Value) -> None:
        b, n = self.b, self.number
        self.ready(first, stop)
        with self.loop(n(0), self.n_tiles) as tile:
            self._add(tile, self.at(self.sums, b.mul(tile, n(self.tile_bytes))), first, stop)

    def ready(self, first: ir.Value, stop: ir.Value) -> None:
        """Prepares a block for all rows."""

    def pass_by(self, key: ir.Value) -> None:
        """While the weights of a key and the next are computed."""

    def padded(self, count: ir.Value) -> ir.Value:
        """So many keys of a block have weights, the last of them 0 where there are no more keys."""
        n = self.number
        return self.b.mul(self.b.sdiv(self.b.add(count, n(self.unit - 1)), n(self.unit)), n(self.unit))

    def _add(self, tile: ir.Value, sums: ir.Value, first: ir.Value, stop: ir.Value) -> None:
        """Adds the keys from `first` to `stop` to one vector of rows."""
        b, n, width, head_dim = self.b, self.number, self.shape.width, self.shape.head_dim
        count = b.sub(stop, first)
        self.score(tile, first, stop)
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
        self.mix(tile, sums, shrink, first, stop)

    def score(self, tile: ir.Value, first: ir.Value, stop: ir.Value) -> None:
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
                        score.value = self.add_products(score.value, query, number)
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

    def mix(self, tile: ir.Value, sums: ir.Value, shrink: ir.Value, first: ir.Value, stop: ir.Value) -> None:
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
                    part.value = self.add_products(part.value, pair, weight)
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
