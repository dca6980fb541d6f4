"""Drafters under a pacing of their own, and the choice between several."""

from runtime.drafter import Draft, Drafter
from runtime.pacing import Pacing
from runtime.stats import LevelStats


class PacedDrafter:
    """Lets a drafter propose as many tokens as its own pacing says, none while it loses."""

    def __init__(self, drafter: Drafter, pacing: Pacing) -> None:
        self._drafter = drafter
        self._pacing = pacing
        self._start = self._proposed = 0

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        draft = Draft()
        if wanted := min(gamma, self._pacing.gamma()):
            draft = self._drafter.propose(tokens, wanted)
        self._start, self._proposed = len(tokens), len(draft.tokens)
        return draft

    def trim(self, length: int) -> None:
        """What is kept of the last draft is what was accepted of it."""
        self._pacing.record(self._proposed, min(self._proposed, max(0, length - self._start)))
        self._proposed = 0
        self._drafter.trim(length)

    def commit(self) -> None:
        self._drafter.commit()

    def levels(self) -> tuple[LevelStats, ...]:
        return self._drafter.levels()


class FirstDrafter:
    """The first of several drafters that proposes anything. What goes by one name among their levels is one."""

    def __init__(self, *drafters: Drafter) -> None:
        self._drafters = drafters

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        for drafter in self._drafters:
            draft = drafter.propose(tokens, gamma)
            if draft.tokens:
                return draft
        return Draft()

    def trim(self, length: int) -> None:
        for drafter in self._drafters:
            drafter.trim(length)

    def commit(self) -> None:
        for drafter in self._drafters:
            drafter.commit()

    def levels(self) -> tuple[LevelStats, ...]:
        named = {level.name: level for drafter in self._drafters for level in drafter.levels()}
        return tuple(named.values())
