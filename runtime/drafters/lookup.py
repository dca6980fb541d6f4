"""Drafting from the sequence itself: what followed the longest earlier match of the newest tokens.

After prompt lookup decoding (Saxena, 2023); answers about documents quote them.
"""

from collections import deque
from collections.abc import Sequence

from runtime.drafter import Draft
from runtime.stats import LevelStats

KEPT_PLACES = 8


class LookupDrafter:
    """Proposes, with certainty, the continuation of an earlier occurrence of the last `shortest` tokens or more.

    The longer the match the longer the draft: a match of m tokens proposes at most m - shortest + 2, since
    short matches are wrong more often than not. Indexing costs O(1) a token; of the places where a gram occurs
    the newest `KEPT_PLACES` are compared, over at most `longest` tokens. Only committed tokens are indexed.
    """

    def __init__(self, prompt: Sequence[int], shortest: int = 3, longest: int = 16) -> None:
        self._shortest = shortest
        self._longest = longest
        self._length = self._committed = len(prompt)
        self._indexed = 0
        self._places: dict[tuple[int, ...], deque[int]] = {}
        self._index(prompt)

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        self._index(tokens)
        place, matched = self._longest_match(tokens)
        if matched == 0:
            return Draft()
        wanted = min(gamma, matched - self._shortest + 2)
        return Draft(tuple(tokens[place : place + wanted]))

    def trim(self, length: int) -> None:
        self._length = length

    def commit(self) -> None:
        self._committed = self._length

    def levels(self) -> tuple[LevelStats, ...]:
        return ()

    def _index(self, tokens: Sequence[int]) -> None:
        """Note where each gram of the committed tokens ends: the place of the token after it."""
        size = self._shortest
        for end in range(max(self._indexed, size), self._committed):
            gram = tuple(tokens[end - size : end])
            self._places.setdefault(gram, deque(maxlen=KEPT_PLACES)).append(end)
        self._indexed = max(self._indexed, self._committed)

    def _longest_match(self, tokens: list[int]) -> tuple[int, int]:
        """Where the continuation of the longest match starts (the newest of equals), and the match's length."""
        place, longest = 0, 0
        for end in reversed(self._places.get(tuple(tokens[-self._shortest :]), ())):
            matched = self._shortest
            while matched < min(self._longest, end) and tokens[end - matched - 1] == tokens[len(tokens) - matched - 1]:
                matched += 1
            if matched > longest:
                place, longest = end, matched
        return place, longest
