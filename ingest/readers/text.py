"""Text, Markdown and source files, and notebooks: one page each."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from ingest.cleaning import fold_line_ends
from ingest.document import Flag, Page
from ingest.errors import NoText, UnknownFormat
from ingest.messages import Begin, Head, Job, Result
from ingest.readers.encoding import decode
from ingest.readers.notebook import cells_of

# Controls of writing direction, invisible operators, and the invisible tag alphabet. Joiners are left out: many
# scripts, and emoji, need them.
_INVISIBLE = re.compile("[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0020-\U000e007f]")
# The flags of regions (England, Texas) are a black flag and a short word in tags.
_REGION_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e007a]{3,6}\U000e007f")
_MOST_CODES = 6
_UNPAIRED = re.compile("[\ud800-\udfff]")


def read_text(job: Job) -> Iterator[Head | Begin | Result]:
    """The file as one page. Raises `UnknownFormat` for a binary file, `NoText` for one of blanks."""
    yield Begin("file", job.limits.opening_seconds)
    data = Path(job.path).read_bytes()
    yield Head(1, hashlib.sha256(data).hexdigest())
    read = text_of(data, job.name)
    if read is None:
        raise UnknownFormat(job.name)
    text, flags = read
    if not text.strip():
        raise NoText(job.name, 1)
    longest = longest_line(text)
    if longest > job.limits.line_length:
        flags = (*flags, Flag("long_line", detail=f"{longest:,} characters"))
    told = tuple(Flag(flag.code, (1,), flag.detail) for flag in flags)
    yield Result("file", (Page(1, job.name, text),), told)


def text_of(data: bytes, name: str) -> tuple[str, tuple[Flag, ...]] | None:
    r"""A file's text (a notebook's as cells), lines ended by "\n", and what to tell; None when it is
    binary."""
    decoded = decode(data)
    if decoded is None:
        return None
    text, flags = _UNPAIRED.sub("\ufffd", fold_line_ends(decoded.text)), decoded.flags
    if name.lower().endswith(".ipynb"):
        cells = cells_of(text)
        if cells is None:
            flags = (*flags, Flag("notebook", detail="its JSON is broken or has no cells"))
        else:
            text = cells
    return text, flags + _invisible(text)


def longest_line(text: str) -> int:
    return max(map(len, text.split("\n")))


def _invisible(text: str) -> tuple[Flag, ...]:
    found = _INVISIBLE.findall(_REGION_FLAG.sub("", text))
    if not found:
        return ()
    codes = sorted(f"U+{ord(character):04X}" for character in set(found))
    shown = ", ".join(codes[:_MOST_CODES]) + (", ..." if len(codes) > _MOST_CODES else "")
    return (Flag("invisible", detail=f"{len(found):,}: {shown}"),)
