"""Chats kept by token ids, so that a follow-up continues from exactly what the model read and wrote."""

import secrets
import threading
from dataclasses import dataclass, replace

from app.errors import UnknownChat


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and what was answered, as token ids. A cancelled answer keeps what it had come to.

    `answer_ids` hold no final end-of-turn id: the chat frame writes that one.
    """

    question_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat: the library entries its last question was asked about, and its turns so far."""

    id: str
    entry_ids: tuple[str, ...] = ()
    turns: tuple[Turn, ...] = ()


class Conversations:
    """All chats, in memory. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chats: dict[str, Conversation] = {}

    def open(self) -> Conversation:
        chat = Conversation(secrets.token_hex(8))
        with self._lock:
            self._chats[chat.id] = chat
        return chat

    def chat(self, chat_id: str) -> Conversation:
        with self._lock:
            return self._find(chat_id)

    def add(self, chat_id: str, entry_ids: tuple[str, ...], turn: Turn) -> Conversation:
        """The chat with `turn` at its end."""
        with self._lock:
            chat = self._find(chat_id)
            chat = replace(chat, entry_ids=entry_ids, turns=(*chat.turns, turn))
            self._chats[chat_id] = chat
            return chat

    def _find(self, chat_id: str) -> Conversation:
        if chat_id not in self._chats:
            raise UnknownChat(chat_id)
        return self._chats[chat_id]
