"""How many tokens to draft next."""

from typing import Protocol


class Pacing(Protocol):
    """Decides the speculation length of the next round from what became of the rounds before."""

    def gamma(self) -> int: ...

    def record(self, proposed: int, accepted: int) -> None: ...


class FixedPacing:
    """Always the same gamma."""

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma

    def gamma(self) -> int:
        return self._gamma

    def record(self, proposed: int, accepted: int) -> None:
        pass
