"""An assistant that follows a script: the real library, simple reading, and answers as a test wants them.

It stands in where a test must hold an answer at a certain point, or make the model say something hostile.
"""

import itertools
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pypdf import PdfReader
from pypdf.errors import PdfReadError

from app.assistant import Answer, Meter
from app.library import Entry, Library
from app.problems import explain
from app.sources import Source
from ingest.document import Document, Page
from ingest.errors import Damaged, EmptyFile, NoSuchPages, PasswordNeeded, WrongPassword
from runtime.catalogue import load_catalogue
from runtime.config import Wishes
from runtime.errors import ContextExceeded
from runtime.events import Emission, Progress
from runtime.memory import Placed, placed, plan
from runtime.stats import LevelStats, Stats
from tests.runtime.machines import machine


@dataclass(frozen=True, slots=True)
class Facts:
    """The engine's facts, as `runtime.engine.EngineFacts` has them."""

    model: str = "starter"
    architecture: str = "LlamaForCausalLM"
    parameters: int = 134_515_008
    mode: str = "cpu"
    mode_reason: str = "No graphics card answers, so the model runs on the CPU."
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 2
    context: int = 8192
    trained_context: int = 8192
    draft_model: str | None = None
    notes: tuple[str, ...] = (
        "The starter model is very small: it finds facts in short documents but reasons poorly. "
        "Check what it says against the pages it names.",
    )
    placed: Placed | None = None


def placed_at_home(context: int = 131_072) -> Placed:
    """Llama-3.1-8B with its draft model on a home machine: 24 GiB on the card, 64 GiB beside it."""
    entries = {entry.id: entry for entry in load_catalogue()}
    large = entries["meta-llama/Llama-3.1-8B-Instruct"]
    pair, home = large.pair_with(entries[str(large.draft)]), machine(64, 24, bfloat16=True, cores=16)
    return placed(plan(home, pair, context, Wishes()), home, pair, Wishes())


class ScriptedAssistant:
    """Answers with `words`, after `n_blocks` blocks of prefill, `pause` seconds between events."""

    def __init__(
        self,
        words: str = "The pump stops at **40 bar**.",
        *,
        n_blocks: int = 4,
        pause: float = 0.0,
        facts: Facts = Facts(),
    ) -> None:
        self.words, self.n_blocks, self.pause, self.facts = words, n_blocks, pause, facts
        self.asked: list[str] = []
        self.was_cancelled = False
        self.gate = threading.Event()  # the answer's second half waits for it
        self.gate.set()
        self._library = Library()
        self._numbers = itertools.count()

    def close(self) -> None:
        self.gate.set()

    def add(self, path: Path, name: str | None = None, password: str | None = None) -> Entry:
        entry = self._library.open(name or path.name)
        problem = None
        pages: list[Page] = []
        kind = "text"
        if path.is_dir():
            kind = "tree"
            files = sorted(file for file in path.rglob("*") if file.is_file())
            pages = [Page(at, file.relative_to(path).as_posix(), file.read_text()) for at, file in enumerate(files, 1)]
        elif path.read_bytes()[:5] == b"%PDF-":
            kind = "pdf"
            try:
                reader = PdfReader(path)
                if reader.is_encrypted and password is None:
                    problem = PasswordNeeded(entry.name)
                elif reader.is_encrypted and not reader.decrypt(password or ""):
                    problem = WrongPassword(entry.name)
                else:
                    pages = [
                        Page(at, reader.page_labels[at - 1], page.extract_text())
                        for at, page in enumerate(reader.pages, 1)
                    ]
            except PdfReadError as error:
                problem = Damaged(entry.name, str(error))
        elif not path.stat().st_size:
            problem = EmptyFile(entry.name)
        else:
            pages = [Page(1, entry.name, path.read_text())]
        if problem is not None:
            return self._library.fail(entry.id, explain(problem))
        document = Document(entry.name, kind, "0" * 64, len(pages), tuple(pages))
        page_ids = tuple(tuple(range(len(page.text.split()))) for page in pages)
        return self._library.fill(entry.id, document, page_ids, ())

    def select(self, entry_id: str, pages: str | None) -> Entry:
        entry = self._library.entry(entry_id)
        if pages is None:
            return self._library.select(entry_id, None)
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", pages)
        if found is None or int(found[2] or found[1]) > entry.n_pages:
            raise NoSuchPages(entry.name, pages, entry.n_pages)
        return self._library.select(entry_id, tuple(range(int(found[1]), int(found[2] or found[1]) + 1)))

    def check(self, entry_id: str, checked: bool) -> Entry:
        return self._library.check(entry_id, checked)

    def remove(self, entry_id: str) -> None:
        self._library.remove(entry_id)

    def entries(self) -> tuple[Entry, ...]:
        return self._library.entries()

    def meter(self) -> Meter:
        used = sum(entry.n_tokens for entry in self.entries() if entry.is_chosen)
        return Meter(used, self.facts.context - 640, self.facts.context)

    def new_chat(self) -> str:
        return f"chat{next(self._numbers)}"

    def ask(
        self,
        chat_id: str,
        question: str,
        cancel: threading.Event,
        sampling: object = None,
        max_tokens: int = 0,
    ) -> Iterator[Progress | Emission | Answer]:
        self.asked.append(question)
        meter = self.meter()
        if meter.over:
            raise ContextExceeded(meter.used, 512, meter.context)
        return self._answer(question, cancel, meter.used)

    def _answer(self, question: str, cancel: threading.Event, n_tokens: int) -> Iterator[Progress | Emission | Answer]:
        started = time.monotonic()
        first = len(self.asked) == 1
        text = ""
        pieces = re.findall(r"\s*\S+\s*", self.words) or [""]
        if first:
            for block in range(self.n_blocks + 1):
                if cancel.is_set():
                    break
                done = n_tokens * block // self.n_blocks
                yield Progress("prefill", done, n_tokens, 950.0, (n_tokens - done) / 950.0)
                time.sleep(self.pause)
        for number, piece in enumerate(pieces):
            if number == len(pieces) // 2:
                while not self.gate.is_set() and not cancel.is_set():
                    time.sleep(0.01)
            if cancel.is_set():
                break
            text += piece
            yield Emission(piece, (number,))
            time.sleep(self.pause)
        self.was_cancelled = cancel.is_set()
        stats = Stats(
            prompt_tokens=n_tokens + 20,
            cached_tokens=0 if first else n_tokens,
            new_tokens=n_tokens + 20 if first else 20,
            prefill_seconds=1.0,
            first_token_seconds=1.2 if first else 0.3,
            decode_tokens=max(len(pieces), 1),
            decode_seconds=max(time.monotonic() - started, 0.01),
            levels=(LevelStats("target", 10, 60, 34), LevelStats("retrieval", 30, 60, 40)),
        )
        reason = "cancelled" if self.was_cancelled else "stop"
        yield Answer(text, reason, self._sources(), stats, self.facts.mode, self.facts.model)

    def _sources(self) -> tuple[Source, ...]:
        sources = []
        for entry in self.entries():
            if not entry.is_chosen:
                continue
            for page in entry.pages[:3]:
                quote = " ".join(page.text.split()[:12])
                label = page.label if entry.document.kind == "pdf" else f"{page.label}:1-3"
                sources.append(Source(entry.name, page.index, label, 0.3, quote))
        return tuple(sources[:4])
