"""The limited child process in which untrusted bytes are parsed, seen from the parent.

A parser written in C cannot be interrupted and may take the process with it, so every document is read by a
fresh Python under a memory limit, watched by the clock. What it has finished is kept: when it hangs or dies
on one page it is started again for the rest, told to leave the troubled part alone.
"""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from ingest import child
from ingest.errors import Damaged, IngestError, TookTooLong, TookTooMuchMemory, TooLarge
from ingest.messages import Begin, End, Head, Job, Message, Refusal, Result, Trouble, decode, encode

_MOST_STARTS = 40
_LONGEST_LINE = 256 * 1024 * 1024
_SECONDS_TO_DIE = 2.0
# Nothing secret that lies in the environment is of use to a parser.
_KEPT_VARIABLES = (
    "PATH",
    "HOME",
    "USERPROFILE",
    "SYSTEMROOT",
    "TEMP",
    "TMP",
    "TMPDIR",
    "LANG",
    "LC_ALL",
    "VIRTUAL_ENV",
)


@dataclass(slots=True)
class Reading:
    """What came out of a job. `troubles` tells, by unit, what ended the child while it was on it."""

    head: Head = field(default_factory=lambda: Head(0, ""))
    results: list[Result] = field(default_factory=list)
    n_characters: int = 0
    troubles: dict[str, Trouble] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Death:
    """How a child ended before its time; `seconds` is what it had been allowed for the step it was on."""

    unit: str | None
    trouble: Trouble
    seconds: float


def run(job: Job) -> Reading:
    """Reads `job` in child processes, as many as it takes. Raises what the child refused the document for, or
    `TookTooLong`, `TookTooMuchMemory`, `Damaged` when it could not get on."""
    reading = Reading()
    deadline = time.monotonic() + job.limits.seconds
    for n_left in reversed(range(_MOST_STARTS)):
        death = _read_on(job, reading, deadline)
        if death is None:
            return reading
        if time.monotonic() >= deadline:
            death = _Death(None, "time", job.limits.seconds)
        if death.unit is None or death.unit in job.troubled or n_left == 0:
            raise _as_error(death, job)
        reading.troubles[death.unit] = death.trouble
        done = frozenset(result.unit for result in reading.results)
        job = replace(job, done=done, troubled=dict(reading.troubles))
    raise AssertionError("the last start returns or raises")


def _as_error(death: _Death, job: Job) -> IngestError:
    match death.trouble:
        case "time":
            return TookTooLong(job.name, death.seconds)
        case "memory":
            return TookTooMuchMemory(job.name, job.limits.memory_bytes)
        case "crash":
            return Damaged(job.name, "it crashes the reader")


def _read_on(job: Job, reading: Reading, deadline: float) -> _Death | None:
    """Adds to `reading` what one child finishes; None when that was all."""
    process = _start()
    unit: str | None = None
    try:
        lines = _lines(process, encode(job))
        seconds = job.limits.opening_seconds
        while True:
            # Every message is a sign of life and starts the clock anew.
            left = deadline - time.monotonic()
            if left <= 0:
                return _Death(None, "time", job.limits.seconds)
            try:
                line = lines.get(timeout=min(seconds, left))
            except queue.Empty:
                return _Death(unit, "time", seconds)
            message = _decoded(line)
            match message:
                case None:
                    return _Death(unit, _cause(process, job), seconds)
                case Head():
                    reading.head = message
                case Begin():
                    unit, seconds = message.unit, message.seconds
                case Result():
                    reading.results.append(message)
                    reading.n_characters += sum(len(page.text) for page in message.pages)
                    if reading.n_characters > job.limits.total_bytes:
                        raise TooLarge(job.name, reading.n_characters, job.limits.total_bytes, "characters")
                    unit, seconds = None, job.limits.opening_seconds
                case Refusal():
                    raise message.to_error()
                case End():
                    return None
    finally:
        process.kill()
        process.wait()


def child_environment() -> dict[str, str]:
    """What the child gets to know of this process's environment."""
    root = str(Path(__file__).resolve().parent.parent)
    # A package that was found through PYTHONPATH here is looked for there as well.
    search_path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return kept | {"PYTHONPATH": search_path, "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", child.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(),
    )


def _lines(process: subprocess.Popen[bytes], request: bytes) -> queue.Queue[bytes]:
    """The child's lines as they come, b"" at the end. A thread reads: not every system can wait on a pipe."""
    lines: queue.Queue[bytes] = queue.Queue()
    assert process.stdin is not None
    assert process.stdout is not None

    def serve(stdin: IO[bytes], stdout: IO[bytes]) -> None:
        try:
            with stdout:
                with stdin:
                    stdin.write(request)
                for line in _split(stdout):
                    lines.put(line)
        except OSError:
            pass  # The child died before it had read its job.
        lines.put(b"")

    threading.Thread(target=serve, args=(process.stdin, process.stdout), daemon=True).start()
    return lines


def _split(stdout: IO[bytes]) -> Iterator[bytes]:
    while (line := stdout.readline(_LONGEST_LINE)).endswith(b"\n"):
        yield line


def _decoded(line: bytes) -> Message | None:
    """The message, or None when the child ended or wrote something that is none."""
    if not line:
        return None
    try:
        return decode(line)
    except (ValueError, KeyError, TypeError):
        return None


def _cause(process: subprocess.Popen[bytes], job: Job) -> Trouble:
    """Why a child ended without a word. Without memory pdfium aborts, which looks like any other crash."""
    if sys.platform == "win32":
        return "memory" if process.wait() == child.OUT_OF_MEMORY else "crash"
    deadline = time.monotonic() + _SECONDS_TO_DIE
    pid = 0
    while pid == 0 and time.monotonic() < deadline:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        time.sleep(0.01)
    if pid == 0:  # It writes what is no message and lives on.
        return "crash"
    process.returncode = os.waitstatus_to_exitcode(status)
    peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if process.returncode == child.OUT_OF_MEMORY or 2 * peak_bytes > job.limits.memory_bytes:
        return "memory"
    return "crash"
