"""What every open page shows, and outlives it: the chats, and the one answer that may be being written."""

import logging
import threading
from dataclasses import dataclass, field, replace

from app.assistant import Assistant
from app.errors import AppError
from app.problems import explain
from app.ui.exchange import Exchange, advance, fail
from runtime.errors import EngineError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Chat:
    """One chat as it is shown; its title is its first question."""

    id: str
    exchanges: tuple[Exchange, ...] = ()

    @property
    def title(self) -> str:
        return self.exchanges[0].question if self.exchanges else "New chat"


@dataclass(frozen=True, slots=True)
class View:
    """The state at one moment: the open chat, all chats (oldest first), whether one is being answered."""

    chat: Chat
    chats: tuple[Chat, ...]
    is_answering: bool


@dataclass(slots=True)
class _Run:
    """The answer being written: in which chat, and how to end it."""

    chat_id: str
    cancel: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class Desk:
    """The chats of this process. A thread of the desk's writes the answers, so no page has to stay open.

    Safe to use from several threads. One answer at a time: there is one model.
    """

    def __init__(self, assistant: Assistant) -> None:
        self._assistant = assistant
        self._lock = threading.Lock()
        self._chats: dict[str, Chat] = {}
        self._run: _Run | None = None
        self._open = self._begin()

    def view(self) -> View:
        with self._lock:
            return View(self._chats[self._open], tuple(self._chats.values()), self._run is not None)

    def ask(self, question: str) -> bool:
        """Start answering `question` in the open chat; False, and nothing done, while an answer runs."""
        with self._lock:
            if self._run is not None:
                return False
            run = self._run = _Run(self._open)
            chat = self._chats[run.chat_id]
            self._chats[chat.id] = replace(chat, exchanges=(*chat.exchanges, Exchange(question)))
        run.thread = threading.Thread(target=self._answer, args=(run, question), name="answer", daemon=True)
        run.thread.start()
        return True

    def stop(self) -> None:
        """End the running answer, within one block of prefill or one round."""
        with self._lock:
            if self._run is not None:
                self._run.cancel.set()

    def new_chat(self) -> None:
        """Open an empty chat; the one that is open stays where it is unless it is empty itself."""
        with self._lock:
            if self._chats[self._open].exchanges:
                self._open = self._begin()

    def open_chat(self, chat_id: str) -> None:
        with self._lock:
            if chat_id in self._chats:
                self._open = chat_id

    def close(self, seconds: float) -> None:
        """End the running answer and wait for it, but at most `seconds`."""
        self.stop()
        with self._lock:
            thread = self._run.thread if self._run else None
        if thread is not None:
            thread.join(seconds)

    def _begin(self) -> str:
        chat = Chat(self._assistant.new_chat())
        self._chats[chat.id] = chat
        return chat.id

    def _answer(self, run: _Run, question: str) -> None:
        try:
            for event in self._assistant.ask(run.chat_id, question, run.cancel):
                self._change(run.chat_id, advance(self._last(run.chat_id), event))
        except (EngineError, AppError) as error:
            self._change(run.chat_id, fail(self._last(run.chat_id), explain(error)))
        except Exception as error:  # the outermost boundary of this thread: the page says so, the log has the rest
            _log.exception("an answer ended unforeseen")
            self._change(run.chat_id, fail(self._last(run.chat_id), explain(error)))
        finally:
            with self._lock:
                self._run = None

    def _last(self, chat_id: str) -> Exchange:
        with self._lock:
            return self._chats[chat_id].exchanges[-1]

    def _change(self, chat_id: str, exchange: Exchange) -> None:
        with self._lock:
            chat = self._chats[chat_id]
            self._chats[chat_id] = replace(chat, exchanges=(*chat.exchanges[:-1], exchange))
