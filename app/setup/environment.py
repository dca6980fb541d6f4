"""The environment Fullread runs in: the running one where that has everything, else `.venv`."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from app.setup import torch_build
from app.setup.failure import SetupFailed
from app.setup.lock import only_one
from app.setup.process import pip, run, step
from app.setup.requirements import Project, missing_here, read_project

# An older pip downloads a whole build of PyTorch only to say what it would install.
OLDEST_PIP = (25, 3)
ASK_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
SECONDS_FOR_VERSION = 60


@dataclass(frozen=True, slots=True)
class Stamp:
    """What `.venv` was set up for: hash of pyproject.toml, checkout, Python version, extras."""

    project: str
    root: str
    python: str
    extras: frozenset[str]


@dataclass(frozen=True, slots=True)
class Environment:
    """What a checkout at `root` runs in.

    A stamp in `.venv` says what it was made for; it is taken away before a set-up touches anything and
    written back last, so an interrupted set-up is never taken for a whole one.
    """

    root: Path

    @property
    def project(self) -> Project:
        return read_project(self.root / "pyproject.toml")

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        """The interpreter of `.venv`, there or not."""
        return self.venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def stamp(self) -> Path:
        return self.venv / "fullread.json"

    @property
    def log(self) -> Path:
        """Everything pip printed."""
        return self.venv / "setup.log"

    def present(self) -> str:
        """The interpreter that is there, nothing looked at."""
        return str(self.python) if self.python.exists() else sys.executable

    def is_set_up(self, extras: frozenset[str] = frozenset()) -> bool:
        return self._is_running_one_enough(extras) or self._is_stamped(extras)

    def make_ready(self, extras: frozenset[str] = frozenset(), again: bool = False, n_steps: int = 3) -> str:
        """The interpreter of an environment with everything; sets `.venv` up where there is none.

        `again` looks at every step whatever the stamp says. Raises SetupFailed.
        """
        if self._is_running_one_enough(extras):
            return sys.executable
        if again or not self._is_stamped(extras):
            with only_one(self.root / ".venv.lock"):
                if again or not self._is_stamped(extras):
                    self._set_up(extras | self._extras_before(), n_steps)
        return str(self.python)

    def _set_up(self, extras: frozenset[str], n_steps: int) -> None:
        ranges = self.project.ranges_of("torch")
        with step(1, n_steps, "a Python environment in .venv"):
            self._make_venv()
        with step(2, n_steps, "PyTorch for this machine"):
            torch_build.install(self.python, self.root, self.log, ranges)
        with step(3, n_steps, "Fullread and the packages it needs"):
            target = f"{self.root}[{','.join(sorted(extras))}]" if extras else str(self.root)
            pip(self.python, self.root, self.log, "--editable", target)
            self._write_stamp(extras)

    def _make_venv(self) -> None:
        """Keep the environment that is there where its Python and pip work, else make it anew."""
        self.stamp.unlink(missing_ok=True)
        self._forget_half_installed()
        n_pip = self._pip_version() if version_of(self.python) else None
        if n_pip is None:
            run([sys.executable, "-m", "venv", "--clear", str(self.venv)], self.root)
            n_pip = self._pip_version() or (0,)
        if n_pip < OLDEST_PIP:
            wanted = f"pip>={'.'.join(map(str, OLDEST_PIP))}"
            pip(self.python, self.root, self.log, "--upgrade", wanted, progress="off")

    def _pip_version(self) -> tuple[int, ...] | None:
        try:
            said = run([str(self.python), "-m", "pip", "--version"], self.root)
        except SetupFailed:
            return None
        found = re.match(r"pip (\d+)\.(\d+)", said[-1] if said else "")
        return (int(found[1]), int(found[2])) if found else None

    def _forget_half_installed(self) -> None:
        """Let pip install again what it was killed in the middle of: RECORD is written last."""
        for pattern in ("lib/python*/site-packages/*.dist-info", "Lib/site-packages/*.dist-info"):
            for described in self.venv.glob(pattern):
                if not (described / "RECORD").is_file():
                    shutil.rmtree(described)

    def _is_running_one_enough(self, extras: frozenset[str]) -> bool:
        return not missing_here(self.project.wanted(extras))

    def _is_stamped(self, extras: frozenset[str]) -> bool:
        """Whether `.venv` was set up for this checkout as it is, with these extras, and still runs."""
        noted = self._noted()
        return (
            noted is not None
            and extras <= noted.extras
            and (noted.project, noted.root) == (self._project_hash(), str(self.root))
            and noted.python == version_of(self.python)
        )

    def _project_hash(self) -> str:
        return hashlib.sha256((self.root / "pyproject.toml").read_bytes()).hexdigest()

    def _extras_before(self) -> frozenset[str]:
        """What `.venv` was set up with last, as far as the project still has it: kept when more is added."""
        noted = self._noted()
        return noted.extras & frozenset(self.project.extras) if noted else frozenset()

    def _noted(self) -> Stamp | None:
        try:
            record = json.loads(self.stamp.read_text("utf-8"))
            return Stamp(record["project"], record["root"], record["python"], frozenset(record["extras"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write_stamp(self, extras: frozenset[str]) -> None:
        record = {
            "project": self._project_hash(),
            "root": str(self.root),
            "python": version_of(self.python),
            "extras": sorted(extras),
        }
        fresh = self.stamp.with_suffix(".partial")
        fresh.write_text(json.dumps(record), "utf-8")
        os.replace(fresh, self.stamp)


def version_of(python: Path) -> str | None:
    """The version an interpreter answers with, as in `3.11`; None where it does not run."""
    try:
        answer = subprocess.run(
            [str(python), "-I", "-S", "-c", ASK_VERSION],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=SECONDS_FOR_VERSION,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
