"""What an answer yields while it is made: progress, then text, then one `Finished`."""

from dataclasses import dataclass
from typing import Literal

from runtime.stats import Stats

Stage = Literal["download", "load", "prefill"]
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long step is. `done` and `total` count bytes for a download, tokens for prefill, layers for a load.

    `seconds_left` is None until a rate is known. The first one of a stage has `done` = 0.
    """

    stage: Stage
    done: int
    total: int
    per_second: float = 0.0
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the target's own probabilities where one token stands: before bias, penalties, temperature
    and filters. `top` holds the most probable tokens, (id, log-probability), the most probable first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Emission:
    """Newly final text: `text` is the delta to append (may be empty), `token_ids` the tokens of this round.

    `logprobs` has one entry a token where the request asks for them, else none.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """What a person must be told while an answer is made, in one sentence. The answer goes on."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Span:
    """A run of prompt tokens `[start, end)` that the answer's attention used, with its weight (not normalised)."""

    start: int
    end: int
    weight: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer, also of a cancelled one.

    `token_ids` are all generated ids, an end-of-turn id included when one was drawn; they are what a follow-up
    prompt continues from (never re-tokenise `text`). `text` is the whole answer as shown, without stop string.
    """

    reason: FinishReason
    text: str
    token_ids: tuple[int, ...]
    stats: Stats
    evidence: tuple[Span, ...] = ()


Event = Progress | Emission | Notice | Finished
