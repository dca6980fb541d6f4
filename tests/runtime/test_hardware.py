"""How busy the machine is with other things."""

import os
import subprocess
import sys
import time

import pytest

from runtime import hardware
from runtime.hardware import CoresTaken, free_cores


def test_cores_that_others_keep_busy_are_counted_and_ours_are_not() -> None:
    """A process that computes beside us takes about as much as it is given; what we compute ourselves is not taken."""
    taken = CoresTaken()
    beside = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(1.0)
        with_neighbour = taken.now()
    finally:
        beside.kill()
        beside.wait()
    assert with_neighbour > 0.3
    assert with_neighbour <= (os.cpu_count() or 1) + 0.1


def test_a_moment_later_the_answer_is_the_same() -> None:
    """Ticks of the system's clock are too coarse for less than a tenth of a second."""
    taken = CoresTaken()
    assert taken.now() == 0.0


@pytest.mark.parametrize(("taken", "threads"), [(0.0, 4), (0.2, 4), (0.3, 3), (1.1, 3), (2.9, 1), (9.0, 1)])
def test_threads_get_a_core_each(monkeypatch: pytest.MonkeyPatch, taken: float, threads: int) -> None:
    monkeypatch.setattr(hardware.os, "cpu_count", lambda: 4)
    assert free_cores(4, taken) == threads
    assert free_cores(1, taken) == 1
