"""What reading a file gives: a `Document` of pages, and flags for what a person must be told."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["pdf", "text", "tree"]


@dataclass(frozen=True, slots=True)
class Page:
    """The smallest piece a citation can name: one page of a PDF, or one whole text file.

    `index` is the physical position in the file as it lies on disk, from 1, never renumbered by a selection.
    `label` is what a person calls it: the printed page label of a PDF ("iv"), or the file's path.
    Lines of a text file are separated by "\\n" alone.
    """

    index: int
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Flag:
    """One thing a person must be told about a document that was read all the same.

    `code` is a fixed word (`no_text`, `hidden_text`, `undecodable`, `skipped`, `decoded_as`, `recovered`, ...: all of
    them, with a sentence for each, are in `flags.py`); `pages` the page indices it concerns (empty: the whole
    document); `detail` the particulars in plain words (for `skipped` the paths and why).
    """

    code: str
    pages: tuple[int, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A file, folder or archive, read: its pages that hold text, in order, and what to tell about the rest.

    `n_pages` counts all pages of the file, also those without text or not selected; `digest` is the SHA-256
    of the raw bytes in hex (of a tree: of its files' paths and digests).
    """

    name: str
    kind: Kind
    digest: str
    n_pages: int
    pages: tuple[Page, ...]
    flags: tuple[Flag, ...] = ()
