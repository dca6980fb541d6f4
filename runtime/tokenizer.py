"""Text to ids and back. A document's text is data: it never becomes a control token."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

LONGEST_WORD = 2048  # characters without white space; byte-pair merging of one word is super-linear
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD}}}(?=\S)")
_PLACES = ("\ufdd0system\ufdd1", "\ufdd0user\ufdd1", "\ufdd0assistant\ufdd1", "\ufdd0user again\ufdd1")


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """The chat template's own tokens around contents.

    A prompt is `opening` + user ids + `user_to_assistant`; a follow-up continues it with the answer's ids (without a
    final end-of-turn id) + `assistant_to_user` + user ids + `user_to_assistant`. So each prompt begins with the one
    before it, whatever the template would make of the whole.
    """

    opening: tuple[int, ...]
    user_to_assistant: tuple[int, ...]
    assistant_to_user: tuple[int, ...]


class Tokenizer:
    """A transformers tokenizer, with control tokens kept apart from text."""

    def __init__(self, backend: Any, eos_ids: frozenset[int] = frozenset()) -> None:
        self._backend = backend
        self._control = {
            str(token): index for index, token in backend.added_tokens_decoder.items() if str(token).strip()
        }
        # Longest first, so that a control token which begins another does not hide it.
        words = sorted(self._control, key=len, reverse=True)
        self._control_words = re.compile("|".join(map(re.escape, words))) if words else None
        own = backend.eos_token_id
        self.eos_ids = eos_ids | (frozenset() if own is None else frozenset((own,)))

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every token's string and id."""
        vocabulary: dict[str, int] = self._backend.get_vocab()
        return vocabulary

    @property
    def n_tokens(self) -> int:
        """One more than the largest id; a model's vocabulary may be padded beyond."""
        return max(self.vocabulary.values()) + 1

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids that `encode` never gives."""
        return frozenset(self._control.values())

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; a control token's name in it is encoded as the characters it is made of."""
        return [index for piece in self._pieces(text) for index in self._encode_piece(piece)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character range `[start, end)` of each id that `encode(text)` gives."""
        found, base = [], 0
        for piece in self._pieces(text):
            encoded = self._backend(piece, add_special_tokens=False, return_offsets_mapping=True)
            found += [(base + start, base + end) for start, end in encoded["offset_mapping"]]
            base += len(piece)
        return found

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens left out."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def chat_frame(self, system: str) -> ChatFrame:
        """The template's tokens around a conversation that `system` opens.

        A template without a system role gets the text at the head of the first user turn; a model without a template
        gets plain headings.
        """
        if not self._backend.chat_template:
            return ChatFrame(
                (*self._first_id(), *self.encode(f"{system}\n\nQuestion:\n")),
                tuple(self.encode("\n\nAnswer:\n")),
                tuple(self.encode("\n\nQuestion:\n")),
            )
        try:
            before, between, _, following, asking = self._scaffold(has_system=True)
            opening = [*self._encode_scaffold(before), *self.encode(system), *self._encode_scaffold(between)]
        except _NoSystemRole:
            before, _, following, asking = self._scaffold(has_system=False)
            opening = [*self._encode_scaffold(before), *self.encode(f"{system}\n\n")]
        return ChatFrame(tuple(opening), tuple(self._encode_scaffold(asking)), tuple(self._encode_scaffold(following)))

    def _scaffold(self, has_system: bool) -> list[str]:
        """The rendered template cut at the places of contents."""
        roles = ["system", "user", "assistant", "user"]
        messages = [{"role": role, "content": place} for role, place in zip(roles, _PLACES, strict=True)]
        try:
            rendered: str = self._backend.apply_chat_template(
                messages if has_system else messages[1:], tokenize=False, add_generation_prompt=True
            )
        except jinja2.TemplateError as error:
            if has_system:
                raise _NoSystemRole from error
            raise
        places = _PLACES if has_system else _PLACES[1:]
        pieces = re.split("|".join(map(re.escape, places)), rendered)
        if len(pieces) != len(places) + 1:
            raise _NoSystemRole if has_system else ValueError("the chat template drops a message")
        return pieces

    def _encode_scaffold(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False)
        return ids

    def _first_id(self) -> tuple[int, ...]:
        first = self._backend.bos_token_id
        return () if first is None or not getattr(self._backend, "add_bos_token", False) else (first,)

    def _encode_piece(self, piece: str) -> list[int]:
        ids: list[int] = self._backend.encode(piece, add_special_tokens=False)
        return ids

    def _pieces(self, text: str) -> Iterator[str]:
        """`text` in pieces that hold no control token's name and no endless word."""
        cuts = {match.end() for match in _LONG_WORD.finditer(text)}
        if self._control_words is not None:
            position = 0
            while match := self._control_words.search(text, position):
                # One cut inside the name is enough; names may overlap, so go on right behind the cut.
                position = match.start() + 1
                cuts.add(position)
        start = 0
        for cut in (*sorted(cuts), len(text)):
            if cut > start:
                yield text[start:cut]
            start = cut


class _NoSystemRole(Exception):
    """The chat template takes no system message."""
