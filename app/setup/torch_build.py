"""Which build of PyTorch this machine gets: CUDA where an NVIDIA GPU answers, otherwise a CPU build.

The CUDA build is gigabytes; a machine without a GPU must never download it.
"""

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.setup.failure import AGAIN, SetupFailed
from app.setup.process import pip, run, say
from app.setup.requirements import is_within

TORCH = "torch==2.13.0"
# PyTorch's own indexes, for the build that pip's index does not give: as a rule that gives the CUDA build on
# Linux and elsewhere the CPU build.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_INDEX = "https://download.pytorch.org/whl/cu130"
OLDEST_DRIVER = 580  # of CUDA 13, which the CUDA builds of this release need
SECONDS_FOR_DRIVER = 30
# Measured: the environment is 1.6 GB with the CPU build; pip's copies come on top.
FREE_BYTES_CPU = 3_000_000_000
FREE_BYTES_CUDA = 10_000_000_000
CUDA_PACKAGES = re.compile(r"(nvidia|cuda)[-_]")
DRIVER_TOOLS = ("nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", r"C:\Windows\System32\nvidia-smi.exe")

# Printed by the environment's own Python, which has nothing installed that could answer better.
ASK_INSTALLED = """
import json
from importlib import metadata
try:
    found = metadata.metadata("torch")
    print(json.dumps({"version": found["Version"], "requires_dist": found.get_all("Requires-Dist") or []}))
except metadata.PackageNotFoundError:
    print("{}")
"""


@dataclass(frozen=True, slots=True)
class Build:
    """A build of PyTorch, installed or on offer."""

    version: str
    is_cuda: bool


@dataclass(frozen=True, slots=True)
class Hardware:
    """What this machine should get, and the reason in a few words."""

    wants_cuda: bool
    reason: str


def look_at_hardware() -> Hardware:
    """Ask the NVIDIA driver whether it is there."""
    if platform.system() == "Darwin":
        return Hardware(False, "macOS has one build for every machine")
    driver = driver_version()
    if driver is None:
        return Hardware(False, "no NVIDIA GPU answers: the CPU build")
    if int(driver.split(".")[0]) < OLDEST_DRIVER:
        return Hardware(
            False,
            f"the NVIDIA driver is {driver} and this PyTorch needs {OLDEST_DRIVER}: the CPU build, "
            "until the driver is updated and `python launch.py setup` run again",
        )
    return Hardware(True, "an NVIDIA GPU answers: the CUDA build")


def driver_version() -> str | None:
    """The driver's version, as in `580.65.06`; None where no GPU answers."""
    tool = next((found for name in DRIVER_TOOLS if (found := shutil.which(name))), None)
    if tool is None:
        return None
    try:
        answer = subprocess.run(
            [tool, "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=SECONDS_FOR_DRIVER,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.match(r"\s*(\d+(?:\.\d+)*)", answer.stdout)
    return version[1] if version and answer.returncode == 0 else None


def install(python: Path, folder: Path, log: Path, ranges: str) -> None:
    """Put the right build into the environment of `python`, unless it is there already."""
    hardware = look_at_hardware()
    say(f"    {hardware.reason}")
    present = installed(python, folder)
    if present is not None and present.is_cuda == hardware.wants_cuda and is_within(present.version, ranges):
        say(f"    torch {present.version} is there already")
        return
    require_space(folder, FREE_BYTES_CUDA if hardware.wants_cuda else FREE_BYTES_CPU)
    offered = None if platform.system() == "Darwin" else ask_pip(python, folder, log)
    arguments = choose(hardware.wants_cuda, offered)
    replacing = ["--force-reinstall"] if present is not None else []
    try:
        pip(python, folder, log, *replacing, *arguments)
    except SetupFailed as failure:
        if CUDA_INDEX not in arguments:
            raise
        say(f"    PyTorch's CUDA build could not be had ({failure}); the CPU build instead, so no GPU is used")
        pip(python, folder, log, TORCH)


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raises SetupFailed where the disk has too little room for this build and everything after it."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        numbers = f"{free_bytes / 1e9:.1f} GB are free on this disk and {needed_bytes / 1e9:.0f} GB are needed"
        raise SetupFailed(numbers, f"Free some space. {AGAIN}")


def choose(wants_cuda: bool, offered: Build | None) -> list[str]:
    """The arguments for `pip install`. `offered` is what pip gives by itself; None: there is one build."""
    if offered is None or offered.is_cuda == wants_cuda:
        return [TORCH]
    return [TORCH, "--index-url", CUDA_INDEX if wants_cuda else CPU_INDEX]


def ask_pip(python: Path, folder: Path, log: Path) -> Build:
    """What pip would install by itself; fetches the build's description, not the build."""
    report = log.with_name("torch.json")
    question = ["--dry-run", "--ignore-installed", "--no-deps", "--report", str(report), TORCH]
    try:
        # Where an index keeps descriptions only inside the builds, this reads just that part of one over HTTP;
        # otherwise pip would fetch the whole build to answer.
        pip(python, folder, log, "--use-feature=fast-deps", *question)
    except SetupFailed:  # the feature is an experiment of pip's, and may go
        pip(python, folder, log, *question)
    return build_in(json.loads(report.read_text("utf-8")))


def build_in(report: Mapping[str, Any]) -> Build:
    """The build a pip report names."""
    return build_of(report["install"][0]["metadata"])


def build_of(described: Mapping[str, Any]) -> Build:
    """The build that package metadata describes: by its local version, else by the packages it asks for."""
    version = str(described["version"])
    _, _, local = version.partition("+")
    asks_for = [line for line in described.get("requires_dist") or () if "extra ==" not in line]
    is_cuda = local.startswith("cu") if local else any(CUDA_PACKAGES.match(line) for line in asks_for)
    return Build(version, is_cuda)


def installed(python: Path, folder: Path) -> Build | None:
    """The build in the environment of `python`."""
    described = json.loads(run([str(python), "-c", ASK_INSTALLED], folder)[-1])
    return build_of(described) if described else None
