"""Whatever decodes in a bench, and ours: every system over one session's KV cache."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.bench.overlap import Overlap, overlaps
from runtime.bench.peak import peak_bytes
from runtime.bench.plan import System
from runtime.bench.systems import speculation_of
from runtime.config import Request, Sampling, Speculation
from runtime.events import Finished
from runtime.session import Session
from runtime.stats import LevelStats

OURS = "fullread"


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer: its tokens, the seconds from the end of prefill to its last token, what each token moved."""

    ids: tuple[int, ...]
    seconds: float
    levels: tuple[LevelStats, ...] = ()
    moved_bytes_per_token: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return len(self.ids) / self.seconds


class Runner(Protocol):
    """One implementation with a KV cache, which it keeps from one call to the next.

    All tokens of a prompt but its last are prefilled; decoding starts with that one. Answers do not end at an
    end-of-turn token, so that everyone's have the same length.
    """

    @property
    def name(self) -> str: ...

    @property
    def systems(self) -> Sequence[str]:
        """What it can be asked to decode by."""

    def prefill(self, ids: Sequence[int]) -> float:
        """Seconds to prefill all of `ids` but the last into an empty cache."""

    def answer(self, system: str, ids: Sequence[int], sampling: Sampling, n_tokens: int) -> Timed:
        """Decode `n_tokens` after `ids`, of which what is cached is not prefilled again."""

    def peak_bytes(self) -> int:
        """Most memory its process held so far."""

    def close(self) -> None: ...


class Ours:
    """Fullread's own runtime."""

    name = OURS

    def __init__(
        self,
        new_session: Callable[[int], Session],
        systems: Sequence[System],
        speculation: Speculation,
        n_tokens: int,
    ) -> None:
        """For sequences of up to `n_tokens`; `speculation` is the configured one."""
        self.systems = systems
        self._speculations: dict[str, Speculation] = {system: speculation_of(system, speculation) for system in systems}
        self._new_session = new_session
        self._n_tokens = n_tokens
        self._session: Session | None = None

    def prefill(self, ids: Sequence[int]) -> float:
        self._session = None  # its memory first
        self._session = self._new_session(self._n_tokens)
        self._session.eos_ids = frozenset()
        return self._run(Speculation(enabled=False), ids, Sampling(temperature=0), 1).stats.prefill_seconds or 0.0

    def answer(self, system: str, ids: Sequence[int], sampling: Sampling, n_tokens: int) -> Timed:
        end = self._run(self._speculations[system], ids, sampling, n_tokens)
        stats = end.stats
        # From the end of prefill on: `decode_seconds` alone begins with the first round, whose tokens would be free.
        seconds = stats.first_token_seconds - (stats.prefill_seconds or 0.0) + stats.decode_seconds
        return Timed(end.token_ids, seconds, stats.levels, stats.moved_bytes_per_token)

    def overlaps(self) -> tuple[Overlap, ...]:
        """Of passes over what was prefilled last."""
        return () if self._session is None else overlaps(self._session)

    def peak_bytes(self) -> int:
        return peak_bytes()

    def close(self) -> None:
        self._session = None

    def _run(self, speculation: Speculation, ids: Sequence[int], sampling: Sampling, n_tokens: int) -> Finished:
        if self._session is None:
            raise RuntimeError("prefill comes first")
        self._session.speculation = speculation
        request = Request(sampling, n_tokens)
        events = self._session.answer(ids, request, threading.Event(), time.perf_counter())
        return next(event for event in events if isinstance(event, Finished))
