"""Two engines' texts of one page: when to ask the second, and which to take. Pure functions of text."""

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

from ingest.cleaning import HYPHEN, LOST

_ENOUGH_WORDS = 12
_DOUBTFUL_SHARE = 0.08
_CLEARLY = 0.02
_SAME_LETTERS = 0.95
_OVERLONG = re.compile(r"[^\W\d_]{31,}")
# One-letter words that are words, in the languages that have them.
_SHORT_WORDS = frozenset("aàeéiíoòuyAÀEIOUYкостяиуваКСТОИУВА")
_FINAL_LETTERS = frozenset("ךםןףץ")


@dataclass(frozen=True, slots=True)
class Shape:
    """How plausible a page's text is. All shares are 0 to 1.

    `one_letter`: words of one letter that is no word; `overlong`: characters in words of more than 30
    letters; `junk`: lost, private-use and control characters. `rtl_order` counts right-to-left words that
    look in order, less those that look reversed.
    """

    n_words: int
    one_letter: float
    overlong: float
    junk: float
    has_rtl: bool
    rtl_order: int

    @property
    def spacing_fault(self) -> float:
        return self.one_letter + self.overlong


def shape_of(text: str) -> Shape:
    words = text.replace(HYPHEN, "").split()
    n_characters = max(1, sum(map(len, words)))
    one_letter = sum(
        len(word) == 1 and word.isalpha() and word not in _SHORT_WORDS and not _is_wide(word) for word in words
    )
    overlong = sum(len(run) for run in _OVERLONG.findall(text) if not _is_wide(run[0]))
    junk = sum(_is_junk(character) for word in words for character in word)
    rtl_words = [word for word in words if "\u0590" <= word[0] <= "\u08ff" or "\ufb1d" <= word[0] <= "\ufefc"]
    return Shape(
        n_words=len(words),
        one_letter=one_letter / max(1, len(words)),
        overlong=overlong / n_characters,
        junk=junk / n_characters,
        has_rtl=bool(rtl_words),
        rtl_order=sum(map(_rtl_order, rtl_words)),
    )


def is_doubtful(shape: Shape, lost_share: float) -> bool:
    """Whether a text deserves a second opinion. `lost_share` of the page's glyphs have no known letter."""
    bad_spacing = shape.n_words >= _ENOUGH_WORDS and shape.spacing_fault > _DOUBTFUL_SHARE
    return bad_spacing or shape.overlong > 0.5 or shape.junk > 0 or lost_share > 0.01 or shape.has_rtl


def prefers_second(first: str, second: str) -> bool:
    """Whether `second` is clearly the better text of the page.

    With the same letters in both, one has a spacing fault. The second engine's own fault is to glue, never to
    split, so more words from it are taken unless they are scraps. With other letters, the one with less junk
    wins.
    """
    if not second.strip():
        return False
    if not first.strip():
        return True
    one, two = shape_of(first), shape_of(second)
    if one.has_rtl and one.rtl_order < 0 < two.rtl_order:
        return True
    if agreement(first, second) < _SAME_LETTERS:
        return two.junk < one.junk - _CLEARLY
    if two.junk > one.junk:
        return False
    if two.n_words > one.n_words:
        return two.spacing_fault <= one.spacing_fault
    return two.spacing_fault < one.spacing_fault - _CLEARLY and two.overlong <= one.overlong


def agreement(first: str, second: str) -> float:
    """The share of letters and digits, order aside, that two texts have in common."""
    one, two = (Counter(filter(str.isalnum, text)) for text in (first, second))
    return (one & two).total() / max(1, one.total(), two.total())


def _is_junk(character: str) -> bool:
    return character == LOST or unicodedata.category(character) in ("Co", "Cc", "Cn")


def _is_wide(character: str) -> bool:
    """Scripts written without spaces between words, where word lengths say nothing."""
    return (
        unicodedata.east_asian_width(character) in "WF"
        or "\u0e00" <= character <= "\u0eff"
        or "\u1000" <= character <= "\u109f"
    )


def _rtl_order(word: str) -> int:
    """1 for a word in logical order, -1 for one reversed, 0 where its letters do not tell."""
    if len(word) < 3:
        return 0
    right = word[-1] in _FINAL_LETTERS or word.startswith("ال")
    wrong = word[0] in _FINAL_LETTERS or word.endswith("لا")
    return right - wrong
