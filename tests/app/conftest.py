"""A scripted engine: the engine's contract over bytes, so that a test decides what is answered, and when."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pypdf import PdfWriter
from pypdf.generic import DictionaryObject, NameObject, StreamObject

from app.assistant import Assistant
from app.library import Library
from app.settings import Settings
from ingest.document import Document, Page
from runtime.config import Request
from runtime.errors import ContextExceeded
from runtime.events import Emission, Event, Finished, FinishReason, Progress, Span
from runtime.stats import LevelStats, Stats

if TYPE_CHECKING:
    from runtime.engine import Engine

END, USER, ASSISTANT, SYSTEM = 256, 257, 258, 259
BLOCK = 512


@dataclass(frozen=True)
class ByteFrame:
    opening: tuple[int, ...]
    user_to_assistant: tuple[int, ...] = (END, ASSISTANT)
    assistant_to_user: tuple[int, ...] = (END, USER)


class ByteTokenizer:
    """One token a byte of UTF-8; the control tokens lie above, where no text reaches them."""

    eos_ids = frozenset({END})

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return [(at, at + 1) for at, char in enumerate(text) for _ in char.encode("utf-8", "surrogatepass")]

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < END).decode("utf-8", "replace")

    def chat_frame(self, system: str) -> ByteFrame:
        return ByteFrame((SYSTEM, *self.encode(system), END, USER))


@dataclass(frozen=True)
class ScriptedFacts:
    model: str = "scripted"
    architecture: str = "bytes"
    parameters: int = 0
    mode: str = "cpu"
    mode_reason: str = "There is nothing to compute."
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    context: int = 4096
    trained_context: int = 4096
    draft_model: str | None = None
    notes: tuple[str, ...] = ()
    placed: None = None


@dataclass(frozen=True)
class Reply:
    """What the engine answers, which words of the documents it is said to have used, and how it ends."""

    text: str
    used: tuple[tuple[str, float], ...] = ()
    reason: FinishReason = "stop"


@dataclass
class ScriptedEngine:
    """Answers with `replies` in turn (the last one for ever); `prompts` and `requests` are what it was given.

    `pause`, when set, is called after every event, in the engine's place between two blocks or rounds.
    """

    replies: list[Reply] = field(default_factory=lambda: [Reply("An answer.")])
    facts: ScriptedFacts = field(default_factory=ScriptedFacts)
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    pause: Callable[[], None] = lambda: None
    rope: str | None = None
    closed: bool = False
    _kept: tuple[int, ...] = ()

    def rope_note(self, n_tokens: int) -> str | None:
        return self.rope

    def close(self) -> None:
        self.closed = True

    def answer(self, ids: Sequence[int], request: Request, cancel: threading.Event) -> Iterator[Event]:
        if len(ids) + request.max_tokens > self.facts.context:
            raise ContextExceeded(len(ids), request.max_tokens, self.facts.context)
        self.prompts.append(tuple(ids))
        self.requests.append(request)
        reply = self.replies[min(len(self.prompts), len(self.replies)) - 1]
        cached = next(
            (at for at, (a, b) in enumerate(zip(self._kept, ids, strict=False)) if a != b),
            min(len(self._kept), len(ids)),
        )
        given: tuple[int, ...] = ()

        def finished(reason: FinishReason) -> Finished:
            self._kept = (*ids, *given)
            stats = Stats(
                prompt_tokens=len(ids),
                cached_tokens=cached,
                new_tokens=len(ids) - cached,
                prefill_seconds=0.5,
                first_token_seconds=0.6,
                decode_tokens=len(given),
                decode_seconds=1.0,
                levels=(LevelStats("target", 4, 12, 9), LevelStats("retrieval", 9, 18, 8)),
            )
            text = self.tokenizer.decode(given)
            return Finished(reason, text, given, stats, self._evidence(ids, request, reply))

        total = len(ids) - cached
        for done in (*range(0, total, BLOCK), total):
            if cancel.is_set():
                yield finished("cancelled")
                return
            yield Progress("prefill", done, total, 1000.0, (total - done) / 1000)
            self.pause()
        for start in range(0, len(reply.text), 4):
            if cancel.is_set():
                yield finished("cancelled")
                return
            piece = reply.text[start : start + 4]
            given += tuple(self.tokenizer.encode(piece))
            yield Emission(piece, tuple(self.tokenizer.encode(piece)))
            self.pause()
        if reply.reason == "stop":
            given += (END,)
            yield Emission("", (END,))
        yield finished(reply.reason)

    def _evidence(self, ids: Sequence[int], request: Request, reply: Reply) -> tuple[Span, ...]:
        found: list[Span] = []
        for words, weight in reply.used:
            wanted = self.tokenizer.encode(words)
            for start, end in request.evidence_spans:
                for at in range(start, end - len(wanted) + 1):
                    if list(ids[at : at + len(wanted)]) == wanted:
                        found.append(Span(at, at + len(wanted), weight))
        return tuple(found)


@pytest.fixture(scope="session")
def starter(starter_path: Path) -> "Iterator[Engine]":
    """The real engine over the starter model, loaded once; in float32, so that answers are the same everywhere."""
    from runtime.engine import assemble

    assert starter_path.is_file()
    engine = assemble(replace(Settings(dtype="float32").engine_config(), allow_download=False), lambda _: None)
    yield engine
    engine.close()


@pytest.fixture
def make_pdf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a real PDF, one text a page, and gives its path."""

    def make(name: str, *texts: str) -> Path:
        writer = PdfWriter()
        font = DictionaryObject(
            {
                NameObject("/Type"): NameObject("/Font"),
                NameObject("/Subtype"): NameObject("/Type1"),
                NameObject("/BaseFont"): NameObject("/Helvetica"),
            }
        )
        for text in texts:
            page = writer.add_blank_page(595, 842)
            lines = " T* ".join(f"({line}) Tj" for line in text.split("\n"))
            content = StreamObject()
            content.set_data(f"BT /F 12 Tf 14 TL 72 770 Td {lines} ET".encode("latin-1"))
            page[NameObject("/Contents")] = writer._add_object(content)
            fonts = DictionaryObject({NameObject("/F"): font})
            page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        writer.write(tmp_path / name)
        return tmp_path / name

    return make


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", max_tokens=64)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def assistant(engine: ScriptedEngine, settings: Settings) -> Assistant:
    return Assistant(engine, Library(), settings)


@pytest.fixture
def manual() -> Document:
    """A PDF's document of four pages, the third without text, with roman labels on the first two."""
    pages = (
        Page(1, "i", "Preface. This manual is about pumps."),
        Page(2, "ii", "Contents. Valves, seals, pumps."),
        Page(4, "2", "The valve opens at 7 bar. Never open it by hand."),
    )
    return Document("manual.pdf", "pdf", "ab" * 32, 4, pages)


@pytest.fixture
def tree() -> Document:
    """A folder's document of two source files."""
    pages = (
        Page(1, "src/main.py", "import pump\n\n\ndef run():\n    pump.start()\n    return 0\n"),
        Page(2, "src/pump.py", "def start():\n    print('on')\n"),
    )
    return Document("project", "tree", "cd" * 32, 2, pages)
