"""What a draft model sees of a long text: a part of it that never moves, and the newest tokens."""

from collections.abc import Sequence

import torch

from runtime.kv.ranking import ChunkRanking
from runtime.kv.streaming import TAIL, StreamingStore
from runtime.models.decoder import Decoder

MOST_BEHIND = 32  # committed tokens that may still be fed together with a draft
REFRESH_EVERY = 64  # committed tokens after which chunks are ranked anew
SHARE_KEPT = 0.5  # what the new choice must have in common with the one that was read, else it is read


class DraftContext:
    """Keeps a draft model's StreamingLLM cache in step with the committed sequence, without reading all of it.

    In place of its sinks the cache can hold chunks from anywhere in the text, those that the target's attention
    ranks first: they are read in order as if they were the start of one short text that ends with the newest tokens.
    """

    def __init__(self, model: Decoder, store: StreamingStore, ranking: ChunkRanking | None = None) -> None:
        self._model = model
        self._store = store
        self._ranking = ranking
        self._wanted: tuple[int, ...] = ()  # chunks ranked first when last asked,
        self._read: tuple[int, ...] = ()  # and those that the cache holds
        self._ranked_at = 0

    def follow(self, tokens: Sequence[int], committed: int) -> None:
        """Let the cache stand after the first `committed` of `tokens`, or so near that a draft makes up for it.

        What it holds beyond, uncommitted, may be forgotten. What would be evicted at once is never fed.
        """
        store = self._store
        behind = committed - store.length
        if self._wants_others(committed) or behind > store.n_window:
            self._read_anew(tokens, committed)
        elif behind > MOST_BEHIND:
            self._feed(tokens[store.length : committed])

    def _wants_others(self, committed: int) -> bool:
        """Whether other chunks have become worth reading."""
        ranking, store = self._ranking, self._store
        if ranking is None or committed <= store.n_sinks + store.n_window:
            return False
        if self._read and committed - self._ranked_at < REFRESH_EVERY:
            return False
        self._ranked_at = committed
        self._wanted = ranking.best(store.n_sinks // ranking.chunk_size, committed - store.n_window)
        return len(set(self._wanted) & set(self._read)) < SHARE_KEPT * len(self._wanted)

    def _read_anew(self, tokens: Sequence[int], committed: int) -> None:
        store = self._store
        store.clear()
        n_skipped = committed - store.n_sinks - store.n_window
        if n_skipped > 0:
            self._feed(self._start(tokens))
            store.skip(n_skipped)
        self._feed(tokens[store.length : committed])

    def _start(self, tokens: Sequence[int]) -> Sequence[int]:
        """What stands where the start of the text would."""
        if self._ranking is None:
            return tokens[: self._store.n_sinks]
        self._read, size = self._wanted, self._ranking.chunk_size
        return [token for chunk in self._read for token in tokens[chunk * size : (chunk + 1) * size]]

    def _feed(self, ids: Sequence[int]) -> None:
        for start in range(0, len(ids), TAIL):
            step = torch.tensor(ids[start : start + TAIL], device=self._model.device)
            self._model.forward(step, self._store, n_logits=0)
            self._store.commit()
