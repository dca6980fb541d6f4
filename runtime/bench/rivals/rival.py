"""What a rival is told, and what it must do."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runtime.config import Sampling


@dataclass(frozen=True, slots=True)
class Job:
    """The model as we run it: its files, threads, number format and device, for sequences of up to `n_tokens`.

    `yarn_factor` 1 leaves the rotary embedding as the model has it; above, it is stretched as ours is.
    """

    path: Path
    threads: int
    dtype: str
    device: str
    n_tokens: int
    trained_context: int
    yarn_factor: float


@dataclass(frozen=True, slots=True)
class Load:
    """Load the model for the rival called `name`; nothing is timed."""

    name: str
    job: Job


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prefill all of `ids` but the last into an empty cache."""

    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Answer:
    """Decode `n_tokens` after `ids`, of which what is cached is not prefilled again."""

    ids: Sequence[int]
    sampling: Sampling
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Done:
    """What it took: the seconds timed, the tokens drawn, and the most memory of this process so far."""

    seconds: float
    ids: tuple[int, ...]
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """What stopped it, in a few words."""

    reason: str


Order = Load | Prefill | Answer


class Rival(Protocol):
    """One implementation and its KV cache. `read` and `decode` return when the work is done, not when it is queued."""

    def cut(self, length: int) -> None:
        """Forget all but the first `length` tokens."""

    def read(self, ids: Sequence[int], n_held: int) -> None:
        """Prefill all of `ids`, of which the first `n_held` are held."""

    def decode(self, ids: Sequence[int], sampling: Sampling, n_tokens: int) -> list[int]:
        """Draw `n_tokens` after `ids`, all of which but the last are held; an end-of-turn token does not end it."""


def load(name: str, job: Job) -> Rival:
    """The rival called `name` with its model. Each brings a library of its own, into its own process."""
    if name.startswith("llama.cpp"):
        from runtime.bench.rivals.llama import LlamaCpp

        return LlamaCpp(job, flash_attention=not name.endswith("no-fa"))
    from runtime.bench.rivals.generate import Transformers

    return Transformers(job)
