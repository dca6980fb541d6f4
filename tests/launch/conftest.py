"""Small real wheels, so that pip does real work without a network."""

import hashlib
import io
import os
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import pytest

MakeWheel = Callable[..., Path]
OLDEST_PIP = (25, 3)


@pytest.fixture(scope="session")
def make_wheel() -> MakeWheel:
    """make_wheel(folder, name, version, files, requires) writes a wheel and gives its path."""
    return write_wheel


def write_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, bytes], requires: tuple[str, ...] = ()
) -> Path:
    stem = f"{name.replace('-', '_')}-{version}"
    described = "".join(
        [
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            *(f"Requires-Dist: {requirement}\n" for requirement in requires),
        ]
    )
    members = {
        **files,
        f"{stem}.dist-info/METADATA": described.encode(),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return write_archive(folder / f"{stem}-py3-none-any.whl", members, f"{stem}.dist-info/RECORD")


def write_archive(path: Path, members: Mapping[str, bytes], record: str) -> Path:
    rows = io.StringIO()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
            digest = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.write(f"{name},sha256={digest},{len(content)}\n")
        rows.write(f"{record},,\n")
        archive.writestr(record, rows.getvalue())
    return path


@pytest.fixture(scope="session")
def pip_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The running pip as a wheel: a fresh environment starts with an older one and asks for a newer."""
    version = metadata.version("pip")
    if tuple(map(int, version.split(".")[:2])) < OLDEST_PIP:
        pytest.skip(f"the running pip {version} is older than a set-up needs; python launch.py test has a newer one")
    left_out = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
    members = {
        str(file).replace("\\", "/"): Path(str(file.locate())).read_bytes()
        for file in metadata.files("pip") or ()
        if ".." not in file.parts and file.suffix != ".pyc" and file.name not in left_out
    }
    stem = f"pip-{version}"
    folder = tmp_path_factory.mktemp("pip")
    return write_archive(folder / f"{stem}-py3-none-any.whl", members, f"{stem}.dist-info/RECORD")


@pytest.fixture(scope="session")
def pip_sees() -> Callable[[Path], dict[str, str]]:
    """pip_sees(folder) is an environment in which pip sees the wheels of one folder and nothing else."""
    return offline


def offline(links: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "FULLREAD_"))},
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(links),
        "PIP_RETRIES": "0",
    }
