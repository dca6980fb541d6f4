"""The one door: a path in, a `Document` out."""

import hashlib
import os
import stat
from pathlib import Path

from ingest import flags
from ingest.cleaning import join_hyphens, show_name, words_of
from ingest.document import Document, Flag, Kind, Page
from ingest.errors import (
    Damaged,
    EmptyFile,
    FileMissing,
    IngestError,
    NotAPdf,
    NoText,
    NothingToRead,
    TookTooLong,
    TookTooMuchMemory,
    TooLarge,
    Undecodable,
    UnknownFormat,
    Unreadable,
)
from ingest.flags import LeftOut
from ingest.limits import Limits
from ingest.messages import Job
from ingest.rules import HEADER_BYTES, is_pdf
from ingest.selection import parse_pages
from ingest.worker import Reading, run


def read(
    path: Path, *, password: str | None = None, pages: str | None = None, limits: Limits | None = None
) -> Document:
    """Reads a PDF, a text or source file, a folder or a zip archive, in a limited child process.

    `pages` ("1-12,15", see `parse_pages`) restricts what is read; pages keep their physical index. Raises
    only subclasses of `IngestError`; what could not be read of a document that was read otherwise is in its
    flags.
    """
    path = Path(path)
    limits = limits or Limits()
    name = show_name(path.name or path.resolve().name)
    kind = _recognise(path, name, limits)
    job = Job(kind, os.fspath(path.resolve()), name, limits, password, pages)
    reading = run(job)
    match kind:
        case "pdf":
            return _pdf_document(name, reading, limits)
        case "text" | "tree":
            return _selected(_file_document(name, kind, reading), pages)


def _recognise(path: Path, name: str, limits: Limits) -> Kind:
    """What reader the path needs, by its content. Raises what can be known before any parsing."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return "tree"
        # A pipe or a device would block or never end.
        if not stat.S_ISREG(status.st_mode):
            raise UnknownFormat(name)
        if status.st_size == 0:
            raise EmptyFile(name)
        if status.st_size > limits.file_bytes:
            raise TooLarge(name, status.st_size, limits.file_bytes)
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise FileMissing(name) from None
    except OSError as error:
        raise Unreadable(name, error.strerror or type(error).__name__) from None
    except ValueError:  # A NUL in the path.
        raise FileMissing(name) from None
    if is_pdf(header, path.name):
        return "pdf"
    if path.suffix.lower() == ".pdf":
        raise NotAPdf(name)
    if header.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "tree"
    return "text"


def _pdf_document(name: str, reading: Reading, limits: Limits) -> Document:
    raised = [flag for result in reading.results for flag in result.flags]
    pages = [page for result in reading.results for page in result.pages if page.text.strip()]
    if not pages:
        raise _no_page(name, reading, raised, limits)
    known = set().union(*(words_of(page.text) for page in pages))
    joined = tuple(Page(page.index, page.label, join_hyphens(page.text, known)) for page in pages)
    return Document(name, "pdf", reading.head.digest, reading.head.n_pages, joined, flags.merge(raised))


def _no_page(name: str, reading: Reading, raised: list[Flag], limits: Limits) -> IngestError:
    """Why a PDF came to nothing."""
    failed = [flag.detail for flag in raised if flag.code == "page_failed"]
    if failed and "time" in reading.troubles.values():
        return TookTooLong(name, limits.page_seconds)
    if failed and "memory" in reading.troubles.values():
        return TookTooMuchMemory(name, limits.memory_bytes)
    if failed:
        return Damaged(name, failed[0])
    if any(flag.code == "undecodable" for flag in raised):
        return Undecodable(name, len(reading.results))
    return NoText(name, len(reading.results))


def _file_document(name: str, kind: Kind, reading: Reading) -> Document:
    """Files are numbered as they come: in the sorted order of their paths."""
    pages: list[Page] = []
    raised: list[Flag] = []
    left_out: dict[str, LeftOut] = {}
    digest = hashlib.sha256()
    for result in reading.results:
        n_before = len(pages)
        pages += (Page(number, page.label, page.text) for number, page in enumerate(result.pages, n_before + 1))
        raised += (
            Flag(flag.code, tuple(n_before + number for number in flag.pages), flag.detail) for flag in result.flags
        )
        left_out |= {entry.path: entry for entry in result.left_out}
        if result.digest:
            digest.update(f"{result.digest} {result.unit}\n".encode("utf-8", "surrogateescape"))
    merged = flags.merge(raised) + flags.skipped(left_out.values())
    if not pages:
        raise NothingToRead(name, len(left_out))
    return Document(name, kind, reading.head.digest or digest.hexdigest(), len(pages), tuple(pages), merged)


def _selected(document: Document, pages: str | None) -> Document:
    if pages is None:
        return document
    wanted = set(parse_pages(pages, document.n_pages, document.name))
    kept = tuple(page for page in document.pages if page.index in wanted)
    return Document(document.name, document.kind, document.digest, document.n_pages, kept, document.flags)
