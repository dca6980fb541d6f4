"""One page of a document as text, with the passage an answer rests on marked. Pure."""

import itertools
import re

from app.library import Entry
from app.ui import markup
from ingest.document import Page

_FULL_LINE = 0.7  # a line at least this share of the page's longest was broken by the page's edge, not by its writer
_CLOSE = (
    '<button type="button" class="remove" data-local="close-reader" aria-label="Close the reader" '
    'title="Close">×</button>'
)


def locate(text: str, quote: str) -> tuple[int, int] | None:
    """Where `quote` stands in `text`, any white space taken as equal; None where it does not."""
    words = quote.split()
    if not words:
        return None
    found = re.search(r"\s+".join(map(re.escape, words)), text)
    return found.span() if found else None


def flow(text: str) -> str:
    """`text` with the printed page's line breaks inside paragraphs made spaces; its length is unchanged."""
    lines = text.split("\n")
    full = _FULL_LINE * max(map(len, lines))
    joined = [lines[0]]
    for before, line in itertools.pairwise(lines):
        inside = bool(before) and len(before) >= full and line[:1].isalnum()
        joined.append((" " if inside else "\n") + line)
    return "".join(joined)


def page(entry: Entry, index: int, quote: str = "") -> str:
    """Page `index` of `entry`, with `quote` marked if it is found there, and ways to the pages beside it."""
    if entry.document is None:
        return empty()
    pages = entry.document.pages
    at = next((at for at, page in enumerate(pages) if page.index == index), 0)
    shown = pages[at]
    is_print = entry.document.kind == "pdf"
    text = flow(shown.text) if is_print else shown.text
    span = locate(text, quote) if quote else None
    missing = '<p class="note">The passage could not be found on this page word for word.</p>'
    return (
        f'<div class="reader-head"><h2 class="reader-name" title="{markup.text(entry.name)}">'
        f"{markup.name(entry.name)}</h2>"
        f"{_CLOSE}</div>"
        f'<div class="reader-turn">{_turn(entry.id, pages, at - 1, "‹", "Page before")}'
        f'<span class="reader-place">{_place(entry, shown, at)}</span>'
        f"{_turn(entry.id, pages, at + 1, '›', 'Next page')}</div>"
        f"{missing if quote and span is None else ''}"
        f'<div class="reader-text {"print" if is_print else "plain"}" dir="auto" tabindex="0" role="region" '
        f'aria-label="Text of the page">{_marked(text, span)}</div>'
    )


def empty() -> str:
    return '<p class="reader-empty">Choose a page under an answer, or a document\'s name, to read it here.</p>'


def gone() -> str:
    return (
        '<div class="reader-head"><h2 class="reader-name">Not there any more</h2>'
        f"{_CLOSE}</div>"
        '<p class="reader-empty">This document is no longer in the library. Add it again to read it.</p>'
    )


def _place(entry: Entry, shown: Page, at: int) -> str:
    if entry.document is None or entry.document.kind != "pdf":
        n_pages = len(entry.document.pages) if entry.document else 0
        return f"{markup.name(shown.label)}{f' <span>{at + 1:,} of {n_pages:,}</span>' if n_pages > 1 else ''}"
    of = f"{shown.index:,} of {entry.n_pages:,}"
    if shown.label == str(shown.index):
        return f"Page {of}"
    return f"Page {markup.name(shown.label)} <span>{of}</span>"


def _turn(entry_id: str, pages: tuple[Page, ...], at: int, sign: str, spoken: str) -> str:
    if not 0 <= at < len(pages):
        return f'<button type="button" class="turn" aria-label="{spoken}" disabled>{sign}</button>'
    return (
        f'<button type="button" class="turn" data-act="page" data-entry="{entry_id}" '
        f'data-index="{pages[at].index}" aria-label="{spoken}" title="{spoken}">{sign}</button>'
    )


def _marked(text: str, span: tuple[int, int] | None) -> str:
    if span is None:
        return markup.text(text)
    start, end = span
    return f"{markup.text(text[:start])}<mark>{markup.text(text[start:end])}</mark>{markup.text(text[end:])}"
