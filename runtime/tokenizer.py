"""Text to ids and back. A document's text is data: it never becomes a control token."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jinja2
import tokenizers

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_PLACES = {
    "system": "\ufdd0system\ufdd1",
    "user": "\ufdd0user\ufdd1",
    "assistant": "\ufdd0assistant\ufdd1",
    "user again": "\ufdd0user again\ufdd1",
}


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
        """`eos_ids` end an answer, besides the tokenizer's own."""
        self._backend = backend
        self._control = {
            str(token): index for index, token in backend.added_tokens_decoder.items() if str(token).strip()
        }
        # Longest first, so that a control token which begins another does not hide it.
        words = sorted(self._control, key=len, reverse=True)
        self._control_words = re.compile("|".join(map(re.escape, words)) or r"(?!)")
        self._bare = _bare(backend.backend_tokenizer)
        own = backend.eos_token_id
        self.eos_ids = eos_ids | (frozenset() if own is None else frozenset((own,)))

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Every token's string and id."""
        vocabulary: dict[str, int] = self._backend.get_vocab()
        return vocabulary

    @cached_property
    def n_tokens(self) -> int:
        """One more than the largest id; a model's vocabulary may be padded beyond."""
        return max(self.vocabulary.values()) + 1

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids that `encode` never gives."""
        return frozenset(self._control.values())

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; a control token's name in it is encoded as the characters it is made of."""
        return self._ids(text, self._lead)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character range `[start, end)` of each id that `encode(text)` gives.

        Tokens that make one character together all have its range.
        """
        return [place for _, place in self._encoded(text, self._lead)]

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens left out."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def chat_frame(self, system: str) -> ChatFrame:
        """The template's tokens around a conversation that `system` opens.

        A template without a system role gets the text at the head of the first user turn; a model without a template,
        or with one that leaves messages out, gets plain headings.
        """
        if (pieces := self._scaffold("system", "user", "assistant", "user again")) is not None:
            before, between, _, following, asking = pieces
            lead = self._lead if before.endswith(" ") else ""
            opening = [*self._framing(before.removesuffix(lead)), *self._ids(system, lead)]
            opening += self._framing_behind(self._up_to_content(between))
        elif (pieces := self._scaffold("user", "assistant", "user again")) is not None:
            before, _, following, asking = pieces
            opening = [*self._framing(self._up_to_content(before)), *self.encode(f"{system}\n\n")]
        else:
            following, asking = "\n\nQuestion:\n", "\n\nAnswer:\n"
            opening = [*self._first_id(), *self.encode(f"{system}{following}")]
        return ChatFrame(
            tuple(opening),
            tuple(self._framing_behind(asking)),
            tuple(self._framing_behind(self._up_to_content(following))),
        )

    def _scaffold(self, *names: str) -> list[str] | None:
        """The rendered template cut at the places of contents; None where it does not take these messages as told."""
        if not self._backend.chat_template:
            return None
        messages = [{"role": name.split()[0], "content": _PLACES[name]} for name in names]
        try:
            # Templates that know no thinking ignore the switch; an answer is to begin with the answer.
            rendered: str = self._backend.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError):
            return None
        place = re.compile("|".join(map(re.escape, _PLACES.values())))
        if place.findall(rendered) != [_PLACES[name] for name in names]:
            return None
        return place.split(rendered)

    def _framing(self, text: str) -> list[int]:
        """Ids of a piece of the template, control tokens included."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False)
        return ids

    def _framing_behind(self, text: str) -> list[int]:
        """Ids of a piece of the template that stands behind a content, with no space of the tokenizer's between."""
        first = self._control_words.search(text)
        end = first.start() if first else len(text)
        return [*self._bare.encode(text[:end]).ids, *self._framing(text[end:])]

    def _up_to_content(self, text: str) -> str:
        """A piece of the template with a content behind it, less the space that the content begins with by itself."""
        return text.removesuffix(" ") if self._lead else text

    @cached_property
    def _lead(self) -> str:
        """What the tokenizer puts before every text, and takes away again when it decodes."""
        ids = self._framing("a")
        return " " if ids != self._bare.encode("a").ids and self.decode(ids) == "a" else ""

    def _first_id(self) -> tuple[int, ...]:
        first = self._backend.bos_token_id
        return () if first is None or not getattr(self._backend, "add_bos_token", False) else (first,)

    def _ids(self, text: str, lead: str) -> list[int]:
        return [index for index, _ in self._encoded(text, lead)]

    def _encoded(self, text: str, lead: str) -> Iterator[tuple[int, tuple[int, int]]]:
        """Each id with its character range in `text`, before which `lead` is put."""
        if not text:
            return
        text = _LONE_SURROGATE.sub("\ufffd", text)  # no character, and nothing that UTF-8 has bytes for
        whole = self._bare.encode(lead + text)
        if not self.control_ids.intersection(whole.ids):
            yield from _placed(whole, -len(lead))
            return
        # The model of this tokenizer knows names of control tokens as words; in pieces it cannot.
        start = -len(lead)
        for piece in self._pieces(lead + text):
            for index, place in _placed(self._bare.encode(piece), start):
                if index not in self.control_ids:
                    yield index, place
            start += len(piece)

    def _pieces(self, text: str) -> Iterator[str]:
        """`text` in pieces that hold no control token's name."""
        start = position = 0
        while match := self._control_words.search(text, position):
            # One cut inside the name is enough; names may overlap, so go on right behind the cut.
            position = match.start() + 1
            yield text[start:position]
            start = position
        yield text[start:]


def _placed(encoded: tokenizers.Encoding, start: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Each id with its character range, counted from `start`; what lies before 0 was put in and has no place."""
    for index, (first, last) in zip(encoded.ids, encoded.offsets, strict=True):
        yield index, (max(0, start + first), max(0, start + last))


def _bare(backend: Any) -> tokenizers.Tokenizer:
    """The tokenizer's model and steps, without control tokens and without anything put before a text."""
    steps = {name: _unprefixed(_state(getattr(backend, name))) for name in ("normalizer", "pre_tokenizer")}
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    rest = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
    bare = tokenizers.Tokenizer.from_str(
        json.dumps(steps | rest | {"model": empty, "version": "1.0", "added_tokens": []})
    )
    bare.model = backend.model  # shared, not copied
    return bare


def _state(step: Any) -> Any:
    """A normalizer or pre-tokenizer as `tokenizer.json` holds it."""
    return None if step is None else json.loads(step.__getstate__())


def _unprefixed(step: Any) -> Any:
    """The step, without what puts a space before a text."""
    if step is None or step["type"] == "Prepend":
        return None
    changes: dict[str, Any] = {}
    if step["type"] == "Metaspace":
        changes["prepend_scheme"] = "never"
    if step["type"] == "ByteLevel":
        changes["add_prefix_space"] = False
    for inner in ("normalizers", "pretokenizers"):
        if inner in step:
            changes[inner] = [changed for part in step[inner] if (changed := _unprefixed(part)) is not None]
    return step | changes
