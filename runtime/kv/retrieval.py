"""The retrieval cache: the chunks of the full KV cache that recent queries want (TriForce, arXiv 2404.11912, 4.1)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.kv.chunks import best_chunks, chunk_means, chunk_scores
from runtime.kv.full import FullStore
from runtime.kv.queries import WINDOW, RecentQueries
from runtime.kv.store import TrimBelowCommitted

TAIL = 160  # room for drafts: more than gamma and inner gamma can be together
ROOM = 256  # at most so many tokens of the budget are left for tokens to come
NEWEST = 64  # at least so many newest tokens are kept, where a quarter of the budget allows
REFRESH_EVERY = 64  # committed tokens after which chunks are chosen anew


def layer_sizes(budget: int, windows: Sequence[int | None], refresh_every: int = REFRESH_EVERY) -> list[int]:
    """Tokens that each layer's buffers have room for; `windows` as for `RetrievalStore`."""
    return [(window + refresh_every if window else budget) + TAIL for window in windows]


class RetrievalStore:
    """At most `budget` committed tokens a layer and KV head, chosen from a full store, and a tail of drafts.

    While everything fits, everything is held. Otherwise `select` keeps the first chunk, the newest tokens and the
    chunks that the queries score highest, and leaves part of the budget for tokens to come. `commit` takes what was
    accepted since from the full store (the tail's own keys were computed under sparse attention). Keys are stored
    after RoPE, so a chunk keeps its place in the document. Layers that see a window of the newest tokens hold just
    these, whatever the budget.

    As an `Observer` of passes over the full store it chooses anew in their course, layer by layer. A pass that breaks
    off in between leaves layers chosen for different tokens: it needs a `select`.
    """

    keys_are_rotated = True

    def __init__(
        self,
        full: FullStore,
        queries: RecentQueries,
        budget: int,
        chunk_size: int,
        scale: float,
        refresh_every: int = REFRESH_EVERY,
        windows: Sequence[int | None] = (),
    ) -> None:
        """`windows`: tokens that each layer sees, None for all; empty where all do."""
        self._full = full
        self._queries = queries
        self._refresh_every = refresh_every
        self._chosen_at = 0
        self._budget = budget
        self._chunk_size = chunk_size
        self._scale = scale
        self._windows = tuple(windows) or (None,) * full.n_layers
        self._length = self._committed = 0
        self._tail = 0
        self._held = [0] * full.n_layers  # committed tokens in each layer's buffers
        self._chosen: list[int] | None = None  # tokens held after the choice that the current pass makes
        keys = full.keys(0, 0, 0)
        n_kv_heads, _, head_dim = keys.shape
        sizes = layer_sizes(budget, self._windows, refresh_every)
        self._keys = [keys.new_empty(n_kv_heads, size, head_dim) for size in sizes]
        self._values = [keys.new_empty(n_kv_heads, size, head_dim) for size in sizes]
        self._means: list[Tensor] = [keys.new_empty(n_kv_heads, 0, head_dim) for _ in sizes]

    @property
    def length(self) -> int:
        return self._length

    @property
    def committed(self) -> int:
        return self._committed

    @property
    def n_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in (*self._keys, *self._values, *self._means))

    def positions(self, n_tokens: int) -> range:
        return range(self._length - n_tokens, self._length)

    def extend(self, n_tokens: int) -> None:
        self._length += n_tokens
        self._tail += n_tokens

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        end = self._held[layer] + self._tail
        start = end - keys.shape[1]
        self._keys[layer][:, start:end] = keys
        self._values[layer][:, start:end] = values

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        end = self._held[layer] + self._tail
        return self._keys[layer][:, :end], self._values[layer][:, :end]

    def buffers(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._keys[layer], self._values[layer]

    def held(self, layer: int) -> int:
        return self._held[layer] + self._tail

    def trim(self, length: int) -> None:
        if length < self._committed:
            raise TrimBelowCommitted(length, self._committed)
        forgotten = max(0, self._length - length)
        self._length -= forgotten
        self._tail -= forgotten

    def commit(self) -> None:
        """Take over from the full store what was committed there since; choose anew where that is due and no pass
        did."""
        start, end = self._committed, self._full.committed
        if self._is_due(end):
            self._choose(self._queries.latest())
            return
        for layer in range(self._full.n_layers):
            self._take(layer, self._held[layer], start, end)
        self._settle([held + end - start for held in self._held], end)

    def observe(self, layer: int, start: int, queries: Tensor) -> None:
        """Where a choice is due by the end of a pass over the full store, choose the layer's chunks for the pass's own
        queries, of what is committed. Its keys and values are on the device now, wherever that store keeps them."""
        if layer == 0:
            self._chosen = [] if self._is_due(self._full.length) else None
        if self._chosen is None:
            return
        self._chosen.append(self._choose_layer(layer, queries[:, -WINDOW:], self._full.committed))
        if len(self._chosen) == self._full.n_layers:
            self._chosen_at = self._full.length
            self._settle(self._chosen, self._full.committed)

    def _is_due(self, end: int) -> bool:
        """Whether up to position `end` the budget will be spent or `refresh_every` tokens added since the last
        choice."""
        grown = end - self._committed
        layers = zip(self._held, self._windows, strict=True)
        is_spent = any(held + grown > self._budget for held, window in layers if window is None)
        return is_spent or end - self._chosen_at >= self._refresh_every

    def select(self, queries: Sequence[Tensor]) -> None:
        """Choose anew from all that is committed to the full store.

        `queries` [heads, tokens, head_dim], one a layer; none at all keeps the first chunk and the newest.
        """
        self._choose(queries)

    def _choose(self, queries: Sequence[Tensor]) -> None:
        end = self._full.committed
        layers = range(self._full.n_layers)
        held = [self._choose_layer(layer, queries[layer] if queries else None, end) for layer in layers]
        self._chosen_at = end
        self._settle(held, end)

    def _choose_layer(self, layer: int, queries: Tensor | None, end: int) -> int:
        """Fill a layer's buffers from the first `end` tokens; gives how many it holds then."""
        window, size = self._windows[layer], self._chunk_size
        if end <= self._budget or window is not None:
            held = min(end, window or end)
            self._take(layer, 0, end - held, end)
            return held
        rest = end % size
        n_chunks = max(2, (self._budget - min(self._budget // 4, ROOM) - rest) // size)
        means = self._updated_means(layer, end)
        if queries is None:
            scores = torch.arange(means.shape[1], dtype=torch.float32).repeat(means.shape[0], 1).to(means.device)
        else:
            scores = chunk_scores(queries, means, self._scale)
        chunks = best_chunks(scores, n_chunks, n_newest=min(n_chunks // 4, -(-NEWEST // size)) or 1)
        self._full.gather(layer, chunks, size, self._keys[layer], self._values[layer])
        self._take(layer, n_chunks * size, end - rest, end)
        return n_chunks * size + rest

    def cut(self, length: int) -> None:
        """The full store was cut back to `length` tokens: forget what was derived from more. Needs a `select`."""
        n_chunks = length // self._chunk_size
        self._means = [means[:, :n_chunks] for means in self._means]
        self._chosen_at = 0
        self._settle([0] * len(self._held), 0)

    def _settle(self, held: list[int], length: int) -> None:
        self._held, self._tail = held, 0
        self._length = self._committed = length

    def _take(self, layer: int, place: int, start: int, end: int) -> None:
        """Copy the positions from `start` to `end` of the full store to `place` in the layer's buffers."""
        self._keys[layer][:, place : place + end - start] = self._full.keys(layer, start, end)
        self._values[layer][:, place : place + end - start] = self._full.values(layer, start, end)

    def _updated_means(self, layer: int, end: int) -> Tensor:
        """Means of all whole chunks before `end`; only those not averaged before are computed."""
        known = self._means[layer]
        new = chunk_means(self._full.keys(layer, known.shape[1] * self._chunk_size, end), self._chunk_size)
        if new.shape[1]:
            self._means[layer] = torch.cat([known, new], 1)
        return self._means[layer]
