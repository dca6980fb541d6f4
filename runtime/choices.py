"""The only source of randomness: every random decision of the runtime is a `draw` or a `coin`."""

import secrets
from typing import Protocol

import torch
from torch import Tensor


class Choices(Protocol):
    """Where tokens and acceptances come from; a test may replay every path through one."""

    def draw(self, probs: Tensor) -> int:
        """A token drawn from `probs` [vocab], which need not sum to one."""
        ...

    def coin(self, chance: float) -> bool:
        """True with probability `chance` (1 or more: always; 0: never)."""
        ...


class SeededChoices:
    """Choices from one generator of its own; the global generator is untouched. Seed None takes a fresh one."""

    def __init__(self, seed: int | None = None) -> None:
        self._generator = torch.Generator()
        self._generator.manual_seed(secrets.randbits(63) if seed is None else seed)

    def draw(self, probs: Tensor) -> int:
        cumulative = probs.to(torch.float64).cumsum(0)
        point = self._uniform() * cumulative[-1:]  # on the device as well: the token is all that the host waits for
        index = int(torch.searchsorted(cumulative, point, right=True))
        if index < len(cumulative):
            return index
        # The product rounded up to the total: take the last token that has any probability.
        return int(torch.nonzero(probs > 0)[-1])

    def coin(self, chance: float) -> bool:
        return self._uniform() < chance

    def _uniform(self) -> float:
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))
