"""Every random path of a decoder, replayed: the law of its output computed, not estimated."""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from itertools import product

import torch
from torch import Tensor

from runtime.choices import Choices
from runtime.config import Sampling
from runtime.drafter import Drafter, NoDrafter
from runtime.drafters.lookup import LookupDrafter
from runtime.drafters.model import ModelDrafter
from runtime.drafters.paced import FirstDrafter, PacedDrafter
from runtime.drafters.speculative import SpeculativeDrafter
from runtime.pacing import AdaptivePacing, Costs
from runtime.scorer import Scorer

VOCAB = 3
PROMPT = (2, 1, 0, 2, 0)
AS_IT_IS = Sampling(1.0, top_p=1.0)


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

    def pick(self, probs: Tensor) -> Tensor:
        return torch.tensor([self.draw(probs)])

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


class TableModel:
    """Stands in a decoder's place: logits follow from the last token alone."""

    device = torch.device("cpu")

    def __init__(self, probs: Tensor) -> None:
        self._logits = probs.log()

    def forward(self, ids: Tensor, store: "FedTokens", n_logits: int, observer: object) -> Tensor:
        store.tokens += ids.tolist()
        return self._logits[ids[len(ids) - n_logits :]]


class FedTokens:
    """Stands in a KV store's place: which tokens were fed, and that nothing committed is trimmed."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.committed = 0

    @property
    def length(self) -> int:
        return len(self.tokens)

    def trim(self, length: int) -> None:
        assert length >= self.committed, "trimmed below what is committed"
        del self.tokens[length:]

    def commit(self) -> None:
        self.committed = len(self.tokens)


class TableScorer(Scorer):
    """The real scorer, and the real chain, over a table; it checks that nothing stale is scored."""

    def __init__(self, probs: Tensor, sampling: Sampling = AS_IT_IS, answer_start: int = len(PROMPT)) -> None:
        super().__init__(TableModel(probs), FedTokens(), sampling, answer_start=answer_start)
        self.name = tuple(probs.flatten().tolist())

    def score(self, tokens: Sequence[int], draft: Sequence[int] = ()) -> Tensor:
        fed = self.store.tokens
        assert list(tokens[: len(fed)]) == fed, "what is held is not the sequence asked about"
        assert len(fed) < len(tokens), "the last known token must be unseen"
        return super().score(tokens, draft)


Compose = Callable[[Choices, Sampling], Drafter]


def nothing(choices: Choices, sampling: Sampling) -> Drafter:
    return NoDrafter()


def small(choices: Choices, sampling: Sampling) -> Drafter:
    return ModelDrafter(TableScorer(SMALL, sampling), choices)


def lookup(choices: Choices, sampling: Sampling) -> Drafter:
    return LookupDrafter(PROMPT, shortest=1)


def over(bottom: Compose, inner_gamma: int) -> Compose:
    def compose(choices: Choices, sampling: Sampling) -> Drafter:
        scorer = TableScorer(MIDDLE, sampling)
        return SpeculativeDrafter("middle", scorer, bottom(choices, sampling), inner_gamma, choices)

    return compose


def paced(choices: Choices, sampling: Sampling) -> Drafter:
    """As an answer is drafted for: each drafter under adaptive pacing, lookup where the middle level is off."""
    return FirstDrafter(
        PacedDrafter(over(lookup, 1)(choices, sampling), AdaptivePacing(2, Costs(0.3, 0.1), 0.6)),
        PacedDrafter(lookup(choices, sampling), AdaptivePacing(2, Costs(0.0, 0.1), 0.5)),
    )


def changing(choices: Choices, sampling: Sampling) -> Drafter:
    """A middle level whose inner gamma changes from pass to pass."""
    return over(lambda *given: PacedDrafter(small(*given), ChangingPacing(1, 0, 2)), 2)(choices, sampling)


class ChangingPacing:
    """Drafts so many tokens in turn, over and over."""

    def __init__(self, *gammas: int) -> None:
        self._gammas = gammas
        self._round = 0

    def gamma(self) -> int:
        return self._gammas[self._round % len(self._gammas)]

    def record(self, proposed: int, accepted: int) -> None:
        self._round += 1


def sequence_law(
    probs: Tensor, length: int, sampling: Sampling = AS_IT_IS, prompt: Sequence[int] = PROMPT
) -> dict[Hashable, float]:
    """The law of `length` tokens drawn one by one from a table through the chain; those of no chance are left out."""
    law = {}
    for sequence in product(range(VOCAB), repeat=length):
        weight = 1.0
        for i, token in enumerate(sequence):
            weight *= chances(probs, sampling, prompt, sequence[:i])[token]
        if weight > 0:
            law[sequence] = weight
    return law


def chances(probs: Tensor, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
    """The chain written once more, number by number, for the token after `prompt` and `answer`."""
    said = [*prompt, *answer]
    logits = [math.log(weight) for weight in probs[said[-1]].tolist()]
    for token, bias in sampling.logit_bias:
        logits[token] += bias
    for token in range(VOCAB):
        if token in said:
            penalty = sampling.repetition_penalty
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        logits[token] -= sampling.frequency_penalty * answer.count(token)
        logits[token] -= sampling.presence_penalty * (token in answer)
    if sampling.is_greedy:
        return [float(token == logits.index(max(logits))) for token in range(VOCAB)]
    weights = [math.exp(logit / sampling.temperature) for logit in logits]
    ranked = sorted(range(VOCAB), key=lambda token: -weights[token])
    kept = ranked[: sampling.top_k or VOCAB]
    total, mass, nucleus = sum(weights[token] for token in kept), 0.0, []
    for token in kept:
        if mass < sampling.top_p * total:
            nucleus.append(token)
        mass += weights[token]
    nucleus = [token for token in nucleus if weights[token] >= sampling.min_p * weights[nucleus[0]]]
    total = sum(weights[token] for token in nucleus)
    return [weights[token] / total if token in nucleus else 0.0 for token in range(VOCAB)]


def distance(first: dict[Hashable, float], second: dict[Hashable, float]) -> float:
    """Total variation."""
    return sum(abs(first.get(key, 0) - second.get(key, 0)) for key in first.keys() | second.keys()) / 2
