"""Drafting from the sequence itself: what followed the longest earlier match of the newest tokens.

After prompt lookup decoding (Saxena, 2023); answers about documents quote them.
"""

from collections.abc import Sequence

from runtime.drafter import Draft
from runtime.drafters.grams import LONGEST_GRAM, Grams, Places
from runtime.stats import LevelStats

LONGEST_MATCH = 32


class LookupDrafter:
    """Proposes, with certainty, the continuation of an earlier occurrence of the last `shortest` tokens or more.

    The longest match wins, the newest of equals. The longer the match the longer the draft: of `m` tokens it is
    m - 1 long, and from `LONGEST_MATCH` on as long as is asked for, so a copy that goes on doubles its drafts. Where
    manuals and source files continue themselves, a fifth to a third of such drafts hold whole; among equal matches
    the continuation that most places share was right no more often than the newest.

    Only committed tokens are indexed. Another drafter may share the index `grams` of the prompt.
    """

    def __init__(self, prompt: Sequence[int], shortest: int = 3, grams: Grams | None = None) -> None:
        self._grams = grams or Grams(prompt, min(shortest, LONGEST_GRAM))
        self._shortest = shortest
        self._length = self._committed = len(prompt)

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        self._grams.grow(tokens, self._committed)
        place, matched = self._longest_match(tokens)
        if matched < self._shortest:
            return Draft()
        wanted = gamma if matched == LONGEST_MATCH else min(gamma, matched - 1 or 1)
        period = len(tokens) - place
        # What would follow the newest token repeats what is between the match and it.
        return Draft(tuple(tokens[place + i % period] for i in range(wanted)))

    def trim(self, length: int) -> None:
        self._length = length

    def commit(self) -> None:
        self._committed = self._length

    def levels(self) -> tuple[LevelStats, ...]:
        return ()

    def _longest_match(self, tokens: list[int]) -> tuple[int, int]:
        """Where the continuation of the longest match starts (the newest of equals), and the match's length."""
        size = self._grams.size
        places = self._grams.places_after(tokens[-size:])
        matched = size if len(places) else 0
        while len(places) and matched < min(LONGEST_MATCH, len(tokens)):
            agreeing = self._preceded_by(tokens[-matched - 1], places, matched)
            if not len(agreeing):
                break
            places, matched = agreeing, matched + 1
        return (int(places[-1]) if len(places) else 0), matched

    def _preceded_by(self, token: int, places: Places, distance: int) -> Places:
        before = places - distance - 1
        agreeing: Places = places[(before >= 0) & (self._grams.ids[before] == token)]
        return agreeing
