"""Attention of few query rows in float32 products, for processors that are slow at pairs of bfloat16.

A vector's lanes are numbers of one key, widened from bfloat16, and then, as 16 keys' products with a query are added up
crosswise, scores of 16 keys. So one query row keeps all lanes busy, where those of `pair_attention` are rows. Numbers
are held as they come out of a register of pairs: the even ones, then the odd ones.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir

from runtime.native.attention import BLOCK, AttentionWork
from runtime.native.code import FLOAT, I32, I64, vector
from runtime.native.joining import NO_SCORE, Shape

LANES = 16
UNIT = 2 * LANES  # numbers of a head that are loaded at once
QUERY_REGISTERS = 12  # that hold query rows while keys pass by,
SUM_REGISTERS = 16  # and sums of value rows
FLOATS, INTS = vector(FLOAT, LANES), vector(I32, LANES)

RowsWriter = Callable[[int, ir.Value], None]  # for so many rows from a number on
Place = Callable[[int], ir.Value]  # where one of 16 keys lies


def _order(pick: Sequence[int]) -> ir.Constant:
    return ir.Constant(vector(I32, len(pick)), list(pick))


def _crosswise(low: Sequence[int], high: Sequence[int]) -> tuple[ir.Constant, ir.Constant]:
    """Within each quarter of two vectors: `low` and `high` are lanes of it, those of the second from 4 on."""
    quarters = range(0, LANES, 4)
    low_order, high_order = (
        _order([quarter + (lane if lane < 4 else LANES + lane - 4) for quarter in quarters for lane in lanes])
        for lanes in (low, high)
    )
    return low_order, high_order


_QUARTERS = tuple(
    _order([4 * quarter + lane for quarter in quarters for lane in range(4)])
    for quarters in ((0, 2, 4, 6), (1, 3, 5, 7))
)
# By which two vectors become one whose lanes are sums: of 2, 4, 8 and 16 keys, in order.
STEPS = (_crosswise((0, 4, 1, 5), (2, 6, 3, 7)), _crosswise((0, 1, 4, 5), (2, 3, 6, 7)), _QUARTERS, _QUARTERS)
SIDE_BY_SIDE = tuple(_order([place for lane in range(s, s + 8) for place in (lane, LANES + lane)]) for s in (0, 8))


class FloatWork(AttentionWork):
    """What each thread does, a few rows at a time."""

    def __init__(self, function: ir.Function, shape: Shape) -> None:
        super().__init__(function, shape)
        self.n_vectors = shape.head_dim // LANES
        most_rows = self.most_tiles * shape.width
        self.queries = self.room(4 * most_rows * shape.head_dim)  # [row, number], scaled
        self.tokens = self.room(4 * most_rows)  # of each row
        self.weights = self.room(4 * most_rows * BLOCK)  # [row, key], scores at first
        self.shrunk = self.room(4 * most_rows)  # what each row's sums are to be multiplied by

    def block(self, first: ir.Value, stop: ir.Value) -> None:
        self._by_rows(
            max(1, QUERY_REGISTERS // self.n_vectors), lambda count, row: self._score(count, row, first, stop)
        )
        with self.loop(self.number(0), self.n_rows) as row:
            self._weigh(row, self.b.sub(stop, first))
        self._by_rows(max(1, SUM_REGISTERS // self.n_vectors), lambda count, row: self._mix(count, row, first, stop))

    def finish(self) -> None:
        with self.loop(self.number(0), self.n_rows) as row:
            self._sort(self._sums(row))

    def _by_rows(self, at_once: int, write: RowsWriter) -> None:
        """Has code written for `at_once` rows, and for each number of rows that may be left."""
        b, n = self.b, self.number
        whole = b.mul(b.sdiv(self.n_rows, n(at_once)), n(at_once))
        with self.loop(n(0), whole, at_once) as row:
            write(at_once, row)
        left = b.sub(self.n_rows, whole)
        for count in range(1, at_once):
            with b.if_then(b.icmp_signed("==", left, n(count))):
                write(count, whole)

    def _tile(self, row: ir.Value, offset: ir.Value) -> ir.Value:
        tile = self.b.mul(self.b.sdiv(row, self.number(self.shape.width)), self.number(self.tile_bytes))
        return self.at(self.sums, self.b.add(tile, offset))

    def _lane(self, row: ir.Value) -> ir.Value:
        return self.b.srem(row, self.number(self.shape.width))

    def _sums(self, row: ir.Value) -> ir.Value:
        return self._tile(row, self.b.mul(self._lane(row), self.number(4 * self.shape.head_dim)))

    def _best(self, row: ir.Value) -> ir.Value:
        first = self.number(4 * self.shape.width * self.shape.head_dim)
        return self._tile(row, self.b.add(first, self.b.mul(self._lane(row), self.number(4))))

    def _total(self, row: ir.Value) -> ir.Value:
        return self.at(self._best(row), 4 * self.shape.width)

    def pack(self, kv_head: ir.Value) -> None:
        """As meant; widened and scaled."""
        b, n, head_dim = self.b, self.number, self.shape.head_dim
        stride, token_stride = self.fields.number("query_head"), self.fields.number("query_token")
        head = b.mul(kv_head, self.fields.number("group"))
        first = self.at(self.fields.pointer("queries"), b.mul(head, stride))
        with self.loop(n(0), self.n_rows) as row:
            token = b.srem(row, self.n_tokens)
            self.store(b.trunc(token, I32), self.tokens, b.mul(row, n(4)), align=4)
            offset = b.add(b.mul(b.sdiv(row, self.n_tokens), stride), b.mul(token, token_stride))
            target = self.at(self.queries, b.mul(row, n(4 * head_dim)))
            for index, part in enumerate(self._widened(self.at(first, offset))):
                self.store(b.fmul(part, self.scale), target, 4 * LANES * index)

    def _widened(self, place: ir.Value) -> list[ir.Value]:
        """The numbers of a head, the even ones of each unit before the odd ones."""
        b, parts = self.b, []
        for offset in range(0, 2 * self.shape.head_dim, 2 * UNIT):
            pairs = self.load(INTS, place, offset)
            parts.append(b.bitcast(b.shl(pairs, self.ints(16, LANES)), FLOATS))
            parts.append(b.bitcast(b.and_(pairs, self.ints(-0x10000, LANES)), FLOATS))
        return parts

    def _score(self, count: int, row: ir.Value, first: ir.Value, stop: ir.Value) -> None:
        """Scores of `count` rows with a block; of keys that come after a row's own token there are none."""
        b, n, head_dim = self.b, self.number, self.shape.head_dim
        queries, limits = [], self.limits(count, row, first, stop)
        for one in range(count):
            place = self.at(self.queries, b.mul(b.add(row, n(one)), n(4 * head_dim)))
            queries.append([self.load(FLOATS, place, 4 * LANES * index) for index in range(self.n_vectors)])
        last = b.sub(stop, n(1))
        whole = b.add(first, b.mul(b.sdiv(b.sub(stop, first), n(LANES)), n(LANES)))

        def sixteen(key: ir.Value, is_whole: bool) -> None:
            def place(one: int) -> ir.Value:
                number = b.add(key, n(one))
                return self.at(self.keys, b.mul(number if is_whole else self.smaller(number, last), n(2 * head_dim)))

            self.store_scores(self._crossed(place, queries, len(STEPS), 0), row, b.sub(key, first), limits)

        with self.loop(first, whole, LANES) as key:
            sixteen(key, True)
        with b.if_then(b.icmp_signed("<", whole, stop)):
            sixteen(whole, False)

    def limits(self, count: int, row: ir.Value, first: ir.Value, stop: ir.Value) -> list[ir.Value]:
        """How many keys of a block each of `count` rows sees, in every lane."""
        b, n = self.b, self.number
        limits = []
        for one in range(count):
            token = b.sext(self.load(I32, self.tokens, b.mul(b.add(row, n(one)), n(4)), align=4), I64)
            seen = self.smaller(b.add(b.add(self.past, token), n(1)), stop)
            limits.append(self.spread(b.trunc(b.sub(seen, first), I32), LANES))
        return limits

    def store_scores(
        self, scores: Sequence[ir.Value], row: ir.Value, key: ir.Value, limits: Sequence[ir.Value]
    ) -> None:
        """Those of rows from `row` on with 16 keys from the block's `key`-th on, where the rows see them."""
        b, n = self.b, self.number
        numbers = b.add(self.spread(b.trunc(key, I32), LANES), ir.Constant(INTS, list(range(LANES))))
        for one, (score, limit) in enumerate(zip(scores, limits, strict=True)):
            shown = b.select(b.icmp_signed("<", numbers, limit), score, self.floats(NO_SCORE, LANES))
            target = b.add(b.mul(b.add(row, n(one)), n(4 * BLOCK)), b.mul(key, n(4)))
            self.store(shown, self.weights, target)

    def _crossed(self, place: Place, queries: list[list[ir.Value]], steps: int, one: int) -> list[ir.Value]:
        """For each query a vector of sums over 2^steps keys from the `one`-th on, few of them half done at a time."""
        if steps == 0:
            key = self._widened(place(one))
            sums = []
            for query in queries:
                total = self.b.fmul(key[0], query[0])
                for part, other in zip(key[1:], query[1:], strict=True):
                    total = self.fma(part, other, total)
                sums.append(total)
            return sums
        left = self._crossed(place, queries, steps - 1, one)
        right = self._crossed(place, queries, steps - 1, one + (1 << steps - 1))
        low, high = STEPS[steps - 1]
        shuffle = self.b.shuffle_vector
        return [self.b.fadd(shuffle(*both, low), shuffle(*both, high)) for both in zip(left, right, strict=True)]

    def _weigh(self, row: ir.Value, count: ir.Value) -> None:
        """Makes a row's scores weights, and counts them."""
        b, n = self.b, self.number
        scores = self.at(self.weights, b.mul(row, n(4 * BLOCK)))
        most = self.variable(self.floats(NO_SCORE, LANES))
        with self.loop(n(0), count, LANES) as key:
            most.value = self.larger(most.value, self.load(FLOATS, scores, b.mul(key, n(4))))
        before = self.spread(self.load(FLOAT, self._best(row), align=4), LANES)
        found = most.value
        for distance in (8, 4, 2, 1):
            found = self.larger(found, b.shuffle_vector(found, found, _order([i ^ distance for i in range(LANES)])))
        largest = self.larger(before, found)
        shrunk = self._first(self.exp2(b.fsub(before, largest)))
        total = self.variable(self.floats(0, LANES))
        with self.loop(n(0), count, LANES) as key:
            score = self.load(FLOATS, scores, b.mul(key, n(4)))
            seen = b.fcmp_ordered(">", score, self.floats(NO_SCORE / 2, LANES))
            weight = b.select(seen, self.exp2(b.fsub(score, largest)), self.floats(0, LANES))
            self.store(weight, scores, b.mul(key, n(4)))
            total.value = b.fadd(total.value, weight)
        held = self.load(FLOAT, self._total(row), align=4)
        self.store(b.fadd(b.fmul(held, shrunk), self.sum(total.value)), self._total(row), align=4)
        self.store(self._first(largest), self._best(row), align=4)
        self.store(shrunk, self.shrunk, b.mul(row, n(4)), align=4)

    def _first(self, value: ir.Value) -> ir.Value:
        return self.b.extract_element(value, ir.Constant(I32, 0))

    def _mix(self, count: int, row: ir.Value, first: ir.Value, stop: ir.Value) -> None:
        """Adds the values of a block to the sums of `count` rows."""
        b, n = self.b, self.number
        kept, weights = [], []
        for one in range(count):
            number = b.add(row, n(one))
            factor = self.spread(self.load(FLOAT, self.shrunk, b.mul(number, n(4)), align=4), LANES)
            place = self._sums(number)
            parts = [self.load(FLOATS, place, 4 * LANES * index) for index in range(self.n_vectors)]
            kept.append((place, [self.variable(b.fmul(part, factor)) for part in parts]))
            weights.append(self.at(self.weights, b.mul(number, n(4 * BLOCK))))
        with self.loop(first, stop) as key:
            value = self._widened(self.at(self.values, b.mul(key, n(2 * self.shape.head_dim))))
            for (_, sums), row_weights in zip(kept, weights, strict=True):
                offset = b.mul(b.sub(key, first), n(4))
                weight = self.spread(self.load(FLOAT, row_weights, offset, align=4), LANES)
                for sum_, part in zip(sums, value, strict=True):
                    sum_.value = self.fma(part, weight, sum_.value)
        for place, sums in kept:
            for index, sum_ in enumerate(sums):
                self.store(sum_.value, place, 4 * LANES * index)

    def _sort(self, place: ir.Value) -> None:
        """Puts a row's sums into the order of a head's numbers."""
        for offset in range(0, 4 * self.shape.head_dim, 4 * UNIT):
            both = [self.load(FLOATS, place, offset + side) for side in (0, 4 * LANES)]
            for side, order in zip((0, 4 * LANES), SIDE_BY_SIDE, strict=True):
                self.store(self.b.shuffle_vector(*both, order), place, offset + side)
