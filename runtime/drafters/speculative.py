"""A scorer, itself drafted for, as a drafter: TriForce's middle level (arXiv 2404.11912, section 4)."""

import torch

from runtime.choices import Choices
from runtime.drafter import Draft, Drafter
from runtime.scorer import Scorer
from runtime.speculation import Tally, speculate
from runtime.stats import LevelStats


class SpeculativeDrafter:
    """Drafts by speculative decoding of its own: what it proposes has exactly its scorer's distribution."""

    def __init__(self, name: str, scorer: Scorer, drafter: Drafter, inner_gamma: int, choices: Choices) -> None:
        self._scorer = scorer
        self._drafter = drafter
        self._inner_gamma = inner_gamma
        self._choices = choices
        self._tally = Tally(name)

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        start, rows = len(tokens), []
        try:
            while (room := start + gamma - len(tokens)) > 0:
                inner = min(self._inner_gamma, room - 1)  # a round emits one token more than it drafts
                result = speculate(self._scorer, self._drafter, tokens, inner, self._choices)
                self._tally.count(result)
                tokens.extend(result.tokens)
                rows.append(result.probs)
            return Draft(tuple(tokens[start:]), torch.cat(rows)) if rows else Draft()
        finally:
            del tokens[start:]

    def trim(self, length: int) -> None:
        self._scorer.trim(length)
        self._drafter.trim(length)

    def commit(self) -> None:
        self._scorer.commit()
        self._drafter.commit()

    def levels(self) -> tuple[LevelStats, ...]:
        return (self._tally.stats(), *self._drafter.levels())
