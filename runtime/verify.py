"""The acceptance rule of speculative sampling (arXiv 2211.17192, algorithm 1), pure, used at every level."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from runtime.choices import Choices
from runtime.drafter import Draft


@dataclass(frozen=True, slots=True)
class Verdict:
    """`accepted` tokens of the draft stand; `token` follows them: recovered after a rejection, or the bonus token."""

    accepted: int
    token: int
    origin: Literal["recovered", "bonus"]


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The distribution max(0, p - q), normalised, that a rejected token is replaced from; [vocab].

    Where p and q differ by rounding alone nothing is left of the difference, and p itself is as good.
    """
    rest = (p - q).clamp(min=0)
    total = float(rest.sum())
    return rest / total if total > 0 else p


def verify(draft: Draft, target_probs: Tensor, choices: Choices) -> Verdict:
    """How much of `draft` the target keeps, and the token after it, so that each token has the target's law.

    `target_probs` [len(draft.tokens) + 1, vocab]: the target's distribution before each draft token and after the
    last.
    """
    for i, token in enumerate(draft.tokens):
        p = target_probs[i]
        if draft.probs is None:
            if not choices.coin(float(p[token])):
                rest = p.clone()
                rest[token] = 0
                return Verdict(i, choices.draw(rest), "recovered")
            continue
        q = draft.probs[i]
        if not choices.coin(float(p[token]) / float(q[token])):
            return Verdict(i, choices.draw(residual(p, q)), "recovered")
    return Verdict(len(draft.tokens), choices.draw(target_probs[len(draft.tokens)]), "bonus")
