"""A small model as a drafter."""

import torch
from torch import Tensor

from runtime.choices import Choices
from runtime.drafter import Draft
from runtime.drafters.context import DraftContext
from runtime.scorer import Scorer
from runtime.stats import LevelStats


class ModelDrafter:
    """Draws each token from a draft model, one pass a token. The host learns the tokens when all are drawn, unless the
    sampling counts them.

    `context` keeps the model's cache in step while others draft; without one the cache must hold whatever it is fed.
    """

    def __init__(self, scorer: Scorer, choices: Choices, context: DraftContext | None = None) -> None:
        self._scorer = scorer
        self._choices = choices
        self._context = context
        self._kept = self._committed = 0

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        if gamma == 0:
            return Draft()
        if self._context is not None:
            self._context.follow(tokens, self._committed)
        start, counts = len(tokens), self._scorer.counts_tokens
        rows: list[Tensor] = []
        picked: list[Tensor] = []
        try:
            while len(rows) < gamma:
                anew = counts or not picked
                rows.append(self._scorer.score(tokens) if anew else self._scorer.score_next(picked[-1]))
                picked.append(self._choices.pick(rows[-1][0]))
                if counts:
                    tokens.append(int(picked[-1]))
            return Draft(tuple(torch.cat(picked).tolist()), torch.cat(rows))
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
