"""What a person can do, as plain calls and generators of events. Only this module calls both sides."""

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.conversations import Conversations, Turn
from app.errors import NotReady
from app.library import Entry, Library
from app.problems import explain
from app.prompts import Chosen, Prompt, Wording
from app.secret import installation_secret
from app.settings import Settings
from app.sources import Source, find_sources
from ingest.document import Document
from ingest.errors import IngestError
from ingest.flags import describe
from ingest.read import read
from ingest.selection import parse_pages
from runtime.config import Request, Sampling
from runtime.errors import ContextExceeded
from runtime.events import Emission, Finished, FinishReason, Notice, Progress
from runtime.stats import Stats

if TYPE_CHECKING:
    from runtime.engine import Engine, EngineFacts
    from runtime.remote.engine import RemoteEngine, RemoteFacts

_QUESTION_ROOM = 256  # tokens kept free for the question, or an eighth of a small context


@dataclass(frozen=True, slots=True)
class Meter:
    """How much of the model's context the chosen documents take, in tokens.

    `used` counts them with headers and page markers; `limit` is what is left for them beside question and
    answer; `context` is what the model holds altogether.
    """

    used: int
    limit: int
    context: int

    @property
    def over(self) -> bool:
        return self.used > self.limit


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of an answer, also of a cancelled one: its whole text, where it comes from, what it cost.

    `notes` are things a person must be told about this answer.
    """

    text: str
    finish_reason: FinishReason
    sources: tuple[Source, ...]
    stats: Stats
    mode: str
    model: str
    notes: tuple[str, ...] = ()


def read_document(path: Path, password: str | None = None, pages: str | None = None) -> Document:
    """A file, folder or archive, read in a limited child process. Raises `IngestError`. Needs no model.

    `pages` restricts what is read of a PDF; of anything else all is read.
    """
    is_named_pdf = path.suffix.lower() == ".pdf" and path.is_file()
    document = read(path, password=password, pages=pages if is_named_pdf else None)
    if pages and document.kind == "pdf" and not is_named_pdf:
        return read(path, password=password, pages=pages)
    return document


def open_assistant(settings: Settings, progress: Callable[[Progress], None]) -> "Assistant":
    """An assistant with its model fetched and loaded, or with the engine elsewhere that was named.

    Raises `EngineError`, `DataFolderUnusable`.
    """
    if (remote := settings.remote_config()) is not None:
        from runtime.remote.engine import connect

        return Assistant(connect(remote, settings.request()), Library(), settings)
    from runtime.engine import assemble

    return Assistant(assemble(settings.engine_config(), progress), Library(), settings)


class Assistant:
    """The documents, the chats and the one model that answers. Safe to use from several threads."""

    def __init__(self, engine: "Engine | RemoteEngine", library: Library, settings: Settings) -> None:
        self._engine, self._library, self._settings = engine, library, settings
        self._wording = Wording(engine.tokenizer, installation_secret(settings.data_dir))
        self._conversations = Conversations()

    @property
    def facts(self) -> "EngineFacts | RemoteFacts":
        return self._engine.facts

    def close(self) -> None:
        self._engine.close()

    def add(self, path: Path, name: str | None = None, password: str | None = None) -> Entry:
        """Read `path` and count its tokens. A file that cannot be read gives a failed entry."""
        entry = self._library.open(name or path.name or str(path))
        try:
            return self._fill(entry, read_document(path, password or self._settings.password))
        except IngestError as error:
            return self._library.fail(entry.id, explain(error))
        finally:
            self._library.abandon(entry.id)

    def admit(self, document: Document) -> Entry:
        """Take in a document that has been read already."""
        return self._fill(self._library.open(document.name), document)

    def select(self, entry_id: str, pages: str | None) -> Entry:
        """Choose pages ("1-12,15") of a document; None or blank chooses all. Raises `NoSuchPages`."""
        entry = self._library.entry(entry_id)
        if entry.document is None:
            raise NotReady(entry.name)
        if pages is None or not pages.strip():
            return self._library.select(entry_id, None)
        return self._library.select(entry_id, parse_pages(pages, entry.document.n_pages, entry.name))

    def check(self, entry_id: str, checked: bool) -> Entry:
        return self._library.check(entry_id, checked)

    def remove(self, entry_id: str) -> None:
        self._library.remove(entry_id)

    def entries(self) -> tuple[Entry, ...]:
        return self._library.entries()

    def meter(self) -> Meter:
        context = self.facts.context
        room = min(_QUESTION_ROOM, context // 8) + self._settings.max_tokens + self._wording.n_around
        used = self._wording.documents_length([part for _, part in self._chosen()])
        return Meter(used, max(context - room, 0), context)

    def new_chat(self) -> str:
        """The id of a new conversation."""
        return self._conversations.open().id

    def ask(
        self,
        chat_id: str,
        question: str,
        cancel: threading.Event,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
    ) -> Iterator[Progress | Emission | Answer]:
        """Ask the chosen documents; yields progress, text as it comes, and the `Answer` last.

        The documents are those chosen now: while they stay the same, only the new turn is computed. Raises
        `ContextExceeded`, `UnknownChat` at the call, before anything is computed. Two questions put to one
        chat at a time do not see each other, and stay in the chat in the order they ended.
        """
        chosen = self._chosen()
        parts = [part for _, part in chosen]
        prompt = self._wording.compose(parts, self._conversations.chat(chat_id).turns, question)
        request = Request(
            sampling=sampling or self._settings.sampling(),
            max_tokens=max_tokens or self._settings.max_tokens,
            evidence_spans=tuple((span.start, span.end) for span in prompt.spans if span.start < span.end),
        )
        if len(prompt.ids) + request.max_tokens > self.facts.context:
            raise ContextExceeded(len(prompt.ids), request.max_tokens, self.facts.context)
        entry_ids = tuple(entry.id for entry, _ in chosen)
        return self._answer(chat_id, entry_ids, parts, prompt, question, request, cancel)

    def _answer(
        self,
        chat_id: str,
        entry_ids: tuple[str, ...],
        parts: list[Chosen],
        prompt: Prompt,
        question: str,
        request: Request,
        cancel: threading.Event,
    ) -> Iterator[Progress | Emission | Answer]:
        generated: tuple[int, ...] = ()
        notes: list[str] = []

        def keep(ids: tuple[int, ...]) -> None:
            if ids:
                turn = Turn(self._wording.question_ids(question), self._wording.answer_ids(ids))
                self._conversations.add(chat_id, entry_ids, turn)

        events = self._engine.answer(prompt.ids, request, cancel)
        try:
            for event in events:
                match event:
                    case Finished():
                        generated = ()
                        keep(event.token_ids)
                        yield self._finish(event, prompt, parts, request, notes)
                    case Emission():
                        generated += event.token_ids
                        yield event
                    case Notice():
                        notes.append(event.sentence)
                    case _:
                        yield event
        finally:
            if isinstance(events, Generator):
                events.close()
            keep(generated)  # of an answer that was broken off before its end

    def _finish(self, end: Finished, prompt: Prompt, parts: list[Chosen], request: Request, notes: list[str]) -> Answer:
        note = self._engine.rope_note(len(prompt.ids) + request.max_tokens)
        return Answer(
            text=end.text,
            finish_reason=end.reason,
            sources=find_sources(prompt, parts, end.evidence, self._engine.tokenizer),
            stats=end.stats,
            mode=self.facts.mode,
            model=self.facts.model,
            notes=(*notes, *filter(None, (note,))),
        )

    def _fill(self, entry: Entry, document: Document) -> Entry:
        encode = self._engine.tokenizer.encode
        page_ids = tuple(tuple(encode(page.text)) for page in document.pages)
        return self._library.fill(entry.id, document, page_ids, tuple(map(describe, document.flags)))

    def _chosen(self) -> list[tuple[Entry, Chosen]]:
        """The entries the next question is asked about, each with its selected pages."""
        return [
            (entry, Chosen(entry.document, entry.pages, page_ids))
            for entry, page_ids in self._library.chosen()
            if entry.document is not None
        ]
