"""A PDF page as pdfium sees it: its text, and what about that text a person should know."""

import ctypes
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pypdfium2
import pypdfium2.raw as pdfium

from ingest.cleaning import HYPHEN, LOST, clean_page
from ingest.errors import Damaged, PasswordNeeded, WrongPassword
from ingest.readers.hidden import Painted, survey

_ANNOTATIONS_WITH_TEXT = (pdfium.FPDF_ANNOT_TEXT, pdfium.FPDF_ANNOT_FREETEXT, pdfium.FPDF_ANNOT_WIDGET)
_NOT_MAPPED = "\ufffe"


@dataclass(frozen=True, slots=True)
class Sheet:
    """One page. `n_lost` of its `n_glyphs` glyphs have no known letter. `has_notes`: form fields or comments
    are on it."""

    text: str
    n_glyphs: int
    n_lost: int
    has_notes: bool
    painted: Painted


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
        text = _joined_rows(textpage, _mapped(textpage, textpage.get_text_range(errors="surrogatepass")))
        n_glyphs = textpage.count_chars()
        lost = sum(pdfium.FPDFText_HasUnicodeMapError(textpage, index) == 1 for index in range(n_glyphs))
        return Sheet(
            text=clean_page(text),
            n_glyphs=n_glyphs,
            n_lost=lost + text.count(LOST),
            has_notes=_has_notes(page),
            painted=survey(page, textpage),
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


def _joined_rows(textpage: pypdfium2.PdfTextPage, text: str) -> str:
    """`text` with the pieces of one row (cells of a table) that pdfium gives a line each on one line."""
    lines = text.split("\r\n")
    position = 0
    joined = lines[0]
    for before, after in pairwise(lines):
        position += _n_units(before)
        gap = None
        if before.strip() and after.strip():
            end = position - 1 - (len(before) - len(before.rstrip()))
            start = position + 2 + len(after) - len(after.lstrip())
            gap = _gap_in_row(textpage, end, start)
        joined += ("\r\n" if gap is None else " " if gap > 0.12 else "") + after
        position += 2
    return joined


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
