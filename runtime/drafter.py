"""What a draft is, and what proposes one."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from runtime.stats import LevelStats


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens. `probs[i]` [tokens, vocab] is the distribution `tokens[i]` was really drawn from, given the
    tokens before it. None: each token was proposed with certainty (a one-hot)."""

    tokens: tuple[int, ...] = ()
    probs: Tensor | None = None


class Drafter(Protocol):
    """Proposes continuations of a sequence and follows what becomes of them."""

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        """At most `gamma` tokens to follow `tokens` (all of the sequence; left as it was on return)."""
        ...

    def trim(self, length: int) -> None:
        """Forget everything from position `length` on."""
        ...

    def commit(self) -> None:
        """What is held now is part of the answer for good."""
        ...

    def levels(self) -> tuple[LevelStats, ...]:
        """Counters of the levels inside, from the top down."""
        ...


class NoDrafter:
    """Proposes nothing: plain decoding."""

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        return Draft()

    def trim(self, length: int) -> None:
        pass

    def commit(self) -> None:
        pass

    def levels(self) -> tuple[LevelStats, ...]:
        return ()
