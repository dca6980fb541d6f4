"""Where an answer comes from: the prompt spans its attention used, made into pages with a quote."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.naming import shown
from app.prompts import Chosen, PageSpan, Prompt
from ingest.document import Page
from runtime.events import Span

if TYPE_CHECKING:
    from runtime.tokenizer import Tokenizer

_MOST = 5
_WEAKEST = 0.05  # of the strongest source's weight
_QUOTE_LENGTH = 240  # characters


@dataclass(frozen=True, slots=True)
class Source:
    """A page the answer rests on.

    `page` is the physical index, `label` what a person calls it: the printed page label, or "path:3-9" with
    the lines. `weight` is its share of all the evidence. `quote` is cut out of the page's text as it stands.
    """

    document: str
    page: int
    label: str
    weight: float
    quote: str


@dataclass(slots=True)
class _Tally:
    """What was found on one page: the sum of weights, and the strongest piece, as tokens of its text."""

    span: PageSpan
    weight: float = 0.0
    strongest: float = 0.0
    start: int = 0
    end: int = 0


def find_sources(
    prompt: Prompt, chosen: Sequence[Chosen], evidence: Sequence[Span], tokenizer: "Tokenizer"
) -> tuple[Source, ...]:
    """At most five pages, strongest first. Evidence outside page text counts for nothing."""
    tallies = _tally(prompt.spans, evidence)
    total = sum(tally.weight for tally in tallies)
    if total <= 0:
        return ()
    ranked = sorted(tallies, key=lambda tally: (-tally.weight, tally.span.start))[:_MOST]
    kept = [tally for tally in ranked if tally.weight >= _WEAKEST * ranked[0].weight]
    return tuple(_source(tally, chosen, tally.weight / total, tokenizer) for tally in kept)


def _tally(pages: Sequence[PageSpan], evidence: Sequence[Span]) -> list[_Tally]:
    """Weights gathered by page; a span over several pages is shared by the tokens it has on each."""
    starts = [page.start for page in pages]
    tallies: dict[int, _Tally] = {}
    for span in evidence:
        at = max(bisect.bisect_right(starts, span.start) - 1, 0)
        while at < len(pages) and pages[at].start < span.end:
            page = pages[at]
            start, end = max(span.start, page.start), min(span.end, page.end)
            if start < end:
                weight = span.weight * (end - start) / (span.end - span.start)
                tally = tallies.setdefault(at, _Tally(page))
                tally.weight += weight
                if weight > tally.strongest:
                    tally.strongest, tally.start, tally.end = weight, start - page.start, end - page.start
            at += 1
    return list(tallies.values())


def _source(tally: _Tally, chosen: Sequence[Chosen], weight: float, tokenizer: "Tokenizer") -> Source:
    part = chosen[tally.span.document]
    page = next(page for page in part.pages if page.index == tally.span.page)
    offsets = tokenizer.offsets(page.text)
    start, end = offsets[tally.start][0], offsets[tally.end - 1][1]
    label = shown(page.label) if part.document.kind == "pdf" else _lines(page, start, end)
    return Source(shown(part.document.name), page.index, label, weight, quote_around(page.text, start, end))


def _lines(page: Page, start: int, end: int) -> str:
    """The file with the lines that the characters `[start, end)` lie on."""
    piece = page.text[start:end]
    first = page.text.count("\n", 0, start) + len(piece[: len(piece) - len(piece.lstrip())].split("\n"))
    last = page.text.count("\n", 0, start + len(piece.rstrip())) + 1
    lines = f"{first}-{last}" if first < last else f"{min(first, last)}"
    return f"{shown(page.label)}:{lines}"


def quote_around(text: str, start: int, end: int) -> str:
    """A short piece of `text`, as it stands there, around the characters `[start, end)`, in whole words."""
    room = max(_QUOTE_LENGTH - (end - start), 0) // 2
    left, right = max(start - room, 0), min(end + room, len(text), max(start - room, 0) + _QUOTE_LENGTH)
    while 0 < left < start and not text[left - 1].isspace():
        left += 1
    while start < right < len(text) and right > end and not text[right].isspace():
        right -= 1
    return text[left:right].strip()
