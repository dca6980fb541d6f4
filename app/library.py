"""The documents a person has added, in memory: what was read, tokens of each page, what is chosen."""

import secrets
import threading
from dataclasses import dataclass, replace
from typing import Literal

from app.errors import NotReady, UnknownEntry
from app.problems import Problem
from ingest.document import Document, Page

Status = Literal["reading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One document of the library.

    `page_tokens` is aligned with `document.pages` and counts the text alone; `selected` holds page indices
    (None: all); `checked` says whether questions are asked about it; `problem` says why reading failed.
    """

    id: str
    name: str
    status: Status = "reading"
    document: Document | None = None
    page_tokens: tuple[int, ...] = ()
    selected: tuple[int, ...] | None = None
    checked: bool = True
    problem: Problem | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_chosen(self) -> bool:
        """Whether the next question is asked about it."""
        return self.checked and self.status == "ready"

    @property
    def n_pages(self) -> int:
        """All pages of the file, also those without text or not selected."""
        return self.document.n_pages if self.document else 0

    @property
    def positions(self) -> tuple[int, ...]:
        """Where the selected pages stand in `document.pages`."""
        if self.document is None:
            return ()
        if self.selected is None:
            return tuple(range(len(self.document.pages)))
        chosen = frozenset(self.selected)
        return tuple(at for at, page in enumerate(self.document.pages) if page.index in chosen)

    @property
    def pages(self) -> tuple[Page, ...]:
        """The selected pages that hold text."""
        return tuple(self.document.pages[at] for at in self.positions) if self.document else ()

    @property
    def n_tokens(self) -> int:
        """Tokens of the text of the selected pages."""
        return sum(self.page_tokens[at] for at in self.positions)


class Library:
    """Entries in the order they were added, with the token ids of their pages. Safe in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._page_ids: dict[str, tuple[tuple[int, ...], ...]] = {}

    def entries(self) -> tuple[Entry, ...]:
        with self._lock:
            return tuple(self._entries.values())

    def entry(self, entry_id: str) -> Entry:
        with self._lock:
            return self._find(entry_id)

    def chosen(self) -> tuple[tuple[Entry, tuple[tuple[int, ...], ...]], ...]:
        """The entries questions are asked about, each with the token ids of its selected `pages`."""
        with self._lock:
            return tuple(
                (entry, tuple(self._page_ids[entry.id][at] for at in entry.positions))
                for entry in self._entries.values()
                if entry.is_chosen and entry.positions
            )

    def open(self, name: str) -> Entry:
        """A new entry that is being read."""
        entry = Entry(secrets.token_hex(8), name)
        with self._lock:
            self._entries[entry.id] = entry
        return entry

    def fill(
        self,
        entry_id: str,
        document: Document,
        page_ids: tuple[tuple[int, ...], ...],
        warnings: tuple[str, ...],
    ) -> Entry:
        """The entry, read. A file that is already there under the same name gives the entry it has."""
        with self._lock:
            entry = self._find(entry_id)
            for other in self._entries.values():
                if other.name == entry.name and other.document == document:
                    del self._entries[entry_id]
                    return other
            page_tokens = tuple(len(ids) for ids in page_ids)
            self._page_ids[entry_id] = page_ids
            return self._put(
                replace(entry, status="ready", document=document, page_tokens=page_tokens, warnings=warnings)
            )

    def fail(self, entry_id: str, problem: Problem) -> Entry:
        with self._lock:
            return self._put(replace(self._find(entry_id), status="failed", problem=problem))

    def abandon(self, entry_id: str) -> None:
        """Forget an entry whose reading broke off; one that came to an end stays."""
        with self._lock:
            if entry_id in self._entries and self._entries[entry_id].status == "reading":
                del self._entries[entry_id]

    def select(self, entry_id: str, pages: tuple[int, ...] | None) -> Entry:
        """Choose pages by index; None chooses all."""
        with self._lock:
            entry = self._find(entry_id)
            if entry.document is None:
                raise NotReady(entry.name)
            return self._put(replace(entry, selected=pages))

    def check(self, entry_id: str, checked: bool) -> Entry:
        with self._lock:
            return self._put(replace(self._find(entry_id), checked=checked))

    def remove(self, entry_id: str) -> None:
        with self._lock:
            self._find(entry_id)
            del self._entries[entry_id]
            self._page_ids.pop(entry_id, None)

    def _find(self, entry_id: str) -> Entry:
        if entry_id not in self._entries:
            raise UnknownEntry(entry_id)
        return self._entries[entry_id]

    def _put(self, entry: Entry) -> Entry:
        self._entries[entry.id] = entry
        return entry
