"""`fullread ask`: read the files, load the model, ask the questions in turn, show answers as they come."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from app.arguments import Ask
from app.assistant import Answer, Assistant, read_document
from app.errors import DocumentsTooLong, WrongUsage
from app.naming import shown
from app.settings import Settings
from app.terminal import ProgressLine, costs_line, harmless, sources_lines, to_json
from ingest.document import Document
from runtime.events import Emission, Progress

Opener = Callable[[Settings, Callable[[Progress], None]], Assistant]

DONE, INTERRUPTED = 0, 130
_MOST_WARNINGS = 8


def ask(command: Ask, settings: Settings, open_assistant: Opener, streams: tuple[TextIO, TextIO, TextIO]) -> int:
    """Run the command over `streams` (standard input, output, error); gives the exit status.

    Whatever is wrong with the files is raised before the model is loaded, and a prompt that is too long
    before anything is sent to it.
    """
    stdin, stdout, stderr = streams
    questions = command.questions or _questions(stdin)
    progress = ProgressLine(stderr)
    try:
        documents = [_read(path, command, settings, progress) for path in command.files]
        if command.pages and not any(document.kind == "pdf" for document in documents):
            raise WrongUsage("--pages chooses pages of PDFs, and there is none here.", "Leave it out.")
        progress.say("Loading the model")
        assistant = open_assistant(settings, progress.report)
        try:
            _admit(documents, assistant, progress)
            return _ask_all(questions, assistant, progress, stdout, command.as_json)
        finally:
            assistant.close()
    finally:
        progress.clear()


def _questions(stdin: TextIO) -> tuple[str, ...]:
    questions = () if stdin.isatty() else tuple(line.strip() for line in stdin if line.strip())
    if not questions:
        raise WrongUsage("There is no question.", 'Write one after -q: -q "What is this about?".')
    return questions


def _read(path: Path, command: Ask, settings: Settings, progress: ProgressLine) -> Document:
    progress.soon(f"Reading {shown(path.name or str(path))}")
    return read_document(path, settings.password, command.pages)


def _admit(documents: list[Document], assistant: Assistant, progress: ProgressLine) -> None:
    """Count the documents' tokens and refuse them together when they are too long."""
    for note in assistant.facts.notes:
        progress.note(note)
    for document in documents:
        entry = assistant.admit(document)
        name = shown(entry.name)
        n_read = len(entry.pages)
        pages = f", {n_read:,} of {entry.n_pages:,} pages" if document.kind == "pdf" else ""
        progress.note(f"{name}: {entry.n_tokens:,} tokens{pages}")
        for warning in entry.warnings[:_MOST_WARNINGS]:
            progress.note(f"{name}: {harmless(warning)}")
        if len(entry.warnings) > _MOST_WARNINGS:
            progress.note(f"{name}: and {len(entry.warnings) - _MOST_WARNINGS:,} more warnings.")
    meter = assistant.meter()
    if meter.over:
        raise DocumentsTooLong(meter.used, meter.limit, meter.context)


def _ask_all(
    questions: tuple[str, ...], assistant: Assistant, progress: ProgressLine, stdout: TextIO, as_json: bool
) -> int:
    chat = assistant.new_chat()
    told: set[str] = set()  # what a note says of one answer it mostly says of the next
    for number, question in enumerate(questions):
        if len(questions) > 1 and not as_json:
            gap = "\n" if number else ""
            print(f"{gap}> {harmless(question)}", file=stdout, flush=True)
        cancel = threading.Event()
        with _cancelled_by_interrupt(cancel):
            answer = _show(assistant.ask(chat, question, cancel), progress, stdout, as_json)
        for note in answer.notes:
            if note not in told:
                progress.note(note)
        told.update(answer.notes)
        if answer.finish_reason == "cancelled":
            progress.note("Stopped.")
            return INTERRUPTED
    return DONE


def _show(
    events: Iterator[Progress | Emission | Answer], progress: ProgressLine, stdout: TextIO, as_json: bool
) -> Answer:
    """Show events as they come; gives the last, which is the answer."""
    for event in events:
        match event:
            case Progress():
                progress.report(event)
            case Emission() if not as_json:
                progress.clear()
                stdout.write(harmless(event.text))
                stdout.flush()
            case Answer():
                progress.clear()
                if as_json:
                    print(to_json(event), file=stdout, flush=True)
                else:
                    _show_end(event, stdout)
                return event
            case _:
                pass
    raise RuntimeError("an answer has to end with an Answer")


def _show_end(answer: Answer, stdout: TextIO) -> None:
    lines = ["", "", "Sources:", *sources_lines(answer.sources)] if answer.sources else [""]
    print("\n".join([*lines, "", costs_line(answer)]), file=stdout, flush=True)


@contextmanager
def _cancelled_by_interrupt(cancel: threading.Event) -> Iterator[None]:
    """While inside, the first Ctrl-C sets `cancel`, so the answer ends cleanly; the second breaks off."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if cancel.is_set():
            raise KeyboardInterrupt
        cancel.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
