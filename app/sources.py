"""Where an answer comes from: the prompt spans its attention used, made into pages with a quote."""

import itertools
from collections.abc import Iterator, Sequence
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
_GAP = 16  # tokens between two pieces of one passage
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


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens `[start, end)` of a page's text that were used, and how much."""

    start: int
    end: int
    weight: float


def find_sources(
    prompt: Prompt, chosen: Sequence[Chosen], evidence: Sequence[Span], tokenizer: "Tokenizer"
) -> tuple[Source, ...]:
    """At most five pages, strongest first. Evidence outside page text counts for nothing."""
    found = {page: pieces for page, pieces in _by_page(prompt.spans, evidence) if pieces}
    weights = {page: sum(piece.weight for piece in pieces) for page, pieces in found.items()}
    total = sum(weights.values())
    if total <= 0:
        return ()
    ranked = sorted(weights, key=lambda page: (-weights[page], page.start))[:_MOST]
    kept = [page for page in ranked if weights[page] >= _WEAKEST * weights[ranked[0]]]
    return tuple(_source(page, found[page], chosen, weights[page] / total, tokenizer) for page in kept)


def _by_page(pages: Sequence[PageSpan], evidence: Sequence[Span]) -> Iterator[tuple[PageSpan, list[_Piece]]]:
    """Each page with its pieces; a span over several pages is shared by the tokens it has on each."""
    spans = sorted(evidence, key=lambda span: span.start)
    at = 0
    for page in pages:
        while at < len(spans) and spans[at].end <= page.start:
            at += 1
        pieces = []
        for span in itertools.islice(spans, at, None):
            if span.start >= page.end:
                break
            start, end = max(span.start, page.start), min(span.end, page.end)
            if start < end:
                share = (end - start) / (span.end - span.start)
                pieces.append(_Piece(start - page.start, end - page.start, span.weight * share))
        yield page, pieces


def _strongest_passage(pieces: Sequence[_Piece]) -> tuple[int, int]:
    """The tokens of the heaviest run of pieces that lie close together."""
    passages: list[_Piece] = []
    for piece in pieces:
        if passages and piece.start - passages[-1].end <= _GAP:
            last = passages.pop()
            piece = _Piece(last.start, max(last.end, piece.end), last.weight + piece.weight)
        passages.append(piece)
    strongest = max(passages, key=lambda passage: passage.weight)
    return strongest.start, strongest.end


def _source(
    span: PageSpan, pieces: Sequence[_Piece], chosen: Sequence[Chosen], weight: float, tokenizer: "Tokenizer"
) -> Source:
    part = chosen[span.document]
    page = next(page for page in part.pages if page.index == span.page)
    offsets = tokenizer.offsets(page.text)
    first, last = _strongest_passage(pieces)
    start, end = offsets[first][0], offsets[last - 1][1]
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
