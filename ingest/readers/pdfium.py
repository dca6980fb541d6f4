"""A PDF page as pdfium sees it: its text, and what about that text a person should know."""

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pypdfium2
import pypdfium2.raw as pdfium

from ingest.cleaning import HYPHEN, LOST, clean_page
from ingest.errors import Damaged, PasswordNeeded, WrongPassword
from ingest.readers.columns import Gutter, find_gutter
from ingest.readers.hidden import Painted, survey

_ANNOTATIONS_WITH_TEXT = (pdfium.FPDF_ANNOT_TEXT, pdfium.FPDF_ANNOT_FREETEXT, pdfium.FPDF_ANNOT_WIDGET)
_NOT_MAPPED = "\ufffe"
_WORD_GAP = 0.12
_PROSE_WORDS = 3


@dataclass(frozen=True, slots=True)
class Sheet:
    """One page. `n_lost` of its `n_glyphs` glyphs have no known letter. `has_notes`: form fields or comments
    are on it."""

    text: str
    n_glyphs: int
    n_lost: int
    has_notes: bool
    is_reordered: bool
    painted: Painted


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a page: its text, the text position of its last character (None for a blank line), and the pieces it
    was made of, each with the text position where it starts."""

    text: str
    end: int | None
    pieces: tuple[tuple[int, str], ...]


def open_document(source: Path | bytes, name: str, password: str | None) -> pypdfium2.PdfDocument | None:
    """The document, or None where pdfium finds no PDF structure. Raises `PasswordNeeded`, `WrongPassword`,
    `Damaged`."""
    try:
        return pypdfium2.PdfDocument(source, password=password)
    except pypdfium2.PdfiumError as error:
        match error.err_code:
            case pdfium.FPDF_ERR_PASSWORD:
                raise (WrongPassword if password else PasswordNeeded)(name) from None
            case pdfium.FPDF_ERR_SECURITY:
                raise Damaged(name, "it is protected in a way that no password opens") from None
    return None


def can_load(document: pypdfium2.PdfDocument, number: int) -> bool:
    """Whether page `number` (from 1) is there. Its content, which may be hostile, is not looked at."""
    try:
        document.get_page_size(number - 1)
    except pypdfium2.PdfiumError:
        return False
    return True


def read_sheet(document: pypdfium2.PdfDocument, number: int) -> Sheet | None:
    """Page `number` (from 1), or None when pdfium cannot load it."""
    try:
        page = document[number - 1]
    except pypdfium2.PdfiumError:
        return None
    try:
        textpage = page.get_textpage()
        painted = survey(page, textpage)
        lines = _lines(textpage, _mapped(textpage, textpage.get_text_range(errors="surrogatepass")))
        gutter = find_gutter(painted.placed)
        in_columns = _in_columns(textpage, lines, gutter) if gutter else None
        text = "\n".join(in_columns or [line.text for line in lines])
        n_glyphs = textpage.count_chars()
        lost = sum(pdfium.FPDFText_HasUnicodeMapError(textpage, index) == 1 for index in range(n_glyphs))
        return Sheet(
            text=clean_page(text),
            n_glyphs=n_glyphs,
            n_lost=lost + text.count(LOST),
            has_notes=_has_notes(page),
            is_reordered=in_columns is not None,
            painted=painted,
        )
    finally:
        page.close()


def _mapped(textpage: pypdfium2.PdfTextPage, text: str) -> str:
    """`text` with hyphens of joined lines as `HYPHEN`, lost glyphs as U+FFFD; pdfium has U+FFFE for both."""
    text = text.replace(HYPHEN, LOST)
    if _NOT_MAPPED not in text:
        return text
    pieces = text.split(_NOT_MAPPED)
    position = 0
    joined = pieces[0]
    for before, after in pairwise(pieces):
        position += _n_units(before)
        index = pdfium.FPDFText_GetCharIndexFromTextIndex(textpage, position)
        joined += (HYPHEN if pdfium.FPDFText_IsHyphen(textpage, index) == 1 else LOST) + after
        position += 1
    return joined


def _lines(textpage: pypdfium2.PdfTextPage, text: str) -> list[Line]:
    """The lines of `text`, with the pieces of one row (cells of a table) that pdfium gives a line each on one line."""
    lines: list[Line] = []
    position = 0
    for piece in text.split("\r\n"):
        gap = None
        if lines and lines[-1].end is not None and piece.strip():
            start = position + len(piece) - len(piece.lstrip())
            gap = _gap_in_row(textpage, lines[-1].end, start)
        end = position + _n_units(piece.rstrip()) - 1 if piece.strip() else None
        if gap is None:
            lines.append(Line(piece, end, ((position, piece),)))
        else:
            joined = f"{lines[-1].text}{' ' if gap > _WORD_GAP else ''}{piece}"
            lines[-1] = Line(joined, end, (*lines[-1].pieces, (position, piece)))
        position += _n_units(piece) + 2
    return lines


def _in_columns(textpage: pypdfium2.PdfTextPage, lines: list[Line], gutter: Gutter) -> list[str] | None:
    """The lines with those of the first column before those of the second; None when the columns hold no prose."""
    before: list[str] = []
    left: list[str] = []
    right: list[str] = []
    after: list[str] = []
    for line in lines:
        words = list(_placed_words(textpage, line))
        y = words[0][1] if words else None
        if y is None or not gutter.bottom - 1 <= y <= gutter.top + 1:
            (after if left or right else before).append(line.text)
            continue
        for column, is_right in ((left, False), (right, True)):
            if chosen := [word for x, _, word in words if (x >= gutter.x) is is_right]:
                column.append(" ".join(chosen))
    for column in (left, right):
        if sum(len(text.split()) for text in column) < _PROSE_WORDS * len(column):
            return None
    return [*before, *left, *right, *after]


def _placed_words(textpage: pypdfium2.PdfTextPage, line: Line) -> Iterator[tuple[float, float, str]]:
    """The words of a line, each with where its baseline starts."""
    for position, piece in line.pieces:
        for match in re.finditer(r"\S+", piece):
            start = position + _n_units(piece[: match.start()])
            index = pdfium.FPDFText_GetCharIndexFromTextIndex(textpage, start)
            yield (*_origin(textpage, index), match[0])


def _gap_in_row(textpage: pypdfium2.PdfTextPage, end: int, start: int) -> float | None:
    """The gap in ems between two characters, given by their positions in the text; None unless the second
    follows the first on its baseline."""
    first, second = (pdfium.FPDFText_GetCharIndexFromTextIndex(textpage, position) for position in (end, start))
    if first < 0 or second < 0:
        return None
    if any(pdfium.FPDFText_GetCharAngle(textpage, index) != 0 for index in (first, second)):
        return None
    size = _height(textpage, first)
    if size <= 0 or abs(_origin(textpage, first)[1] - _origin(textpage, second)[1]) > 0.1 * size:
        return None
    gap = textpage.get_charbox(second)[0] - textpage.get_charbox(first)[2]
    return gap / size if gap > -0.2 * size else None


def _origin(textpage: pypdfium2.PdfTextPage, index: int) -> tuple[float, float]:
    x, y = ctypes.c_double(), ctypes.c_double()
    pdfium.FPDFText_GetCharOrigin(textpage, index, x, y)
    return x.value, y.value


def _height(textpage: pypdfium2.PdfTextPage, index: int) -> float:
    _, bottom, _, top = textpage.get_charbox(index, loose=True)
    return float(top - bottom)


def _n_units(text: str) -> int:
    """UTF-16 code units of `text`: what pdfium counts text positions in."""
    return len(text) + sum(character > "\uffff" for character in text)


def _has_notes(page: pypdfium2.PdfPage) -> bool:
    for index in range(min(pdfium.FPDFPage_GetAnnotCount(page), 2000)):
        annotation = pdfium.FPDFPage_GetAnnot(page, index)
        subtype = pdfium.FPDFAnnot_GetSubtype(annotation)
        pdfium.FPDFPage_CloseAnnot(annotation)
        if subtype in _ANNOTATIONS_WITH_TEXT:
            return True
    return False
