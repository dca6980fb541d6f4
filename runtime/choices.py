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

    def pick(self, probs: Tensor) -> Tensor:
        """What `draw` would give, as a tensor [1] where `probs` lies: the host does not wait for it."""
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
        token = int(self.pick(probs))
        if token == len(probs):
            raise ValueError("no token has any probability")
        return token

    def pick(self, probs: Tensor) -> Tensor:
        cumulative = probs.to(torch.float64).cumsum(0)
        # Uniform numbers have 53 bits, so even the largest times the total is below the total: some token is found.
        point = self._uniform() * cumulative[-1:]
        return torch.searchsorted(cumulative, point, right=True)

    def coin(self, chance: float) -> bool:
        return self._uniform() < chance

    def _uniform(self) -> float:
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))
