"""A drafter whose tokens are counted: how many it drafted, and how many stood."""

from runtime.drafter import Draft, Drafter
from runtime.stats import LevelStats


class CountedDrafter:
    """Reports a drafter that verifies nothing as a level of its own, whichever level it drafts for."""

    def __init__(self, name: str, drafter: Drafter) -> None:
        self._name = name
        self._drafter = drafter
        self._start = self._waiting = 0  # the last draft, until its verdict
        self._drafts = self._proposed = self._accepted = 0

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        draft = self._drafter.propose(tokens, gamma)
        self._start, self._waiting = len(tokens), len(draft.tokens)
        self._drafts += bool(draft.tokens)
        self._proposed += len(draft.tokens)
        return draft

    def trim(self, length: int) -> None:
        """What is kept of the last draft is what was accepted of it."""
        self._accepted += min(self._waiting, max(0, length - self._start))
        self._waiting = 0
        self._drafter.trim(length)

    def commit(self) -> None:
        self._drafter.commit()

    def levels(self) -> tuple[LevelStats, ...]:
        counts = LevelStats(self._name, self._drafts, self._proposed, self._accepted)
        return (counts, *self._drafter.levels())
