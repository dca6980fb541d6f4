"""Running a tool for a step, with a line here and there for the person who waits."""

import collections
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.setup.failure import SetupFailed, explain

N_KEPT_LINES = 200
SECONDS_BETWEEN_LINES = 5.0
LONG_DOWNLOAD_BYTES = 20_000_000
RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
PIP_NEWS = re.compile(r"\s*(Downloading [\w.]+-[\w.]+(?=.*[MG]B\))|Installing collected packages)")


def say(line: str) -> None:
    """One line for the person; the program's own output has stdout for itself."""
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(number: int, n_steps: int, title: str) -> Iterator[None]:
    """Announce a step; a failure inside carries its name."""
    name = f"step {number} of {n_steps}: {title}"
    say(name)
    try:
        yield
    except SetupFailed as failure:
        raise SetupFailed(failure.reason, failure.way_out, failure.said, name) from failure
    except OSError as error:
        cause = explain([str(error)], error.strerror or "the system refused")
        raise SetupFailed(cause.reason, cause.way_out, cause.said, name) from error


def run(
    command: Sequence[str], folder: Path, echo: re.Pattern[str] | None = None, log: Path | None = None
) -> list[str]:
    """Run `command` to its end; its last lines. Lines that match `echo` are shown, all go to `log`.

    pip's raw progress is shown every few seconds. Raises SetupFailed where the exit status is not 0.
    """
    kept: collections.deque[str] = collections.deque(maxlen=N_KEPT_LINES)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(log.open("a", encoding="utf-8")) if log is not None else None
        child = stack.enter_context(
            subprocess.Popen(
                command,
                cwd=folder,
                env=clean_environment(),
                close_fds=False,  # the tool inherits the lock of the set-up, the only file that can be
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
            )
        )
        stack.callback(child.kill)
        spoke = time.monotonic()
        for line in map(str.rstrip, child.stdout or ()):
            if found := RAW_PROGRESS.match(line):
                if int(found[2]) > LONG_DOWNLOAD_BYTES and time.monotonic() - spoke > SECONDS_BETWEEN_LINES:
                    spoke = time.monotonic()
                    say(f"    {int(found[1]) / 1e6:,.0f} of {int(found[2]) / 1e6:,.0f} MB")
                continue
            kept.append(line)
            if file is not None:
                print(line, file=file, flush=True)
            if echo is not None and (news := echo.match(line)):
                spoke = time.monotonic()
                say(f"    {news[0].strip()}")
        status = child.wait()
    if status:
        raise explain(kept, f"{Path(command[0]).name} ended with exit status {status}")
    return list(kept)


def pip(python: Path, folder: Path, log: Path, *arguments: str, progress: str = "raw") -> list[str]:
    """Run pip in the environment of `python`, never asking; what it downloads and installs is shown."""
    options = ["--no-input", "--disable-pip-version-check", "--progress-bar", progress]
    return run([str(python), "-m", "pip", "install", *options, *arguments], folder, PIP_NEWS, log)


def clean_environment() -> dict[str, str]:
    """This process's environment without what would lead another Python to other packages or elsewhere."""
    led_astray = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "__PYVENV_LAUNCHER__")
    kept = {name: value for name, value in os.environ.items() if name not in led_astray}
    return kept | {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0"}
