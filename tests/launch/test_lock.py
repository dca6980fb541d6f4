"""One set-up at a time, whatever becomes of the one before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.setup.lock import only_one

ROOT = Path(__file__).parents[2]

HOLDER = """
import re, sys
from pathlib import Path
from app.setup.lock import only_one
from app.setup.process import run
tool = "import time; print('at work', flush=True); time.sleep(3)"
with only_one(Path(sys.argv[1])):
    run([sys.executable, "-c", tool], Path.cwd(), echo=re.compile("at work"))
"""


def start_holder(lock: Path) -> "subprocess.Popen[str]":
    """A process that holds the lock and runs a tool; returns once the tool is at work."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], cwd=ROOT, stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert holder.stderr is not None
    assert holder.stderr.readline() == "    at work\n"
    return holder


def test_a_second_one_waits_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Until the first is done."""
    with start_holder(tmp_path / "lock") as holder, only_one(tmp_path / "lock"):
        assert holder.wait(timeout=5) == 0
    assert capsys.readouterr().err == "another set-up is at work here; waiting for it\n"


@pytest.mark.skipif(os.name == "nt", reason="Windows lifts a lock with the process that took it")
def test_the_tool_of_a_killed_set_up_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two pips must not work on one environment."""
    with start_holder(tmp_path / "lock") as holder:
        holder.kill()
    with only_one(tmp_path / "lock"):
        assert capsys.readouterr().err == "another set-up is at work here; waiting for it\n"


def test_a_lock_file_left_behind_locks_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file stays; the lock goes with its holder."""
    for _ in range(2):
        with only_one(tmp_path / "lock"):
            assert (tmp_path / "lock").exists()
    assert capsys.readouterr().err == ""
