"""A download in a child process, watched from outside: progress meanwhile, nothing left running after."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runtime.errors import DiskFull
from runtime.events import Progress

POLL_SECONDS = 0.25

Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child process ended: its exit status, and what it printed on each stream."""

    status: int
    stdout: str
    stderr: str


def run_watched(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    measure: Callable[[], int],
    total_bytes: int,
    progress: Report,
) -> Outcome:
    """Run `command` in `folder` and report `measure()` of `total_bytes` until it ends.

    `environment` is laid over this process's own. An exception from `progress`, or Ctrl-C, ends the child.
    The last report is `total_bytes` where the child succeeded.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        try:
            _report_until_ended(child, measure, total_bytes, progress)
        finally:
            child.kill()
            child.wait()
        return Outcome(child.returncode, _text(stdout), _text(stderr))


def _report_until_ended(
    child: subprocess.Popen[bytes], measure: Callable[[], int], total_bytes: int, progress: Report
) -> None:
    started = time.monotonic()
    done = 0
    progress(Progress("download", 0, total_bytes))
    while child.poll() is None:
        time.sleep(POLL_SECONDS)
        now = min(measure(), total_bytes)
        if now > done:
            done = now
            per_second = done / (time.monotonic() - started)
            progress(Progress("download", done, total_bytes, per_second, (total_bytes - done) / per_second))
    if child.returncode == 0 and done < total_bytes:
        per_second = total_bytes / max(time.monotonic() - started, 1e-9)
        progress(Progress("download", total_bytes, total_bytes, per_second, 0.0))


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", "replace")


def bytes_under(folder: Path) -> int:
    """Bytes of all regular files below `folder`; a file that vanishes meanwhile counts nothing."""
    return sum(_file_bytes(path) for path in folder.rglob("*"))


def largest_under(folder: Path) -> int:
    """Bytes of the largest regular file below `folder`."""
    return max((_file_bytes(path) for path in folder.rglob("*")), default=0)


def _file_bytes(path: Path) -> int:
    try:
        return 0 if path.is_symlink() or not path.is_file() else path.stat().st_size
    except OSError:
        return 0


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raises DiskFull where the disk of `folder` has less than `needed_bytes` free."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise DiskFull(str(folder), needed_bytes, free_bytes)
