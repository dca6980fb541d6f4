"""Work in a thread that ends with it."""

import _thread
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runtime.apart import Report, apart
from runtime.events import Progress

STEP = Progress("load", 1, 2)

TEAMS = """
import os, time, torch
from runtime.apart import apart

torch.set_num_threads(3)  # which starts threads of another kind

def work(_):
    torch.set_num_threads(3)
    matrix = torch.ones(600, 600)
    return float((matrix @ matrix + matrix).sum())

def threads():
    return len(os.listdir("/proc/self/task"))

def left_by(run):
    before = threads()
    run()
    deadline = time.monotonic() + 5  # a thread's team ends a moment after the thread
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    return threads() - before

print(left_by(lambda: apart(work, print)), left_by(lambda: work(print)))
"""


def test_it_gives_what_the_work_gives_and_reports() -> None:
    seen: list[Progress] = []
    places: list[int] = []

    def work(report: Report) -> str:
        report(STEP)
        places.append(threading.get_ident())
        return "done"

    assert apart(work, seen.append) == "done"
    assert seen == [STEP]
    assert places != [threading.get_ident()]


def test_it_raises_what_the_work_raises() -> None:
    def work(_: Report) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        apart(work, lambda _: None)


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_no_team_of_threads_is_left() -> None:
    """One is where the same is done by the thread that goes on."""
    command = [sys.executable, "-c", TEAMS]
    result = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120, cwd=Path(__file__).parents[2]
    )
    left, left_otherwise = map(int, result.stdout.split())

    assert left == 0
    assert left_otherwise > 0


def test_an_interrupt_ends_the_work_when_it_next_reports() -> None:
    reports = 0

    def work(report: Report) -> None:
        nonlocal reports
        _thread.interrupt_main()
        for _ in range(10_000):
            time.sleep(0.01)
            reports += 1
            report(STEP)

    with pytest.raises(KeyboardInterrupt):
        apart(work, lambda _: None)
    assert reports < 1000
    assert all(thread.name != "fullread-load" for thread in threading.enumerate())
