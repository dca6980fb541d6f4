"""What is painted on a PDF page: text that a person looking at it does not see, and pictures of text.

Seen are: text in the invisible rendering mode, without opacity, white on nothing but paper, smaller than a
point, or outside the page. Not seen are text under a later picture, and what is off the page inside a form
XObject.
"""

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

from ingest.readers.columns import Placed

_MOST_OBJECTS = 20_000
_DEEPEST = 3
_TINY_POINTS = 1.0
_WHITE = 250
_SCAN_SHARE = 0.5
_NO_WIDTH = 0.01

Box = tuple[float, float, float, float]
"""left, bottom, right, top in page units."""


@dataclass(frozen=True, slots=True)
class HiddenText:
    """`how` it is hidden, in a word or two."""

    how: str
    text: str


@dataclass(frozen=True, slots=True)
class Painted:
    """What `survey` found. `is_blank`: nothing at all is painted. `is_scan_with_text`: all text is an
    invisible layer over a picture of the page, as text recognition leaves it; such text is not counted as
    hidden. `has_layers`: some of it is optional content. `lacks_font`: pdfium leaves some text out, since its font is
    neither in the file nor on this machine."""

    hidden: tuple[HiddenText, ...]
    is_blank: bool
    is_scan_with_text: bool
    has_layers: bool
    lacks_font: bool
    placed: tuple[Placed, ...]


def survey(page: pypdfium2.PdfPage, textpage: pypdfium2.PdfTextPage) -> Painted:
    """Looks through the page's objects in the order they are painted (the first 20,000 of them)."""
    paper: Box = page.get_bbox()
    hidden: list[HiddenText] = []
    backgrounds: list[Box] = []
    placed: list[Placed] = []
    n_objects = n_texts = 0
    has_scan = has_layers = lacks_font = False
    for item, is_nested in _objects(page):
        n_objects += 1
        kind = pdfium.FPDFPageObj_GetType(item)
        box = _box(item)
        has_layers = has_layers or _is_in_layer(item)
        if kind == pdfium.FPDF_PAGEOBJ_TEXT:
            n_texts += 1
            lacks_font = lacks_font or (box is not None and _is_left_out(item, box, textpage))
            if box and not is_nested and (run := _placed(item, box)):
                placed.append(run)
            how = _how_hidden(item, box, None if is_nested else paper, backgrounds)
            if how and (text := _text(item, textpage)).strip():
                hidden.append(HiddenText(how, text))
            continue
        if kind == pdfium.FPDF_PAGEOBJ_IMAGE and box and _area(box) > _SCAN_SHARE * _area(paper):
            has_scan = True
        if box and _is_background(item, kind):
            backgrounds.append(box)
    n_invisible = sum(run.how == "invisible" for run in hidden)
    is_scan_with_text = has_scan and n_invisible > 0 and n_invisible == len(hidden) >= 0.9 * n_texts
    return Painted(
        () if is_scan_with_text else tuple(hidden),
        n_objects == 0,
        is_scan_with_text,
        has_layers,
        lacks_font,
        tuple(placed),
    )


def _objects(page: pypdfium2.PdfPage) -> Iterator[tuple[Any, bool]]:
    """Page objects, and those in form XObjects, each with whether it is in one."""
    left = _MOST_OBJECTS

    def walk(container: Any, count: Any, get: Any, depth: int) -> Iterator[tuple[Any, bool]]:
        nonlocal left
        for index in range(count(container)):
            left -= 1
            if left < 0:
                return
            item = get(container, index)
            yield item, depth > 0
            if depth < _DEEPEST and pdfium.FPDFPageObj_GetType(item) == pdfium.FPDF_PAGEOBJ_FORM:
                yield from walk(item, pdfium.FPDFFormObj_CountObjects, pdfium.FPDFFormObj_GetObject, depth + 1)

    return walk(page, pdfium.FPDFPage_CountObjects, pdfium.FPDFPage_GetObject, 0)


