"""PDF pages: pdfium first, pypdf for a second opinion and for what lies beside the text."""

import hashlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pypdfium2

from ingest.cleaning import LOST, show_name
from ingest.document import Flag, Page
from ingest.errors import Damaged, EmptyFile
from ingest.messages import Begin, Head, Job, Result, Trouble
from ingest.readers.choice import is_doubtful, prefers_second, shape_of
from ingest.readers.pdfium import Sheet, can_load, open_document, read_sheet
from ingest.readers.structure import Structure, open_structure
from ingest.selection import parse_pages

WHY: Final[dict[Trouble, str]] = {
    "time": "it takes too long",
    "memory": "it takes too much memory",
    "crash": "it crashes the reader",
}
_MOST_OFFICE_PAGES = 300
_LOST_PAGE = 0.5
_LOST_SOME = 0.02
_LONGEST_LABEL = 40
_HIDDEN_LETTERS = 4
_MOST_QUOTES = 8


def read_pdf(job: Job) -> Iterator[Head | Begin | Result]:
    """The pages the job asks for, in order, each with its flags."""
    path = Path(job.path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    pdf = Pdf(path, job)
    yield from pdf.open()
    yield Head(pdf.n_pages, digest)
    wanted = range(1, pdf.n_pages + 1) if job.pages is None else parse_pages(job.pages, pdf.n_pages, job.name)
    for number in wanted:
        unit = f"page {number}"
        if unit not in job.done:
            page, flags = yield from pdf.read(number)
            yield Result(unit, (page,), flags)


class Pdf:
    """A PDF being read, from a file or from memory. `prefix` sets its units apart from those of other files.

    Its methods yield a `Begin` before each step that could hang or die, and leave out steps that did so
    before.
    """

    def __init__(self, source: Path | bytes, job: Job, prefix: str = "") -> None:
        self.n_pages = 0
        self._source, self._job, self._prefix = source, job, prefix
        self._document: pypdfium2.PdfDocument | None = None
        self._structure: Structure | None = None
        self._has_opened_structure = False
        self._is_office_output = False

    def open(self) -> Iterator[Begin]:
        """To be run through first. Raises `PasswordNeeded`, `WrongPassword`, `EmptyFile` or `Damaged`."""
        job = self._job
        self._document = open_document(self._source, job.name, job.password)
        if self._document is not None:
            self.n_pages = len(self._document)
            producer = self._document.get_metadata_value("Producer")
            self._is_office_output = "office" in producer.lower() and self.n_pages <= _MOST_OFFICE_PAGES
        # A page tree that ends early, loops or lies about its length fails at its last page.
        if self._document is None or self.n_pages == 0 or not can_load(self._document, self.n_pages):
            yield from self._open_structure()
            if self._structure is None and self._document is None:
                raise Damaged(job.name, "no PDF structure can be found in it")
            if self._structure is not None:
                self.n_pages = self._structure.n_pages
        if self.n_pages == 0:
            raise EmptyFile(job.name)

    def read(self, number: int) -> Generator[Begin, None, tuple[Page, tuple[Flag, ...]]]:
        """Page `number` (from 1), without text where there is none, and its flags."""
        sheet = yield from self._first_opinion(number)
        lost_share = sheet.n_lost / max(1, sheet.n_glyphs) if sheet else 0.0
        text = sheet.text if sheet else ""
        flags: list[Flag] = []
        if sheet is None or self._is_office_output or is_doubtful(shape_of(text), lost_share):
            second = yield from self._second_opinion(number)
            if sheet is None and second is None:
                return self._page(number, ""), (Flag("page_failed", (number,), self._why_failed(number)),)
            if sheet is None:
                flags.append(Flag("recovered", (number,), self._why_failed(number)))
            if second is not None and (sheet is None or prefers_second(text, second)):
                text, lost_share = second, shape_of(second).junk
        is_undecodable = lost_share > _LOST_PAGE
        if is_undecodable:
            flags.append(Flag("undecodable", (number,), "the whole page"))
            text = ""
        elif lost_share > _LOST_SOME or LOST in text:
            flags.append(Flag("undecodable", (number,)))
        if sheet is not None:
            flags += yield from self._survey(number, sheet)
            if sheet.has_notes:
                text = _with_notes(text, (yield from self._notes(number)))
        if not text.strip() and not is_undecodable and not (sheet and sheet.painted.is_blank):
            flags.append(Flag("no_text", (number,)))
        return self._page(number, text), tuple(flags)

    def _first_opinion(self, number: int) -> Generator[Begin, None, Sheet | None]:
        unit = f"{self._prefix}pdfium {number}"
        if self._document is None or unit in self._job.troubled:
            return None
        yield Begin(unit, self._job.limits.page_seconds)
        return read_sheet(self._document, number)

    def _second_opinion(self, number: int) -> Generator[Begin, None, str | None]:
        unit = f"{self._prefix}pypdf {number}"
        yield from self._open_structure()
        if self._structure is None or unit in self._job.troubled:
            return None
        yield Begin(unit, self._job.limits.page_seconds / 2)
        return self._structure.text(number)

    def _open_structure(self) -> Iterator[Begin]:
        unit = f"{self._prefix}structure"
        if not self._has_opened_structure and unit not in self._job.troubled:
            yield Begin(unit, self._job.limits.opening_seconds)
            self._structure = open_structure(self._source, self._job.password)
        self._has_opened_structure = True

    def _survey(self, number: int, sheet: Sheet) -> Generator[Begin, None, list[Flag]]:
        flags = []
        painted = sheet.painted
        shown = [f"{run.how}: {' '.join(run.text.split())[:80]!r}" for run in painted.hidden]
        if sum(character.isalnum() for run in painted.hidden for character in run.text) >= _HIDDEN_LETTERS:
            flags.append(Flag("hidden_text", (number,), "; ".join(shown[:_MOST_QUOTES])))
        if painted.lacks_font:
            flags.append(Flag("no_font", (number,)))
        if sheet.is_reordered:
            flags.append(Flag("columns", (number,)))
        if painted.is_scan_with_text:
            flags.append(Flag("recognised_text", (number,)))
        if painted.has_layers:
            yield from self._open_structure()
            if self._structure is not None and self._structure.has_layers_off():
                flags.append(Flag("layers_off", (number,)))
        return flags

    def _notes(self, number: int) -> Generator[Begin, None, tuple[str, ...]]:
        unit = f"{self._prefix}notes {number}"
        yield from self._open_structure()
        if self._structure is None or unit in self._job.troubled:
            return ()
        yield Begin(unit, self._job.limits.page_seconds)
        return self._structure.notes(number)

    def _why_failed(self, number: int) -> str:
        for engine in ("pdfium", "pypdf"):
            trouble = self._job.troubled.get(f"{self._prefix}{engine} {number}")
            if trouble is not None:
                return WHY[trouble]
        return "its data is broken"

    def _page(self, number: int, text: str) -> Page:
        """Labels that pdfium cannot read (a broken number tree), and empty ones, fall back to the number."""
        label = self._document.get_page_label(number - 1) if self._document is not None else ""
        return Page(number, show_name(label.strip())[:_LONGEST_LABEL] or str(number), text)


def _with_notes(text: str, notes: tuple[str, ...]) -> str:
    return "\n".join(filter(None, (text, *notes)))
