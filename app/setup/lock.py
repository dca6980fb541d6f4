"""One set-up at a time: a lock that the system itself lifts when its holder ends, however it ends."""

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from app.setup.process import say

SECONDS_BETWEEN_TRIES = 0.5
HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the lock at `path`; waits for another holder and says so.

    Tools started meanwhile hold it too: where this process is killed, its pip may still be at work.
    """
    with path.open("ab") as file:
        os.set_inheritable(file.fileno(), True)
        if not _takes(file):
            say("another set-up is at work here; waiting for it")
            while not _takes(file):
                time.sleep(SECONDS_BETWEEN_TRIES)
        yield


def _takes(file: BinaryIO) -> bool:
    try:
        _lock(file)
    except OSError as error:
        if error.errno in HELD:
            return False
        say(f"this file system has no locks ({error.strerror}); start one Fullread at a time")
    return True


if sys.platform == "win32":
    import msvcrt

    def _lock(file: BinaryIO) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(file: BinaryIO) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
