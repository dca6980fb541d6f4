"""A drafter whose tokens are counted: how many it drafted, and how many stood."""

from runtime.drafter import Draft, Drafter
from runtime.stats import LevelStats


class DraftCounts:
    """Running counters of what goes by one name, from one drafter or several."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.drafts = self.proposed = self.accepted = 0

    def stats(self) -> LevelStats:
        return LevelStats(self.name, self.drafts, self.proposed, self.accepted)


class CountedDrafter:
    """Reports a drafter that verifies nothing as a level of its own, whichever level it drafts for."""

    def __init__(self, drafter: Drafter, counts: DraftCounts) -> None:
        self._drafter = drafter
        self._counts = counts
        self._start = self._waiting = 0  # the last draft, until its verdict

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        draft = self._drafter.propose(tokens, gamma)
        self._start, self._waiting = len(tokens), len(draft.tokens)
        self._counts.drafts += bool(draft.tokens)
        self._counts.proposed += len(draft.tokens)
        return draft

    def trim(self, length: int) -> None:
        """What is kept of the last draft is what was accepted of it."""
        self._counts.accepted += min(self._waiting, max(0, length - self._start))
        self._waiting = 0
        self._drafter.trim(length)

    def commit(self) -> None:
        self._drafter.commit()

    def levels(self) -> tuple[LevelStats, ...]:
        return (self._counts.stats(), *self._drafter.levels())
