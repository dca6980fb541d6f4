"""Every random path of a decoder, replayed: the law of its output computed, not estimated."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from itertools import product

import torch
from torch import Tensor

VOCAB = 3


class ReplayedChoices:
    """Choices that follow a scripted path of outcomes and note how many each had."""

    def __init__(self, path: Sequence[int]) -> None:
        self._path = path
        self.widths: list[int] = []
        self.weight = 1.0

    def draw(self, probs: Tensor) -> int:
        law = probs / probs.sum()
        outcomes = [i for i, chance in enumerate(law.tolist()) if chance > 0]
        return outcomes[self._pick([float(law[i]) for i in outcomes])]

    def coin(self, chance: float) -> bool:
        chance = min(1.0, chance)
        outcomes = [(heads, weight) for heads, weight in ((False, 1 - chance), (True, chance)) if weight > 0]
        return outcomes[self._pick([weight for _, weight in outcomes])][0]

    def _pick(self, weights: list[float]) -> int:
        depth = len(self.widths)
        pick = self._path[depth] if depth < len(self._path) else 0
        self.widths.append(len(weights))
        self.weight *= weights[pick]
        return pick


def output_law(decode: Callable[[ReplayedChoices], Hashable]) -> dict[Hashable, float]:
    """The probability of each output of `decode`, over all its random paths."""
    law: dict[Hashable, float] = defaultdict(float)
    path: list[int] = []
    while True:
        choices = ReplayedChoices(path)
        law[decode(choices)] += choices.weight
        path = [*path, *[0] * (len(choices.widths) - len(path))][: len(choices.widths)]
        while path and path[-1] + 1 == choices.widths[len(path) - 1]:
            path.pop()
        if not path:
            return dict(law)
        path[-1] += 1


def table(*rows: Sequence[int]) -> Tensor:
    """A model of the next token given the last: weights per row, normalised, [vocab, vocab] in float64."""
    weights = torch.tensor(rows, dtype=torch.float64)
    return weights / weights.sum(1, keepdim=True)


TARGET = table([1, 2, 7], [5, 3, 2], [2, 2, 6])
MIDDLE = table([6, 3, 1], [4, 4, 2], [1, 5, 4])
SMALL = table([2, 3, 5], [3, 3, 4], [7, 2, 1])


class TableScorer:
    """A scorer over a table that checks how it is fed: nothing stale, nothing trimmed that was committed."""

    def __init__(self, probs: Tensor) -> None:
        self._probs = probs
        self._seen: list[int] = []
        self._committed = 0

    def score(self, tokens: Sequence[int], draft: Sequence[int] = ()) -> Tensor:
        sequence = [*tokens, *draft]
        assert sequence[: len(self._seen)] == self._seen, "what is held is not the sequence asked about"
        assert len(self._seen) < len(tokens), "the last known token must be unseen"
        self._seen = sequence
        return self._probs[sequence[len(tokens) - 1 :]]

    def trim(self, length: int) -> None:
        assert length >= self._committed, "trimmed below what is committed"
        del self._seen[length:]

    def commit(self) -> None:
        self._committed = len(self._seen)


def sequence_law(probs: Tensor, start: int, length: int) -> dict[Hashable, float]:
    """The law of `length` tokens drawn one by one from a table."""
    law = {}
    for sequence in product(range(VOCAB), repeat=length):
        weight, last = 1.0, start
        for token in sequence:
            weight *= float(probs[last, token])
            last = token
        law[sequence] = weight
    return law


def distance(first: dict[Hashable, float], second: dict[Hashable, float]) -> float:
    """Total variation."""
    return sum(abs(first.get(key, 0) - second.get(key, 0)) for key in first.keys() | second.keys()) / 2