def _how_hidden(item: Any, box: Box | None, paper: Box | None, backgrounds: list[Box]) -> str:
    if pdfium.FPDFTextObj_GetTextRenderMode(item) == pdfium.FPDF_TEXTRENDERMODE_INVISIBLE:
        return "invisible"
    if _size(item) < _TINY_POINTS:
        return "tiny"
    if paper and box and (box[2] < paper[0] or box[0] > paper[2] or box[3] < paper[1] or box[1] > paper[3]):
        return "off the page"
    fill = _fill(item)
    if fill and fill[3] == 0:
        return "transparent"
    if fill and min(fill[:3]) >= _WHITE and box and not any(_covers(under, box) for under in backgrounds):
        return "white on white"
    return ""


def _is_background(item: Any, kind: int) -> bool:
    """Whether white text on `item` can be read. A form's own colours are not looked at: it may be dark."""
    if kind != pdfium.FPDF_PAGEOBJ_PATH:
        return True
    mode, stroke = ctypes.c_int(), ctypes.c_int()
    pdfium.FPDFPath_GetDrawMode(item, mode, stroke)
    fill = _fill(item)
    return mode.value != pdfium.FPDF_FILLMODE_NONE and (fill is None or min(fill[:3]) < _WHITE)


def _is_left_out(item: Any, box: Box, textpage: pypdfium2.PdfTextPage) -> bool:
    """Vertical text without glyphs has a height and no width, and pdfium gives no letter of it; a blank has neither."""
    return box[2] - box[0] < _NO_WIDTH and box[3] - box[1] >= _TINY_POINTS and not _text(item, textpage)


def _is_in_layer(item: Any) -> bool:
    buffer, n_bytes = ctypes.create_string_buffer(8), ctypes.c_ulong()
    for index in range(pdfium.FPDFPageObj_CountMarks(item)):
        mark = pdfium.FPDFPageObj_GetMark(item, index)
        pdfium.FPDFPageObjMark_GetName(mark, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), 8, n_bytes)
        if n_bytes.value == 6 and buffer.raw[:4] == b"O\0C\0":
            return True
    return False


def _covers(under: Box, box: Box) -> bool:
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return under[0] <= x <= under[2] and under[1] <= y <= under[3]


def _area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _box(item: Any) -> Box | None:
    edges = [ctypes.c_float() for _ in range(4)]
    if not pdfium.FPDFPageObj_GetBounds(item, *edges):
        return None
    left, bottom, right, top = (edge.value for edge in edges)
    return left, bottom, right, top


def _fill(item: Any) -> tuple[int, int, int, int] | None:
    """Red, green, blue, opacity (0 to 255 each); None for a pattern."""
    parts = [ctypes.c_uint() for _ in range(4)]
    if not pdfium.FPDFPageObj_GetFillColor(item, *parts):
        return None
    red, green, blue, opacity = (part.value for part in parts)
    return red, green, blue, opacity


def _size(item: Any) -> float:
    """Font size in points as it lands on the page; infinite where pdfium does not tell."""
    size, matrix = ctypes.c_float(), pdfium.FS_MATRIX()
    if not (pdfium.FPDFTextObj_GetFontSize(item, size) and pdfium.FPDFPageObj_GetMatrix(item, matrix)):
        return float("inf")
    scale = abs(matrix.a * matrix.d - matrix.b * matrix.c)
    return abs(float(size.value)) * math.sqrt(scale)


def _placed(item: Any, box: Box) -> Placed | None:
    """Where a text object lies; None when it is turned or mirrored."""
    matrix = pdfium.FS_MATRIX()
    if not pdfium.FPDFPageObj_GetMatrix(item, matrix) or matrix.b or matrix.c or matrix.a <= 0 or matrix.d <= 0:
        return None
    return Placed(float(matrix.e), float(matrix.f), box[2], _size(item))


def _text(item: Any, textpage: pypdfium2.PdfTextPage) -> str:
    n_bytes = pdfium.FPDFTextObj_GetText(item, textpage, None, 0)
    buffer = (ctypes.c_ushort * (n_bytes // 2 + 1))()
    pdfium.FPDFTextObj_GetText(item, textpage, buffer, n_bytes)
    return bytes(buffer)[: max(0, n_bytes - 2)].decode("utf-16-le", "replace")
