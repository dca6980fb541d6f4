"""Files on their way into the library: received, read one by one, kept only while a password is missing."""

import contextlib
import logging
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.assistant import Assistant
from app.errors import AppError
from app.library import Entry
from app.problems import Problem, explain
from ingest.errors import IngestError, PasswordNeeded, WrongPassword

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tray:
    """The state at one moment.

    `waiting` are the names whose reading has not begun, `locked` the entries that ask for a password; `refusals`
    say per entry why a choice was not taken, `lost` per name why it did not even become an entry.
    """

    waiting: tuple[str, ...] = ()
    locked: frozenset[str] = frozenset()
    refusals: tuple[tuple[str, Problem], ...] = ()
    lost: tuple[tuple[str, Problem], ...] = ()


class Intake:
    """Takes files in from the page and lets the assistant read them. Safe to use from several threads.

    Received files lie in a folder of their own under the system's temporary folder, and are deleted once they
    are read; those that ask for a password stay until it is given, the entry is removed, or `close`.
    """

    def __init__(self, assistant: Assistant) -> None:
        self._assistant = assistant
        self._lock = threading.Lock()
        self._root = Path(tempfile.mkdtemp(prefix="fullread-"))
        self._waiting: list[Path] = []
        self._locked: dict[str, Path] = {}
        self._refusals: dict[str, Problem] = {}
        self._lost: list[tuple[str, Problem]] = []
        self._jobs: queue.Queue[tuple[Path, str | None] | None] = queue.Queue()
        threading.Thread(target=self._work, name="intake", daemon=True).start()

    def tray(self) -> Tray:
        with self._lock:
            waiting = tuple(path.name for path in self._waiting)
            return Tray(waiting, frozenset(self._locked), tuple(self._refusals.items()), tuple(self._lost))

    def folder(self) -> Path:
        """A new empty folder to receive one upload into."""
        return Path(tempfile.mkdtemp(dir=self._root))

    def put(self, paths: list[Path]) -> None:
        """Read `paths` (files or folders, each within a `folder()`) in their order, in the background."""
        with self._lock:
            self._waiting.extend(paths)
            self._lost.clear()
        for path in paths:
            self._jobs.put((path, None))

    def unlock(self, entry_id: str, password: str) -> None:
        """Read an entry that asked for a password again, with one."""
        with self._lock:
            path = self._locked.pop(entry_id, None)
            if path is None:
                return
            self._waiting.append(path)
        with contextlib.suppress(AppError):  # another page may have removed it meanwhile
            self._assistant.remove(entry_id)
        self._jobs.put((path, password))

    def select(self, entry_id: str, pages: str) -> None:
        """Choose pages of an entry ("1-12"; empty: all). A refusal is kept, to be shown."""
        self._try(entry_id, lambda: self._assistant.select(entry_id, pages.strip() or None))

    def check(self, entry_id: str, checked: bool) -> None:
        self._try(entry_id, lambda: self._assistant.check(entry_id, checked))

    def remove(self, entry_id: str) -> None:
        """Take an entry out of the library, with what was received for it."""
        with self._lock:
            path = self._locked.pop(entry_id, None)
            self._refusals.pop(entry_id, None)
        if path is not None:
            _delete(path)
        with contextlib.suppress(AppError):  # another page may have removed it already
            self._assistant.remove(entry_id)

    def close(self) -> None:
        """Delete everything received."""
        self._jobs.put(None)
        shutil.rmtree(self._root, ignore_errors=True)

    def _try(self, entry_id: str, change: Callable[[], Entry]) -> None:
        try:
            change()
        except (IngestError, AppError) as error:
            problem = explain(error)
            with self._lock:
                self._refusals[entry_id] = problem
        else:
            with self._lock:
                self._refusals.pop(entry_id, None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            path, password = job
            with self._lock:
                self._waiting.remove(path)
            try:
                entry = self._assistant.add(path, path.name, password)
            except Exception as error:  # the outermost boundary of this thread: the next file must still be read
                _log.exception("a file could not be taken in")
                with self._lock:
                    self._lost.append((path.name, explain(error)))
                continue
            if _asks_for_password(entry, path):
                with self._lock:
                    self._locked[entry.id] = path
            else:
                _delete(path)


def _asks_for_password(entry: Entry, path: Path) -> bool:
    names = {entry.name, path.name}
    return entry.problem in {explain(kind(name)) for kind in (PasswordNeeded, WrongPassword) for name in names}


def _delete(path: Path) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)
