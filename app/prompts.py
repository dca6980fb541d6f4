"""The words around documents, conversation and question, as token ids; and which ids are which page.

The documents come first in the first user turn, so every chat about the same documents shares their prefix.
Prompts are append-only: a turn's prompt and the answer's own ids after it begin the next turn's prompt.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.conversations import Turn
from app.naming import shown
from ingest.document import Document, Page

if TYPE_CHECKING:
    from runtime.tokenizer import Tokenizer

# Short, and the question plain after the documents: the starter model follows that best.
_SYSTEM = "Answer the question from the documents. If the answer is not in them, say so."
_QUESTION = "\n\nQuestion: "
_NONCE_LENGTH = 5


@dataclass(frozen=True, slots=True)
class Chosen:
    """A document as it goes into a prompt: the selected pages, with the token ids of each page's text."""

    document: Document
    pages: tuple[Page, ...]
    page_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class PageSpan:
    """The text of a page is the prompt's tokens `[start, end)`.

    `document` counts the chosen documents from 0; `page` is the physical index.
    """

    start: int
    end: int
    document: int
    page: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads, and where each page's text lies in it."""

    ids: tuple[int, ...]
    spans: tuple[PageSpan, ...] = ()


class Wording:
    """Builds prompts for one model's tokenizer and chat frame, with the secret of this installation."""

    def __init__(self, tokenizer: "Tokenizer", secret: bytes) -> None:
        self._tokenizer, self._secret = tokenizer, secret
        self._frame = tokenizer.chat_frame(_SYSTEM)

    @property
    def n_around(self) -> int:
        """Tokens of a first prompt that are neither document nor question."""
        frame = self._frame
        return len(frame.opening) + len(self._tokenizer.encode(_QUESTION)) + len(frame.user_to_assistant)

    def documents_length(self, chosen: Sequence[Chosen]) -> int:
        """Tokens the documents take in a prompt, their headers and page markers included."""
        ids: list[int] = []
        self._lay_out(chosen, ids)
        return len(ids)

    def compose(self, chosen: Sequence[Chosen], turns: Sequence[Turn], question: str) -> Prompt:
        """The prompt that asks `question` about `chosen` after `turns`. Nothing is ever cut."""
        frame = self._frame
        ids = list(frame.opening)
        spans = self._lay_out(chosen, ids)
        if chosen:
            ids += self._tokenizer.encode(_QUESTION)
        for turn in turns:
            ids += (*turn.question_ids, *frame.user_to_assistant, *turn.answer_ids, *frame.assistant_to_user)
        ids += (*self.question_ids(question), *frame.user_to_assistant)
        return Prompt(tuple(ids), spans)

    def question_ids(self, question: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(question))

    def answer_ids(self, generated: Sequence[int]) -> tuple[int, ...]:
        """Generated ids without their end-of-turn id, which the frame writes."""
        ended = bool(generated) and generated[-1] in self._tokenizer.eos_ids
        return tuple(generated[:-1] if ended else generated)

    def _lay_out(self, chosen: Sequence[Chosen], ids: list[int]) -> tuple[PageSpan, ...]:
        """Append the documents to `ids`, the words around the text encoded apart from it."""
        encode = self._tokenizer.encode
        spans: list[PageSpan] = []
        for number, part in enumerate(chosen):
            nonce = page_nonce(self._secret, part.document.digest)
            gap = "\n\n" if number else ""
            ids += encode(f"{gap}Document {number + 1}: {shown(part.document.name)}\n")
            for page, page_ids in zip(part.pages, part.page_ids, strict=True):
                where = f"p. {page.index}" if part.document.kind == "pdf" else shown(page.label)
                ids += encode(f"\n[{nonce} {where}]\n")
                spans.append(PageSpan(len(ids), len(ids) + len(page_ids), number, page.index))
                ids += page_ids
            ids += encode(f"\n[{nonce} end]")
        return tuple(spans)


def page_nonce(secret: bytes, digest: str) -> str:
    """The short word that marks the pages of the document with this digest.

    It depends on the secret, so no document can forge a page, and on no other document, so adding one
    leaves the tokens before it as they were.
    """
    mac = hmac.digest(secret, digest.encode("ascii"), hashlib.sha256)
    return base64.b32encode(mac).decode("ascii")[:_NONCE_LENGTH].lower()
