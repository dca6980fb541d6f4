"""How much of copying the KV cache is hidden behind computing, or of computing behind copying."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from runtime.kv.copying import Copy
from runtime.kv.host import HostStore
from runtime.session import Session

PASSES = (1, 17)  # tokens: a plain step, and a verify pass of the paper's gamma in offload
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Overlap:
    """A pass of `n_tokens` over a full cache: seconds of its copies alone, of its computing alone, and of it whole.
    `efficiency` is 1 where it takes no longer than the longer of both."""

    n_tokens: int
    copy_seconds: float
    compute_seconds: float
    seconds: float
    efficiency: float

    @classmethod
    def of(cls, n_tokens: int, rounds: Sequence[tuple[float, float, float]]) -> "Overlap":
        """Medians of rounds of these seconds, efficiency round by round: what slows the machine slows all of one."""
        copy, compute, whole = map(statistics.median, zip(*rounds, strict=True))
        return cls(n_tokens, copy, compute, whole, statistics.median(max(each[:2]) / each[2] for each in rounds))


class NoCopies:
    """A stream on which nothing is copied: what is computed takes its time, and means nothing."""

    def submit(self, copy: Callable[[], None]) -> Copy:
        return _Done()

    def drain(self) -> None:
        pass


class _Done:
    def wait(self) -> None:
        pass


@torch.inference_mode()
def overlaps(session: Session) -> tuple[Overlap, ...]:
    """Over all tokens that `session` holds, medians of passes in turn; none where no pass moves anything."""
    store = session.full
    if not isinstance(store, HostStore) or not store.streams:
        return ()
    return tuple(_overlap(session, store, n_tokens) for n_tokens in PASSES)


def _overlap(session: Session, store: HostStore, n_tokens: int) -> Overlap:
    ids = torch.zeros(n_tokens, dtype=torch.long, device=session.decoder.device)
    shape = store.keys(0, 0, 0)
    new = shape.new_zeros(shape.shape[0], n_tokens, shape.shape[2])

    def compute() -> None:
        session.decoder.forward(ids, store).cpu()

    def copy() -> None:
        store.extend(n_tokens)
        for layer in range(store.n_layers):
            store.write(layer, new, new)
            store.read(layer)

    def compute_alone() -> None:
        stream, store.stream = store.stream, NoCopies()
        try:
            compute()
        finally:
            store.stream = stream

    def one_round() -> tuple[float, float, float]:
        return _seconds(store, copy), _seconds(store, compute_alone), _seconds(store, compute)

    one_round()  # which warms up
    return Overlap.of(n_tokens, [one_round() for _ in range(REPEATS)])


def _seconds(store: HostStore, run: Callable[[], None]) -> float:
    """Of a pass that is forgotten again, its last copy awaited."""
    started = time.perf_counter()
    run()
    store.stream.drain()
    seconds = time.perf_counter() - started
    store.trim(store.committed)
    return seconds
