"""launch.py run for real on a tiny project: real environments, real pip, wheels from a folder."""

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.tiny_project import FAKE_PYTEST, ROOT, Checkout, Ended, end_of, write_checkout


@pytest.fixture(scope="session")
def make_checkout(
    tmp_path_factory: pytest.TempPathFactory,
    make_wheel: Callable[..., Path],
    pip_wheel: Path,
    pip_sees: Callable[[Path], dict[str, str]],
) -> Callable[[], Checkout]:
    folder = tmp_path_factory.mktemp("launch")
    links = folder / "wheels"
    links.mkdir()
    shutil.copy(pip_wheel, links)
    make_wheel(links, "torch", "2.13.0+cpu", {"torch/__init__.py": b""})
    make_wheel(links, "tiny-need", "1.5", {"tiny_need.py": b""})
    make_wheel(links, "tiny-more", "1.0", {"tiny_more.py": b""})
    make_wheel(links, "pytest", "9.9", {"pytest.py": FAKE_PYTEST.encode()})
    if os.name != "nt":
        # Whatever this machine has, the tiny project's machine has no GPU.
        (folder / "bin").mkdir()
        (folder / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
        (folder / "bin" / "nvidia-smi").chmod(0o755)
    environment = pip_sees(links)
    environment["PATH"] = os.pathsep.join([str(folder / "bin"), environment["PATH"]])
    environment.pop("PYTHONPATH", None)

    def make() -> Checkout:
        root = folder / f"check out {len(list(folder.iterdir()))}"
        write_checkout(root)
        return Checkout(root, environment)

    return make


@pytest.fixture(scope="session")
def first_starts(make_checkout: Callable[[], Checkout]) -> tuple[Checkout, list[Ended]]:
    """A fresh checkout, started twice at the same moment."""
    fresh = make_checkout()
    both = [fresh.start("ask", "a file.pdf", "-q", "Größe?") for _ in range(2)]
    return fresh, [end_of(child) for child in both]


@pytest.fixture(scope="session")
def checkout(first_starts: tuple[Checkout, list[Ended]]) -> Checkout:
    """A checkout that is set up."""
    return first_starts[0]


def test_two_first_starts_set_up_once_and_both_hand_over(first_starts: tuple[Checkout, list[Ended]]) -> None:
    """One waits for the other. Plain lines on stderr name each step; stdout belongs to the program alone."""
    ends = sorted(first_starts[1], key=lambda end: "another set-up" in end.stderr)
    assert [end.status for end in ends] == [0, 0]
    assert [end.said["arguments"] for end in ends] == [["ask", "a file.pdf", "-q", "Größe?"]] * 2
    steps = [line for line in ends[0].stderr.splitlines() if line.startswith("step")]
    assert [line[:11] for line in steps] == ["step 1 of 3", "step 2 of 3", "step 3 of 3"]
    assert "no NVIDIA GPU answers: the CPU build" in ends[0].stderr
    assert ends[1].stderr == "another set-up is at work here; waiting for it\n"


def test_a_second_start_hands_over_at_once(checkout: Checkout) -> None:
    """In the environment that was made, saying nothing, within the promised five seconds."""
    started = time.monotonic()
    ended = checkout.run("--serve", "--port", "0")
    assert time.monotonic() - started < 5
    assert ended.stderr == ""
    assert ended.said["arguments"] == ["--serve", "--port", "0"]
    assert Path(str(ended.said["python"])).parent.parent == checkout.root / ".venv"


def test_exit_status_and_standard_input_pass_through(checkout: Checkout) -> None:
    """The launcher is not noticed."""
    ended = checkout.run("ask", EXIT="7")
    assert ended.status == 7
    assert ended.said["input"] == "typed\n"


def test_a_start_from_another_project_runs_this_one(checkout: Checkout, tmp_path: Path) -> None:
    """The person's folder stays theirs, and an `app` package in it is not mistaken for ours."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise SystemExit('the wrong app')")
    ended = checkout.run("ask", "app", cwd=str(tmp_path))
    assert ended.status == 0
    assert ended.said["folder"] == str(tmp_path.resolve())


def test_no_setup_starts_with_what_is_there(checkout: Checkout, make_checkout: Callable[[], Checkout]) -> None:
    """By option or environment variable, nothing is looked at and nothing made; the option is not passed on."""
    assert checkout.run("--no-setup", "bench").said["arguments"] == ["bench"]
    bare = make_checkout()
    assert bare.run("bench", FULLREAD_NO_SETUP="1").status == 1
    assert not (bare.root / ".venv").exists()


def test_help_on_a_bare_machine_downloads_nothing(make_checkout: Callable[[], Checkout]) -> None:
    """A person who only asks what this is gets an answer."""
    bare = make_checkout()
    ended = bare.run("--help")
    assert ended.status == 0
    assert "launch.py setup" in ended.stdout
    assert not (bare.root / ".venv").exists()


def test_an_extra_is_added_and_kept(checkout: Checkout) -> None:
    """A later change of the project sets up with all extras asked for so far."""
    assert checkout.run("setup", "--extra", "more").status == 0
    assert json.loads(checkout.stamp.read_text())["extras"] == ["more"]
    with (checkout.root / "pyproject.toml").open("a") as project:
        project.write("# changed\n")
    assert "step 3 of 3" in checkout.run("bench").stderr
    assert json.loads(checkout.stamp.read_text())["extras"] == ["more"]


def test_an_unknown_extra_is_a_usage_error(checkout: Checkout) -> None:
    """With the list of those there are."""
    ended = checkout.run("setup", "--extra", "unheard-of")
    assert ended.status == 2
    assert all(name in ended.stderr for name in ("unheard-of", "absent", "more", "test"))


def test_test_fetches_the_starter_and_runs_pytest(checkout: Checkout) -> None:
    """Four steps, then pytest with the arguments given, in the project's folder, its exit status passed on."""
    ended = checkout.run("test", "-q", "tests/launch", cwd=str(checkout.root.parent))
    assert "step 4 of 4: the starter model\n    downloaded 93 of 93 MB" in ended.stderr
    assert ended.status == 5
    assert ended.said == {"arguments": ["-q", "tests/launch"], "folder": str(checkout.root.resolve())}


def test_a_failed_step_says_which_why_and_what_to_try(checkout: Checkout) -> None:
    """And the next start, once the cause is gone, goes on."""
    failed = checkout.run("setup", "--extra", "absent")
    assert failed.status == 1
    lines = failed.stderr.splitlines()
    place = next(i for i, line in enumerate(lines) if "failed" in line)
    assert lines[place].startswith("step 3 of 3: Fullread and the packages it needs failed: there is no tiny-absent")
    assert "    ERROR: No matching distribution found for tiny-absent>=1" in "\n".join(lines[place:])
    assert "run the same command again" in lines[-1]
    assert "Traceback" not in failed.stderr
    assert not checkout.stamp.exists()
    assert checkout.run("bench").status == 0
    assert checkout.stamp.exists()


def test_no_network_is_said_in_a_sentence(checkout: Checkout) -> None:
    """Here the package index is an address where nothing listens."""
    failed = checkout.run(
        "setup", "--extra", "absent", PIP_NO_INDEX="0", PIP_RETRIES="1", PIP_INDEX_URL="http://127.0.0.1:9/simple/"
    )
    assert failed.status == 1
    assert "failed: 127.0.0.1 cannot be reached." in failed.stderr
    assert checkout.run("bench").status == 0


def test_a_half_made_environment_is_repaired(checkout: Checkout) -> None:
    """Killed at any moment: without an interpreter, or in the middle of installing a package."""
    packages = next((checkout.root / ".venv").glob("[Ll]ib/**/site-packages"))
    (packages / "tiny_need-1.5.dist-info" / "RECORD").unlink()
    (packages / "tiny_need.py").unlink()
    checkout.stamp.unlink(missing_ok=True)
    assert checkout.run("bench").status == 0

    shutil.rmtree(checkout.root / ".venv" / ("Scripts" if os.name == "nt" else "bin"))
    ended = checkout.run("bench")
    assert ended.status == 0
    assert "step 1 of 3" in ended.stderr


def test_a_broken_project_file_is_a_sentence(make_checkout: Callable[[], Checkout]) -> None:
    """Not a traceback."""
    broken = make_checkout()
    (broken.root / "pyproject.toml").write_text("[project")
    ended = broken.run("bench")
    assert ended.status == 1
    assert ended.stderr.startswith("The set-up failed: pyproject.toml cannot be read.")
    assert "Traceback" not in ended.stderr


def test_an_old_python_gets_one_sentence() -> None:
    """launch.py parses as Python 3.6, and the first thing it does there is say what it needs."""
    launcher = ROOT / "launch.py"
    ast.parse(launcher.read_text("utf-8"), feature_version=(3, 6))
    pretend = (
        "import runpy, sys; sys.version_info = (3, 8, 1, 'final', 0); sys.version = '3.8.1 (old)';"
        f"runpy.run_path({str(launcher)!r}, run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", pretend], capture_output=True, encoding="utf-8")
    assert ended.returncode == 1
    assert ended.stderr.startswith("Fullread needs Python 3.11 or newer, and ")
    assert " is Python 3.8.1. " in ended.stderr


def test_the_set_up_imports_the_standard_library_alone() -> None:
    """When it runs nothing else is there yet."""
    for path in [ROOT / "launch.py", *(ROOT / "app" / "setup").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.startswith("app.setup") or name.split(".")[0] in sys.stdlib_module_names, (path, name)
