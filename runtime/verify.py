"""The acceptance rule of speculative sampling (arXiv 2211.17192, algorithm 1), pure, used at every level."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
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
    total = rest.sum()
    return torch.where(total > 0, rest / total, p)  # chosen where it lies: the host need not know


def verify(draft: Draft, target_probs: Tensor, choices: Choices) -> Verdict:
    """How much of `draft` the target keeps, and the token after it, so that each token has the target's law.

    `target_probs` [len(draft.tokens) + 1, vocab]: the target's distribution before each draft token and after the
    last.
    """
    for i, chance in enumerate(_chances(draft, target_probs)):
        if not choices.coin(chance):
            return Verdict(i, choices.draw(_rest(draft, target_probs, i)), "recovered")
    return Verdict(len(draft.tokens), choices.draw(target_probs[len(draft.tokens)]), "bonus")


def _chances(draft: Draft, target_probs: Tensor) -> Iterable[float]:
    """With what chance each draft token stands, if those before it do; all are fetched from the device at once."""
    if not draft.tokens:
        return ()
    tokens = torch.tensor(draft.tokens).to(target_probs.device, non_blocking=True)[:, None]
    p = target_probs[: len(tokens)].gather(1, tokens)
    if draft.probs is None:
        return [chance for (chance,) in p.tolist()]
    return (p / q for p, q in torch.cat((p, draft.probs.gather(1, tokens)), 1).tolist())


def _rest(draft: Draft, target_probs: Tensor, i: int) -> Tensor:
    """What replaces the draft's token `i`, rejected, is drawn from this; [vocab], need not sum to one."""
    if draft.probs is not None:
        return residual(target_probs[i], draft.probs[i])
    rest = target_probs[i].clone()
    rest[draft.tokens[i]] = 0
    return rest
