"""A small model as a drafter."""

from collections.abc import Sequence

import torch

from runtime.choices import Choices
from runtime.drafter import Draft
from runtime.kv.streaming import TAIL, StreamingStore
from runtime.models.decoder import Decoder
from runtime.scorer import Scorer
from runtime.stats import LevelStats


class ModelDrafter:
    """Draws each token from a draft model, one pass a token."""

    def __init__(self, scorer: Scorer, choices: Choices) -> None:
        self._scorer = scorer
        self._choices = choices

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        start, rows = len(tokens), []
        try:
            for _ in range(gamma):
                probs = self._scorer.score(tokens)
                rows.append(probs)
                tokens.append(self._choices.draw(probs[0]))
            return Draft(tuple(tokens[start:]), torch.cat(rows)) if rows else Draft()
        finally:
            del tokens[start:]

    def trim(self, length: int) -> None:
        self._scorer.trim(length)

    def commit(self) -> None:
        self._scorer.commit()

    def levels(self) -> tuple[LevelStats, ...]:
        return ()


def feed_window(decoder: Decoder, store: StreamingStore, ids: Sequence[int]) -> None:
    """Let an empty StreamingLLM cache stand after `ids`: its sinks and its window are fed, the middle is skipped.

    What lies between would be evicted anyway, and feeding it would cost a pass over the whole document.
    """
    n_skipped = len(ids) - store.n_sinks - store.n_window
    if n_skipped > 0:
        _feed(decoder, store, ids[: store.n_sinks])
        store.skip(n_skipped)
    _feed(decoder, store, ids[store.length :])


def _feed(decoder: Decoder, store: StreamingStore, ids: Sequence[int]) -> None:
    for start in range(0, len(ids), TAIL):
        step = torch.tensor(ids[start : start + TAIL], device=decoder.device)
        decoder.forward(step, store, n_logits=0)
        store.commit()
