"""What a person must be told about a document that was read: flags, merged and in plain words."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ingest.cleaning import show_name
from ingest.document import Flag
from ingest.selection import show_pages

_MOST_DETAILS = 8


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file of a tree that was not read: its raw path, the reason as a clause, particulars such as a
    size."""

    path: str
    reason: str
    particulars: str = ""


_SENTENCES: Final[dict[str, str]] = {
    "no_text": "There is no text on {where}, only pictures or drawings (a scan, as a rule).",
    "page_failed": "{Where} could not be read{because}.",
    "recovered": "{Where} could only be read the second-best way{because}.",
    "undecodable": "The fonts on {where} do not say what some letters are{because}.",
    "no_font": "{Where} holds text in a font that is neither in the file nor on this machine; that text is missing.",
    "hidden_text": "{Where} holds text that a person looking at it does not see{because}.",
    "recognised_text": "The text on {where} was recognised from a scan and may be misread.",
    "columns": "The lines of {where} run across two columns; the columns were put one after the other.",
    "layers_off": "{Where} has layers that are switched off at first; their text may be included.",
    "decoded_as": "The encoding had to be guessed, so some characters may be wrong ({detail}).",
    "replaced": "Some bytes are not valid text and are shown as \ufffd ({detail}).",
    "nul_removed": "Zero bytes in the text were removed ({detail}).",
    "invisible": "The text holds invisible or direction-changing characters ({detail}).",
    "long_line": "A line is too long to be written by hand, so this may be data ({detail}).",
    "notebook": "A notebook could not be read as cells and is shown as it lies on disk ({detail}).",
    "duplicates": "Several files in the archive have the same name; the last of each was read ({detail}).",
    "skipped": "Left out: {detail}.",
}


def describe(flag: Flag) -> str:
    """One plain sentence for a person."""
    pages = f"page{'s' if len(flag.pages) > 1 else ''} {show_pages(flag.pages)}" if flag.pages else ""
    where = pages or flag.detail or "the document"
    sentence = _SENTENCES.get(flag.code, flag.code + ": {detail}.")
    return sentence.format(
        where=where,
        Where=where[0].upper() + where[1:] if pages else where,
        detail=flag.detail or "no particulars",
        because=f": {flag.detail}" if pages and flag.detail else "",
    )


def merge(flags: Iterable[Flag]) -> tuple[Flag, ...]:
    """One flag for each code, in the order they first came, with all pages and the first few particulars."""
    pages: dict[str, list[int]] = {}
    details: dict[str, dict[str, None]] = {}
    for flag in flags:
        pages.setdefault(flag.code, []).extend(flag.pages)
        known = details.setdefault(flag.code, {})
        if flag.detail:
            known[flag.detail] = None
    return tuple(Flag(code, tuple(sorted(set(pages[code]))), _shorten(list(details[code]))) for code in pages)


def skipped(entries: Iterable[LeftOut]) -> tuple[Flag, ...]:
    """A `skipped` flag for each reason, with the first few paths and how many more."""
    by_reason: dict[str, list[str]] = {}
    for entry in entries:
        path = show_name(entry.path) + (f" ({entry.particulars})" if entry.particulars else "")
        by_reason.setdefault(entry.reason, []).append(path)
    return tuple(Flag("skipped", (), f"{_shorten(paths)}: {reason}") for reason, paths in by_reason.items())


def _shorten(details: list[str]) -> str:
    """A list for a person: the first few, and how many more."""
    n_more = len(details) - _MOST_DETAILS
    return "; ".join(details[:_MOST_DETAILS]) + (f"; and {n_more:,} more" if n_more > 0 else "")
