"""A small model as a drafter."""

import torch

from runtime.choices import Choices
from runtime.drafter import Draft
from runtime.drafters.context import DraftContext
from runtime.scorer import Scorer
from runtime.stats import LevelStats


class ModelDrafter:
    """Draws each token from a draft model, one pass a token.

    `context` keeps the model's cache in step while others draft; without one the cache must hold whatever it is fed.
    """

    def __init__(self, scorer: Scorer, choices: Choices, context: DraftContext | None = None) -> None:
        self._scorer = scorer
        self._choices = choices
        self._context = context
        self._kept = self._committed = 0

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        start, rows = len(tokens), []
        if gamma and self._context is not None:
            self._context.follow(tokens, self._committed)
        try:
            for _ in range(gamma):
                probs = self._scorer.score(tokens)
                rows.append(probs)
                tokens.append(self._choices.draw(probs[0]))
            return Draft(tuple(tokens[start:]), torch.cat(rows)) if rows else Draft()
        finally:
            del tokens[start:]

    def trim(self, length: int) -> None:
        self._kept = length
        self._scorer.trim(length)

    def commit(self) -> None:
        self._committed = self._kept
        self._scorer.commit()

    def levels(self) -> tuple[LevelStats, ...]:
        return ()
