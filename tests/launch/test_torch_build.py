"""Which build of PyTorch a machine gets. The descriptions are shortened from what pip reported."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from app.setup.failure import SetupFailed
from app.setup.torch_build import (
    CPU_INDEX,
    CUDA_INDEX,
    TORCH,
    Build,
    build_in,
    build_of,
    choose,
    driver_version,
    look_at_hardware,
    require_space,
)

DriverSays = Callable[[str], None]

ORDINARY = ["filelock", "typing-extensions>=4.10.0", "sympy>=1.13.3", 'optree>=0.13.0; extra == "optree"']
FOR_CUDA = [
    'cuda-toolkit[cublas,cudart]==13.0.3; platform_system == "Linux"',
    'nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"',
]


def report(version: str, requires: list[str]) -> dict[str, object]:
    return {"version": "1", "install": [{"metadata": {"version": version, "requires_dist": requires}}]}


@pytest.mark.parametrize(
    ("expected", "version", "requires"),
    [
        (False, "2.13.0+cpu", ORDINARY),
        (True, "2.13.0", ORDINARY + FOR_CUDA),
        (False, "2.13.0", ORDINARY),
        (True, "2.13.0+cu130", ORDINARY),
        (False, "2.13.0+cpu", ORDINARY + FOR_CUDA),
        (False, "2.13.0", [*ORDINARY, 'nvidia-extras>=1; extra == "gpu"']),
    ],
)
def test_a_cuda_build_is_known_by_its_version_or_its_requirements(
    expected: bool, version: str, requires: list[str]
) -> None:
    """The local version decides where there is one; an extra that nobody asked for does not count."""
    assert build_in(report(version, requires)) == Build(version, expected)


def test_a_build_without_requirements_is_no_cuda_build() -> None:
    """pip leaves the key out, or null."""
    assert build_of({"version": "2.13.0", "requires_dist": None}) == Build("2.13.0", False)
    assert build_of({"version": "2.13.0"}) == Build("2.13.0", False)


CPU, CUDA = Build("2.13.0+cpu", False), Build("2.13.0", True)


@pytest.mark.parametrize(
    ("expected", "wants_cuda", "offered"),
    [
        ([TORCH], False, CPU),
        ([TORCH, "--index-url", CPU_INDEX], False, CUDA),
        ([TORCH], True, CUDA),
        ([TORCH, "--index-url", CUDA_INDEX], True, CPU),
        ([TORCH], False, None),
    ],
)
def test_pytorchs_own_index_is_used_only_where_pips_gives_the_other_build(
    expected: list[str], wants_cuda: bool, offered: Build | None
) -> None:
    """So a machine without a GPU never gets the CUDA build, and contacts nothing more than it must."""
    assert choose(wants_cuda, offered) == expected


@pytest.fixture
def driver_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverSays:
    """driver_says(script) puts a driver tool of that behaviour first on the path."""
    if os.name == "nt":
        pytest.skip("a shell script stands in for the driver's tool")
    monkeypatch.setattr("platform.system", lambda: "Linux")

    def put(script: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return put


@pytest.mark.parametrize(
    ("expected", "script"),
    [
        (True, "echo 580.65.06"),
        (True, "printf '590.1\\n590.1\\n'"),
        (False, "echo 535.183.01"),
        (False, "echo 'No devices were found'"),
        (False, "echo 'NVIDIA-SMI has failed'; exit 9"),
        (False, "echo 580.65.06; exit 9"),
    ],
)
def test_cuda_is_wanted_where_a_recent_enough_driver_answers(
    driver_says: DriverSays, expected: bool, script: str
) -> None:
    """A tool that is there but finds no GPU, or an old driver, means a CPU build."""
    driver_says(script)
    assert look_at_hardware().wants_cuda is expected


def test_an_old_driver_is_named_with_what_to_do(driver_says: DriverSays) -> None:
    """The person learns why the GPU is not used."""
    driver_says("echo 535.183.01")
    assert driver_version() == "535.183.01"
    assert "535.183.01" in look_at_hardware().reason
    assert "launch.py setup" in look_at_hardware().reason


def test_too_little_disk_space_is_refused_with_both_numbers(tmp_path: Path) -> None:
    """Before anything is downloaded."""
    with pytest.raises(SetupFailed, match=r"[\d.]+ GB are free on this disk and 1000000000 GB are needed"):
        require_space(tmp_path, 10**18)
