"""Which chunks of the text the target's attention wants, as one choice for a draft model to read."""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.kv.chunks import best_chunks, chunk_means, chunk_scores
from runtime.kv.full import FullStore
from runtime.kv.queries import RecentQueries


class ChunkRanking:
    """Ranks chunks of a sequence by the target's newest queries against its full KV cache, all KV heads of all layers
    that see the whole text voting together (the cross-model retrieval of SpecExtend, arXiv 2505.20776, asks one)."""

    def __init__(
        self,
        full: FullStore,
        queries: RecentQueries,
        chunk_size: int,
        scale: float,
        windows: Sequence[int | None] = (),
    ) -> None:
        """`windows`: tokens that each layer sees, None for all; empty where all do."""
        self.chunk_size = chunk_size
        self._full = full
        self._queries = queries
        self._scale = scale
        windows = windows or (None,) * full.n_layers
        self._layers = [layer for layer, window in enumerate(windows) if window is None]
        keys = full.keys(0, 0, 0)
        self._means: list[Tensor] = [keys.new_empty(keys.shape[0], 0, keys.shape[2]) for _ in range(full.n_layers)]

    def best(self, n_chunks: int, end: int) -> tuple[int, ...]:
        """The `n_chunks` best of the whole chunks before position `end`, ascending, the first always among them.

        Without queries, or where no layer sees the whole text, the newest are best.
        """
        n_whole = end // self.chunk_size
        queries = self._queries.latest()
        votes = torch.arange(n_whole, dtype=torch.float32)
        if queries and self._layers:
            votes = torch.stack([self._scores(layer, queries[layer])[:n_whole] for layer in self._layers]).sum(0)
        return tuple(best_chunks(votes[None], n_chunks, 0)[0].tolist())

    def _scores(self, layer: int, queries: Tensor) -> Tensor:
        """Scores of all whole chunks, [chunks]; only means not computed before are."""
        known = self._means[layer]
        keys = self._full.keys(layer, known.shape[1] * self.chunk_size, self._full.committed)
        self._means[layer] = torch.cat([known, chunk_means(keys, self.chunk_size)], 1)
        return chunk_scores(queries, self._means[layer], self._scale).sum(0)
