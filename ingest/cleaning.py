"""Text in, cleaner text out. Nothing here knows where the text came from.

Only what is certainly a fault of the encoding is mended. NFKC would damage code, superscripts and CJK widths.
"""

import re
from collections.abc import Set
from itertools import pairwise

HYPHEN = "\x02"
"""Stands for a hyphen at a line's end whose line break is gone: it may belong to the word or not."""

LOST = "\ufffd"
"""Stands for a glyph whose letter is not known."""

_LIGATURES = {
    0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "ſt", 0xFB06: "st",
}  # fmt: skip
# Symbol fonts are often mapped to the private use area by adding F000 to their own codes.
_SYMBOLS = {0xF020: " ", 0xF0A7: "▪", 0xF0B7: "•", 0xF0D8: "➢", 0xF0FC: "✓"}
_CONTROLS: dict[int, str] = {
    code: LOST for code in (*range(1, 9), *range(0x0E, 0x20), 0x7F, *range(0x80, 0xA0)) if code != ord(HYPHEN)
}
_MENDED = _LIGATURES | _SYMBOLS | _CONTROLS
_LINE_ENDS = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_UNPAIRED = re.compile("[\ud800-\udfff\ufffe\uffff]")
_END_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u2010\xad][ \t]*\n[ \t]*(?=[^\W\d_])")
# Bounded, so that a page of a million letters costs no more than its length.
_LONGEST_WORD = 80
_WORD_AT_END = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*\Z")
_WORD_AT_START = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")

# First halves after which a hyphen at a line's end is more often part of the word than not.
_COMPOUND_STARTS = frozenset(
    {
        "all", "anti", "best", "better", "blue", "bottom", "case", "clear", "client", "close", "cold",
        "cost", "cross", "dark", "double", "drop", "end", "ever", "ex", "far", "fast", "fine", "first",
        "five", "four", "free", "full", "general", "half", "hand", "hard", "head", "heavy", "high", "home",
        "hot", "ill", "kind", "large", "last", "late", "left", "light", "like", "little", "long", "low",
        "machine", "many", "market", "mean", "mid", "middle", "mind", "more", "most", "multi", "near",
        "never", "new", "next", "nine", "non", "north", "old", "one", "open", "own", "part", "peer",
        "plain", "point", "post", "power", "price", "pre", "pro", "quality", "quick", "read", "real", "red",
        "right", "run", "second", "self", "semi", "server", "seven", "short", "side", "single", "six",
        "slow", "small", "south", "state", "step", "still", "ten", "third", "three", "time", "top", "two",
        "type", "ultra", "user", "value", "vice", "water", "well", "white", "wide", "word", "work", "world",
        "write", "year",
    }
)  # fmt: skip


def fold_line_ends(text: str) -> str:
    r"""Every line of `text` ended by "\n": for files, where a form feed or U+2028 is part of the line."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def clean_page(text: str) -> str:
    r"""A page's text as a PDF engine gives it, mended: lines by "\n" alone, ligatures as letters, no NUL or
    other control character, lost glyphs as U+FFFD, hyphens of joined lines as `HYPHEN` (see
    `join_hyphens`)."""
    text = _UNPAIRED.sub(LOST, _LINE_ENDS.sub("\n", text))
    text = text.replace("\0", "").translate(_MENDED)
    text = _END_HYPHEN.sub(HYPHEN, text).replace("\xad", "-")
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")


def words_of(text: str) -> set[str]:
    """The words in `text`, in lower case, hyphenated ones whole and in parts; without broken words."""
    words: set[str] = set()
    pieces = text.lower().split(HYPHEN)
    for number, piece in enumerate(pieces):
        start = len(_first_word(piece)) if number > 0 else 0
        end = len(piece) - (len(_last_word(piece)) if number < len(pieces) - 1 else 0)
        for word in _WORD.findall(piece, start, max(start, end)):
            words.add(word)
            words.update(word.split("-"))
    return words


def join_hyphens(text: str, known: Set[str]) -> str:
    """Decides every `HYPHEN`: "infor|mation" to "information", "price|determining" to "price-determining".

    `known` are the words of the whole document (`words_of`). A word written joined elsewhere is joined, one
    written with its hyphen keeps it. Otherwise the hyphen stays where both halves are words of the document,
    or the first commonly starts a compound. Between anything but two words it was a plain hyphen.
    """
    pieces = text.split(HYPHEN)
    joined = pieces[:1]
    for before, after in pairwise(pieces):
        joined += ("-" if _keeps_hyphen(_last_word(before), _first_word(after), known) else "", after)
    return "".join(joined)


def _keeps_hyphen(first: str, second: str, known: Set[str]) -> bool:
    if not first or not second or second[0].isupper() or "-" in first:
        return True
    start, rest = first.lower(), second.lower()
    if start + rest in known:
        return False
    if f"{start}-{rest}" in known:
        return True
    rest = rest.partition("-")[0]
    is_compound = start in _COMPOUND_STARTS and len(rest) > 3
    return is_compound or (start in known and rest in known and min(len(start), len(rest)) > 2)


def _last_word(text: str) -> str:
    match = _WORD_AT_END.search(text[-_LONGEST_WORD:])
    return match[0] if match else ""


def _first_word(text: str) -> str:
    match = _WORD_AT_START.match(text[:_LONGEST_WORD])
    return match[0] if match else ""


def show_name(path: str) -> str:
    r"""A file's path so that it can be printed and cannot pretend: backslashes doubled; control, invisible
    and direction characters, and bytes that are no text, written as escapes ("\n", "\u202e", "\xff")."""
    return "".join(_show_character(character) for character in path)


def _show_character(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # How os.fsdecode carries a byte that is not UTF-8.
        return f"\\x{code - 0xDC00:02x}"
    if character == "\\":
        return "\\\\"
    if character.isprintable() and code not in (0x115F, 0x1160, 0x3164, 0xFFA0):
        return character
    return character.encode("unicode_escape").decode("ascii")
