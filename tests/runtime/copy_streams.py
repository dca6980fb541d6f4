"""Copy streams for tests: copies run as early or as late as the contract allows, or break off at any call."""

import random
import time
from collections.abc import Callable

from runtime.kv.copying import Copy, ThreadCopyStream


class Fault(Exception):
    """What goes wrong on purpose."""


class SteppedStream:
    """Runs copies in the caller's thread: each when it must be done, or (with a seed) some at random before.

    A store that gives the same bits whatever the seed has no race between its copies and its caller. At most `n_left`
    calls succeed, None for any number.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.n_calls = 0
        self.n_left: int | None = None
        self._random = None if seed is None else random.Random(seed)
        self._waiting: list[_Step] = []

    def submit(self, copy: Callable[[], None]) -> Copy:
        self.count()
        step = _Step(self, copy)
        self._waiting.append(step)
        return step

    def drain(self) -> None:
        self.count()
        self.run(len(self._waiting))

    def run_to(self, step: "_Step") -> None:
        self.count()
        if step in self._waiting:
            self.run(self._waiting.index(step) + 1)

    def count(self) -> None:
        """A call: it may fail, and before it some copies may have run."""
        self.n_calls += 1
        if self.n_left is not None:
            self.n_left -= 1
            if self.n_left < 0:
                raise Fault
        if self._random is not None:
            self.run(self._random.randint(0, len(self._waiting)))

    def run(self, n_copies: int) -> None:
        for _ in range(n_copies):
            self._waiting.pop(0).copy()


class _Step:
    def __init__(self, stream: SteppedStream, copy: Callable[[], None]) -> None:
        self.copy = copy
        self._stream = stream

    def wait(self) -> None:
        self._stream.run_to(self)


class NeverWaits(SteppedStream):
    """Control: its waits return at once, so copies run only when the stream is drained."""

    def run_to(self, step: _Step) -> None:
        self.count()


class SlowThread(ThreadCopyStream):
    """A thread that takes its time for each copy."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def submit(self, copy: Callable[[], None]) -> Copy:
        def slowly() -> None:
            time.sleep(self._seconds)
            copy()

        return super().submit(slowly)
