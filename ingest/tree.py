"""A folder or a zip archive: its files that hold text, one page each (a PDF: one for each of its pages)."""

import hashlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from ingest.archive import Zip
from ingest.cleaning import join_hyphens, show_name, words_of
from ingest.document import Flag, Page
from ingest.errors import IngestError, PasswordNeeded, TooLarge, WrongPassword
from ingest.flags import LeftOut, merge
from ingest.folder import Found, list_folder, read_file
from ingest.messages import Begin, Head, Job, Result
from ingest.readers.pdf import WHY, Pdf
from ingest.readers.text import longest_line, text_of
from ingest.rules import HEADER_BYTES, is_pdf, reason_by_content, reason_by_name
from ingest.selection import show_pages


@dataclass(frozen=True, slots=True)
class _Tree:
    found: list[Found]
    left_out: list[LeftOut]
    flags: tuple[Flag, ...]
    read: Callable[[str, int], bytes]


def read_tree(job: Job) -> Iterator[Head | Begin | Result]:
    """A first result for what is left out unread, then one for each file, sorted by path.

    Raises `TooLarge` when there are too many files: a tree is never cut silently.
    """
    yield Begin("list of files", job.limits.opening_seconds)
    tree = _list(job)
    yield Head(len(tree.found), "")
    yield Result("", flags=tree.flags, left_out=tuple(tree.left_out))
    for file in tree.found:
        if file.path in job.done:
            continue
        if file.path in job.troubled:
            yield _left_out(file.path, WHY[job.troubled[file.path]])
            continue
        yield Begin(file.path, job.limits.page_seconds)
        try:
            yield (yield from _read(job, file.path, tree.read(file.path, file.n_bytes)))
        except OSError as error:
            yield _left_out(file.path, "could not be opened", error.strerror or str(error))


def _list(job: Job) -> _Tree:
    if Path(job.path).is_dir():
        entries = list_folder(job.path)
        flags: tuple[Flag, ...] = ()

        def read(path: str, most_bytes: int) -> bytes:
            return read_file(job.path, path, most_bytes)
    else:
        archive = Zip(job.path, job.name, job.password, job.limits)
        entries, read = archive.members(), archive.read
        flags = (Flag("duplicates", detail=f"{archive.n_replaced:,}"),) if archive.n_replaced else ()
    found: list[Found] = []
    left_out: list[LeftOut] = []
    for entry in entries:
        if isinstance(entry, LeftOut):
            left_out.append(entry)
        elif reason := reason_by_name(entry.path, entry.n_bytes, job.limits):
            left_out.append(LeftOut(entry.path, *reason))
        else:
            found.append(entry)
            if len(found) > job.limits.n_files:
                raise TooLarge(job.name, len(found), job.limits.n_files, "files")
    found.sort(key=lambda file: file.path)
    left_out.sort(key=lambda entry: entry.path)
    return _Tree(found, left_out, flags, read)


def _read(job: Job, path: str, data: bytes) -> Generator[Begin, None, Result]:
    if is_pdf(data[:HEADER_BYTES], path):
        return (yield from _read_pdf(job, path, data))
    read = text_of(data, path)
    if read is None:
        return _left_out(path, "binary")
    text, flags = read
    reason = reason_by_content(text, longest_line(text), job.limits)
    if reason is not None:
        return _left_out(path, *reason)
    label = show_name(path)
    told = tuple(Flag(flag.code, (1,), f"{label}: {flag.detail}") for flag in flags)
    return Result(path, (Page(1, label, text),), told, hashlib.sha256(data).hexdigest())


def _read_pdf(job: Job, path: str, data: bytes) -> Generator[Begin, None, Result]:
    """A PDF's pages as pages of the tree, "path p. 3". Its flags name its own pages, in their details."""
    label = show_name(path)
    pdf = Pdf(data, job, f"{path}: ")
    pages: list[Page] = []
    raised: list[Flag] = []
    try:
        yield from pdf.open()
        for number in range(1, pdf.n_pages + 1):
            page, flags = yield from pdf.read(number)
            pages.append(page)
            raised += flags
    except (PasswordNeeded, WrongPassword):
        return _left_out(path, "an encrypted PDF: open it by itself")
    except IngestError as error:
        return _left_out(path, "a PDF that cannot be read", type(error).__name__)
    known = set().union(*(words_of(page.text) for page in pages))
    told = tuple(
        Flag(
            flag.code,
            (),
            f"{label} p. {show_pages(flag.pages)}" + (f": {flag.detail}" if flag.detail else ""),
        )
        for flag in merge(raised)
    )
    kept = tuple(
        Page(page.index, f"{label} p. {page.label}", join_hyphens(page.text, known))
        for page in pages
        if page.text.strip()
    )
    return Result(path, kept, told, hashlib.sha256(data).hexdigest())


def _left_out(path: str, reason: str, particulars: str = "") -> Result:
    return Result(path, left_out=(LeftOut(path, reason, particulars),))
