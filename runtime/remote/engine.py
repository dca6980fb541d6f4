"""An engine that is a server elsewhere: the same surface as `runtime.engine`, over HTTP."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from runtime.config import Request
from runtime.errors import ContextExceeded, InvalidSetting, ServerLost, TokenizerDiffers, TokenizerNeeded
from runtime.events import Emission, Event, Finished, FinishReason
from runtime.remote.body import body_of, sampling_notes
from runtime.remote.config import RemoteConfig
from runtime.remote.connection import Connection
from runtime.remote.own_tokenizer import own_tokenizer
from runtime.remote.server import Served, context_of, find_served, takes_ids, tokens_of
from runtime.remote.written import BREAK_BYTES, Writer
from runtime.stats import Stats
from runtime.tokenizer import Tokenizer

_SAMPLE = "Fullread reads this: 12,345 naïve lines.\n\n    def add(a, b):\n        return a + b\n"
ABSENT_NOTE = "This engine does not say which pages an answer rests on, nor how many drafted tokens it accepts."
WRITTEN_NOTE = (
    "This server takes prompts as text alone. A control token's name in a document is broken there by a character "
    "that is not seen, so that it stays text."
)


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """What a person should always be able to see. `context` is the most tokens of prompt and answer together."""

    url: str
    server: str
    model: str
    tokenizer: str
    context: int
    notes: tuple[str, ...]
    mode: Literal["remote"] = "remote"

    @property
    def mode_reason(self) -> str:
        return f"Documents and questions go to {self.url}, the engine that was named."


def connect(config: RemoteConfig, request: Request) -> "RemoteEngine":
    """Find the server and its model, and check that both sides mean the same by a token; raises `EngineError`.

    `request` is what questions will be like, so that what cannot be asked there is refused now.
    """
    connection = Connection(config.address, config.key)
    served = find_served(connection, config)
    context = context_of(served, config)
    if config.model is None:
        raise TokenizerNeeded(str(config.address), served.model)
    body_of(served, "", request, frozenset())
    tokenizer = own_tokenizer(config.model, config.cache_dir)
    opening = tokenizer.chat_frame("Answer.").opening
    _check_tokenizer(connection, served, config.model, tokenizer)
    writer = None if takes_ids(connection, served, opening) else Writer(tokenizer)
    facts = RemoteFacts(
        url=str(config.address),
        server=served.kind,
        model=served.model,
        tokenizer=f"that of {config.model}",
        context=context,
        notes=(ABSENT_NOTE, *(WRITTEN_NOTE,) * (writer is not None), *sampling_notes(served.kind, request.sampling)),
    )
    puts_first = writer is not None and _puts_first(connection, served, writer, opening)
    return RemoteEngine(facts, connection, served, tokenizer, writer, puts_first)


def _check_tokenizer(connection: Connection, served: Served, model: str, tokenizer: Tokenizer) -> None:
    """Raises `TokenizerDiffers` where the server, as far as it can be asked, has other ids for a text."""
    theirs, ours = tokens_of(connection, served, _SAMPLE), tokenizer.encode(_SAMPLE)
    if theirs is not None and ours not in (theirs, theirs[1:]):  # some put their first token before any text
        raise TokenizerDiffers(str(connection.address), served.model, model)


def _puts_first(connection: Connection, served: Served, writer: Writer, ids: Sequence[int]) -> bool:
    """Whether the server puts a first token of its own before a prompt that begins with one already."""
    theirs = tokens_of(connection, served, writer.write(ids)[0])
    return theirs is not None and list(theirs[:2]) == [ids[0]] * 2 and ids[:2] != (ids[0],) * 2


class RemoteEngine:
    """Answers prompts through the server, which keeps the prompts it has seen as it sees fit."""

    def __init__(
        self,
        facts: RemoteFacts,
        connection: Connection,
        served: Served,
        tokenizer: Tokenizer,
        writer: Writer | None,
        puts_first: bool,
    ) -> None:
        self.facts, self.tokenizer = facts, tokenizer
        self._connection, self._served = connection, served
        self._writer, self._puts_first = writer, puts_first

    def rope_note(self, n_tokens: int) -> str | None:
        """Nothing is known of it here."""
        return None

    def close(self) -> None:
        """There is nothing to end: each answer closes its own connection."""

    def answer(self, ids: Sequence[int], request: Request, cancel: threading.Event) -> Iterator[Event]:
        """`Emission` as text comes, one `Finished` last; no progress is known before.

        Setting `cancel`, or closing the iterator, closes the connection, upon which the server stops. Raises
        `ContextExceeded`, `InvalidSetting` at once; iterating raises `ServerUnreachable`, `ServerKeyRefused`,
        `ServerRefused`, and `ServerLost` for an answer that breaks off.
        """
        if not ids:
            raise InvalidSetting("prompt", "", "at least one token")
        prompt: Sequence[int] | str = ids
        n_prompt = len(ids)
        if self._writer is not None:
            prompt, n_broken = self._writer.write(ids, skips_first=self._puts_first)
            n_prompt += n_broken * BREAK_BYTES  # no byte takes more than a token
        if n_prompt + request.max_tokens > self.facts.context:
            raise ContextExceeded(n_prompt, request.max_tokens, self.facts.context)
        body = body_of(self._served, prompt, request, self.tokenizer.eos_ids)
        return self._events(n_prompt, body, cancel)

    def _events(self, n_prompt: int, body: dict[str, object], cancel: threading.Event) -> Iterator[Event]:
        received = _Received(self.tokenizer, n_prompt)
        if not cancel.is_set():
            with self._connection.stream("/v1/completions", body, cancel) as stream:
                for data in stream:
                    if (emission := received.take(data)) is not None:
                        yield emission
        if received.reason is None and not cancel.is_set():
            raise ServerLost(self.facts.url, "it ended the answer without saying why")
        yield received.finished(received.reason or "cancelled")


@dataclass
class _Received:
    """An answer as it arrives."""

    tokenizer: Tokenizer
    n_prompt: int
    started: float = field(default_factory=time.perf_counter)
    first: float | None = None
    last: float = 0.0
    text: str = ""
    ids: list[int] = field(default_factory=list)
    has_ids: bool = True  # the server has said every id so far
    reason: FinishReason | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    n_cached: int | None = None

    def take(self, data: dict[str, Any]) -> Emission | None:
        """One object of the stream; what it adds to the answer."""
        self._count(data)
        choices = data.get("choices")
        if not isinstance(choices, list) or not choices:
            return None
        choice = choices[0]
        match choice.get("finish_reason"):
            case "stop":
                self.reason = "stop"
            case "length":
                self.reason = "length"
        text, ids = choice.get("text") or "", choice.get("token_ids")
        if not text and not ids:
            return None
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.has_ids = self.has_ids and isinstance(ids, list)
        new = ids if isinstance(ids, list) else self.tokenizer.encode(text)
        self.text += text
        self.ids += new
        return Emission(text, tuple(new))

    def finished(self, reason: FinishReason) -> Finished:
        """The end. Ids the server did not say are those of the whole text: most often the same ones."""
        ids = tuple(self.ids if self.has_ids else self.tokenizer.encode(self.text))
        n_prompt = _number(self.usage.get("prompt_tokens")) or self.n_prompt
        first = self.first or time.perf_counter()
        stats = Stats(
            prompt_tokens=n_prompt,
            cached_tokens=self.n_cached,
            new_tokens=None if self.n_cached is None else n_prompt - self.n_cached,
            prefill_seconds=None,
            first_token_seconds=first - self.started,
            decode_tokens=_number(self.usage.get("completion_tokens")) or len(ids),
            decode_seconds=max(self.last - first, 0.0),
        )
        return Finished(reason, self.text, ids, stats)

    def _count(self, data: dict[str, Any]) -> None:
        if isinstance(usage := data.get("usage"), dict):
            self.usage = usage
            details = usage.get("prompt_tokens_details")
            if isinstance(details, dict) and (cached := _number(details.get("cached_tokens"))) is not None:
                self.n_cached = cached
        if isinstance(timings := data.get("timings"), dict) and (cached := _number(timings.get("cache_n"))) is not None:
            self.n_cached = cached


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
