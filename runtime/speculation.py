"""The speculation loop: one round (`speculate`) and many (`decode`). The same at every level.

TriForce (arXiv 2404.11912) is this loop composed with itself: the target over its full KV cache, drafted for by the
target over its retrieval cache, drafted for by something cheaper.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from runtime.choices import Choices
from runtime.drafter import Drafter
from runtime.pacing import Pacing
from runtime.scorer import Scorer
from runtime.stats import LevelStats
from runtime.verify import Verdict, verify


@dataclass(frozen=True, slots=True)
class Round:
    """One round's emitted `tokens` and the distribution each has: `probs` [tokens, vocab]."""

    tokens: tuple[int, ...]
    probs: Tensor
    proposed: int
    verdict: Verdict


class Tally:
    """Running counters of one level."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rounds = self.proposed = self.accepted = 0

    def count(self, result: Round) -> None:
        self.rounds += 1
        self.proposed += result.proposed
        self.accepted += result.verdict.accepted

    def stats(self) -> LevelStats:
        return LevelStats(self.name, self.rounds, self.proposed, self.accepted)


def speculate(scorer: Scorer, drafter: Drafter, tokens: list[int], gamma: int, choices: Choices) -> Round:
    """Propose, score, verify, trim: one round after `tokens`, which is left as it was.

    Afterwards scorer and drafter hold no token beyond the accepted ones; nothing is committed.
    """
    draft = drafter.propose(tokens, gamma)
    probs = scorer.score(tokens, draft.tokens)
    verdict = verify(draft, probs, choices)
    kept = len(tokens) + verdict.accepted
    scorer.trim(kept)
    drafter.trim(kept)
    emitted = (*draft.tokens[: verdict.accepted], verdict.token)
    return Round(emitted, probs[: len(emitted)], len(draft.tokens), verdict)


def decode(scorer: Scorer, drafter: Drafter, tokens: list[int], pacing: Pacing, choices: Choices) -> Iterator[Round]:
    """Rounds without end; each round's tokens are appended to `tokens` and committed before it is yielded.

    The last token is always still unseen by the stores. When to stop is the caller's business, and so is cutting
    back what the last round emitted beyond the stop.
    """
    while True:
        result = speculate(scorer, drafter, tokens, pacing.gamma(), choices)
        tokens.extend(result.tokens)
        scorer.commit()
        drafter.commit()
        pacing.record(result.proposed, result.verdict.accepted)
        yield result
