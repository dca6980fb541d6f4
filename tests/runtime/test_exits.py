"""A process's end in words."""

import signal
import subprocess
import sys

import pytest

from runtime.exits import how_it_ended


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise SystemExit(3)", "ended with status 3"),
        ("pass", "ended with status 0"),
        pytest.param(
            "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
            "was ended by SIGILL",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals"),
        ),
    ],
)
def test_a_real_process_s_end(source: str, words: str) -> None:
    assert how_it_ended(subprocess.run([sys.executable, "-c", source]).returncode) == words


def test_a_signal_without_a_name_is_a_number() -> None:
    unnamed = max(signal.valid_signals()) + 1
    assert how_it_ended(-unnamed) == f"ended with status {-unnamed}"
