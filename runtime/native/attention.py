"""Attention of few query rows to a long cache, in LLVM's language: every key and value is read once, as it lies.

A product of a few rows with many keys is bound by the memory that holds them. Libraries repack a matrix before they
multiply by it, which costs more than such a product. Here the softmax runs along block after block of keys (as in
FlashAttention, arXiv 2205.14135), and parts of the cache are computed apart and joined by their log-sum-exp. What is
common to all ways to multiply is here.
"""

from abc import abstractmethod

from llvmlite import ir

from runtime.native.code import FLOAT, I32, Code, Fields
from runtime.native.joining import FIELDS, NO_SCORE, Shape, scratch_floats

BLOCK = 128  # keys whose scores are held at a time
PART_UNIT = 32  # keys that each part but the last has a multiple of
WIDTHS = (4, 8, 16)  # query rows a vector may hold
HEAD_UNIT = 32  # numbers of a head must be a multiple


class AttentionWork(Code):
    """What each thread does: it takes one part of one KV head after the other.

    `sums` is what it leaves behind of a part: for each vector of rows their sums, largest scores and weights.
    """

    most_tiles = 4  # vectors of query rows: beyond, a matrix product pays

    def __init__(self, function: ir.Function, shape: Shape) -> None:
        super().__init__(function)
        self.shape = shape
        self.fields = Fields(self, function.args[0], FIELDS)
        self.tile_bytes = 4 * scratch_floats(shape.head_dim, shape.width)

    def write(self) -> None:
        b, n, width = self.b, self.number, self.shape.width
        names = ("n_kv_heads", "group", "n_tokens", "n_held", "n_parts")
        n_kv_heads, group, self.n_tokens, n_held, n_parts = (self.fields.number(name) for name in names)
        self.n_rows = b.mul(group, self.n_tokens)
        self.n_tiles = b.sdiv(b.add(self.n_rows, n(width - 1)), n(width))
        self.past = b.sub(n_held, self.n_tokens)
        # log2(e) goes into the scale, for powers of two are cheaper than of e.
        self.scale = self.spread(b.bitcast(b.trunc(self.fields.number("scale"), I32), FLOAT), width)
        length = b.sdiv(b.sub(b.add(n_held, n_parts), n(1)), n_parts)
        length = b.mul(b.sdiv(b.add(length, n(PART_UNIT - 1)), n(PART_UNIT)), n(PART_UNIT))
        with self.jobs(self.fields.address("next"), b.mul(n_kv_heads, n_parts)) as job:
            start = b.mul(b.srem(job, n_parts), length)
            self._job(b.sdiv(job, n_parts), job, start, self.smaller(b.add(start, length), n_held))
        self.end()

    def _job(self, kv_head: ir.Value, job: ir.Value, start: ir.Value, end: ir.Value) -> None:
        b, n, width, head_dim = self.b, self.number, self.shape.width, self.shape.head_dim
        self.keys = self.at(self.fields.pointer("keys"), b.mul(kv_head, self.fields.number("key_head")))
        self.values = self.at(self.fields.pointer("values"), b.mul(kv_head, self.fields.number("value_head")))
        self.sums = self.at(self.fields.pointer("scratch"), b.mul(job, b.mul(self.n_tiles, n(self.tile_bytes))))
        self.pack(kv_head)
        with self.loop(n(0), self.n_tiles) as tile:
            place = self.at(self.sums, b.mul(tile, n(self.tile_bytes)))
            with self.loop(n(0), n(width * head_dim // 16)) as index:
                self.store(self.floats(0, 16), place, b.mul(index, n(64)))
            self.store(self.floats(NO_SCORE, width), place, 4 * width * head_dim)
            self.store(self.floats(0, width), place, 4 * width * (head_dim + 1))
        with self.loop(start, end, BLOCK) as first:
            self.block(first, self.smaller(b.add(first, n(BLOCK)), end))
        self.finish()

    @abstractmethod
    def pack(self, kv_head: ir.Value) -> None:
        """Lays out the queries of a KV head, and notes each row's token."""

    @abstractmethod
    def block(self, first: ir.Value, stop: ir.Value) -> None:
        """Adds the keys from `first` to `stop` to the sums of all rows."""

    def finish(self) -> None:
        """After the last block of a part."""
