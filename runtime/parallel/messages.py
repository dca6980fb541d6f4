"""What rank 0 tells the other ranks, in the order of its own work, and what they answer.

`key` names what a rank holds: a decoder, a store, queries that were seen. Every process pickles only what these
classes hold, over a pipe that no other process can open.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.models.rope import Rope
from runtime.models.sources import Source
from runtime.models.spec import Spec
from runtime.parallel.collective import Backend


@dataclass(frozen=True, slots=True)
class Job:
    """The first message: which model to load, and as which of the ranks."""

    source: Source
    spec: Spec
    n_tokens: int
    dtype: torch.dtype
    backend: Backend
    rank: int
    n_ranks: int
    meeting: Path
    threads: int


@dataclass(frozen=True, slots=True)
class NewDecoder:
    """The model under these rotary embeddings, on the processor."""

    key: int
    ropes: tuple[Rope, ...]


@dataclass(frozen=True, slots=True)
class NewFull:
    """A full store; with `n_on_device` in main memory but for so many layers."""

    key: int
    n_on_device: int | None


@dataclass(frozen=True, slots=True)
class NewRecent:
    """`RecentQueries`."""

    key: int


@dataclass(frozen=True, slots=True)
class NewAnswer:
    """`AnswerQueries`."""

    key: int
    start: int
    n_tokens: int


@dataclass(frozen=True, slots=True)
class NewRetrieval:
    """A retrieval store over the full store and for the queries of these keys."""

    key: int
    full: int
    queries: int
    budget: int
    chunk_size: int


@dataclass(frozen=True, slots=True)
class Length:
    """`reserve`, `trim` or `cut` of a store."""

    key: int
    method: str
    length: int


@dataclass(frozen=True, slots=True)
class Commit:
    key: int


@dataclass(frozen=True, slots=True)
class Select:
    """Chunks of a retrieval store are chosen for the newest of the queries of a key, or for none."""

    key: int
    queries: int | None


@dataclass(frozen=True, slots=True)
class Forward:
    """One pass; the keys are those of the decoder, the store and the observers."""

    decoder: int
    store: int
    observers: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Used:
    """Sum the attention weights above a threshold that the queries seen up to `end` give (`evidence`)."""

    full: int
    queries: int
    end: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing refers to this any more."""

    key: int


Message = (
    NewDecoder | NewFull | NewRecent | NewAnswer | NewRetrieval | Length | Commit | Select | Forward | Used | Forget
)


@dataclass(frozen=True, slots=True)
class Started:
    """A worker's first answer: it is about to meet the others."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Its second."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Its last, in case: what went wrong, in one line."""

    reason: str


Reply = Started | Loaded | Failed
