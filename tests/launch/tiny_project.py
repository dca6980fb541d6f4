"""A tiny project around a copy of the launcher: its own build backend, a few empty packages, stand-ins for the rest."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "tiny"
version = "1"
dependencies = ["torch>=2.9,<2.14", "tiny-need>=1,<2"]

[project.optional-dependencies]
test = ["pytest>=1"]
more = ["tiny-more>=1"]
absent = ["tiny-absent>=1"]
"""

# A build backend of a few lines: the ordinary one would have to be fetched.
BACKEND = """
import tomllib, zipfile
from pathlib import Path

def build_editable(folder, settings=None, metadata=None):
    table = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    lines = [f"Requires-Dist: {line}" for line in table["dependencies"]]
    for extra, needs in table["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {need}; extra == '{extra}'" for need in needs]
    with zipfile.ZipFile(Path(folder) / "tiny-1-py3-none-any.whl", "w") as wheel:
        head = "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n"
        wheel.writestr("tiny-1.dist-info/METADATA", head + "\\n".join(lines) + "\\n")
        wheel.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("tiny-1.dist-info/RECORD", "")
    return "tiny-1-py3-none-any.whl"
"""

CLI = """
import json, os, sys
import tiny_need
print(json.dumps({"arguments": sys.argv[1:], "folder": os.getcwd(), "python": sys.executable,
                  "input": sys.stdin.read()}))
sys.exit(int(os.environ.get("EXIT", "0")))
"""

FAKE_PYTEST = """
import json, os, sys
print(json.dumps({"arguments": sys.argv[1:], "folder": os.getcwd()}))
sys.exit(5)
"""

SOURCES = """
import sys
print("    downloaded 93 of 93 MB", file=sys.stderr)
print("/somewhere/model.gguf")
"""


@dataclass(frozen=True)
class Checkout:
    """A copy of the launcher with a tiny project around it."""

    root: Path
    environment: dict[str, str]

    @property
    def stamp(self) -> Path:
        return self.root / ".venv" / "fullread.json"

    def start(self, *arguments: str, **changes: str) -> "subprocess.Popen[str]":
        folder = Path(changes.pop("cwd", str(self.root)))
        return subprocess.Popen(
            [sys.executable, str(self.root / "launch.py"), *arguments],
            cwd=folder,
            env={**self.environment, **changes},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def run(self, *arguments: str, **changes: str) -> "Ended":
        return end_of(self.start(*arguments, **changes))


@dataclass(frozen=True)
class Ended:
    status: int
    stdout: str
    stderr: str

    @property
    def said(self) -> dict[str, object]:
        record: dict[str, object] = json.loads(self.stdout)
        return record


def end_of(child: "subprocess.Popen[str]") -> Ended:
    """Type one line, close the input, wait."""
    try:
        stdout, stderr = child.communicate("typed\n", timeout=120)
    finally:
        child.kill()
    return Ended(child.returncode, stdout, stderr)


def write_checkout(root: Path) -> None:
    """Lay the project out at `root`."""
    shutil.copytree(ROOT / "app" / "setup", root / "app" / "setup", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "launch.py", root)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "backend.py").write_text(BACKEND)
    (root / "app" / "__init__.py").write_text("")
    (root / "app" / "cli.py").write_text(CLI)
    (root / "runtime" / "models").mkdir(parents=True)
    (root / "runtime" / "models" / "sources.py").write_text(SOURCES)
