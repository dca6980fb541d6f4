"""Work that leaves no threads behind.

GNU OpenMP keeps a team of threads for each thread that ever shared work out. As soon as all teams together are more
threads than there are cores, those that wait go to sleep at once instead of looking out for work, and every product
of a pass wakes them anew. A team ends with the thread it works for.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from runtime.events import Progress

Report = Callable[[Progress], None]
_Value = TypeVar("_Value")


class _Stopped(BaseException):
    """Nobody waits for the work any more."""


def apart(work: Callable[[Report], _Value], report: Report) -> _Value:
    """What `work` returns or raises, in a thread of its own; an interrupt ends it when it next reports."""
    values: list[_Value] = []
    errors: list[BaseException] = []
    stopped = threading.Event()

    def report_or_stop(progress: Progress) -> None:
        if stopped.is_set():
            raise _Stopped
        report(progress)

    def run() -> None:
        try:
            values.append(work(report_or_stop))
        except BaseException as error:  # raised by whoever waits
            errors.append(error)

    thread = threading.Thread(target=run, name="fullread-load", daemon=True)
    try:
        thread.start()
        thread.join()
    except BaseException:
        stopped.set()
        while thread.is_alive():
            thread.join()  # a thread inside torch must not outlive the interpreter
        raise
    if errors:
        raise errors[0]
    return values[0]
