"""How many tokens to draft next: so many as pay, none where drafting loses.

All decisions follow from counted acceptances and from costs that stay as they are while a model is used, never from a
clock, so a seed still fixes an answer.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Protocol

PRIOR_TOKENS = 8.0  # the weight of the assumed acceptance, in drafted tokens
MEMORY = 0.9  # how much of what was counted still counts a round later
WORTHWHILE = 1.03  # a predicted gain below this is none
RETRY_AFTER = 32  # rounds without drafts before drafting is tried again


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


@dataclass(frozen=True, slots=True)
class PassCosts:
    """What forward passes of a model cost on this machine, in seconds with their sampling, as measured.

    `short` and `long` are passes over caches of the two `lengths`, for each of `tokens` fed. With `threads` decoding
    is fastest, a prompt block with `most_threads`: one token's pass is hundreds of short steps, at the end of each of
    which all threads meet.
    """

    most_threads: int
    threads: int
    lengths: tuple[int, int]
    tokens: tuple[int, ...]
    short: tuple[float, ...]
    long: tuple[float, ...]

    def seconds(self, n_tokens: int, n_held: int) -> float:
        """For `n_tokens` fed over `n_held` cached ones, on straight lines between and beyond what was measured."""
        right = min(max(1, bisect_left(self.tokens, n_tokens)), len(self.tokens) - 1)
        left_tokens, right_tokens = self.tokens[right - 1 : right + 1]
        share = (n_tokens - left_tokens) / (right_tokens - left_tokens)
        short, long = (row[right - 1] + share * (row[right] - row[right - 1]) for row in (self.short, self.long))
        shortest, longest = self.lengths
        return max(short, short + (long - short) * (n_held - shortest) / (longest - shortest))


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a round in plain steps: `draft` for each drafted token, `extra` for each one more in a verify pass.

    Where `passes` are known, `passes[n]` is what a pass costs that verifies n tokens, and `extra` goes on from there.
    """

    draft: float
    extra: float
    passes: tuple[float, ...] = (1.0,)

    def verify(self, gamma: int) -> float:
        """What a pass that verifies `gamma` tokens costs."""
        last = len(self.passes) - 1
        return self.passes[min(gamma, last)] + max(0, gamma - last) * self.extra

    def beside_bus(self, carried: float, most: int, for_draft: float = 0.0) -> "Costs":
        """The same where passes over the full cache take `carried` plain steps to bring what they need, while they
        compute: as long as either takes; and a drafted token's pass `for_draft`. For `most` drafted at a time."""
        if carried <= 0:
            return self
        plain = max(1.0, carried)
        verify = (max(self.verify(n), carried) / plain for n in range(most + 1))
        return Costs(max(self.draft, for_draft) / plain, self.extra / plain, tuple(verify))

    def speed_up(self, gamma: int, acceptance: float) -> float:
        """Tokens a round emits over what it costs; arXiv 2211.17192, equation 1 and theorem 3.8."""
        emitted = gamma + 1.0 if acceptance >= 1 else (1 - acceptance ** (gamma + 1)) / (1 - acceptance)
        return emitted / (self.verify(gamma) + gamma * self.draft)

    def best_gamma(self, most: int, acceptance: float) -> int:
        """The gamma of the highest predicted speed-up; 0 where none is worthwhile."""
        gamma = max(range(most + 1), key=lambda n: self.speed_up(n, acceptance))
        return gamma if self.speed_up(gamma, acceptance) >= WORTHWHILE else 0


class AdaptivePacing:
    """The gamma that pays best at the acceptance seen lately; off while none pays, and now and then tried again."""

    def __init__(self, most: int, costs: Costs, acceptance: float) -> None:
        """`acceptance` is what to assume before anything is counted."""
        self._most = most
        self._costs = costs
        self._proposed = PRIOR_TOKENS
        self._accepted = PRIOR_TOKENS * acceptance
        self._rounds_off = 0

    @property
    def acceptance(self) -> float:
        """The rate at which single drafted tokens are accepted."""
        return self._accepted / self._proposed

    def gamma(self) -> int:
        best = self._costs.best_gamma(self._most, self.acceptance)
        if best == 0 and self._rounds_off >= RETRY_AFTER:
            return min(2, self._most)
        return best

    def record(self, proposed: int, accepted: int) -> None:
        if proposed == 0:
            self._rounds_off += 1
            return
        self._rounds_off = 0
        # Tokens behind the first rejected one were never put to the test.
        tested = min(accepted + 1, proposed)
        self._proposed = self._proposed * MEMORY + tested
        self._accepted = self._accepted * MEMORY + accepted
