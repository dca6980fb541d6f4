"""A machine in a file: what is read, what is written, and what is refused in one sentence."""

from dataclasses import replace
from pathlib import Path

import pytest

from runtime.errors import HardwareRefused
from runtime.hardware import Hardware
from runtime.hardware_file import known_hardware, read_hardware, written
from tests.runtime.machines import card, machine

BOTH = """
ram_bytes = 68719476736
ram_free_bytes = 60e9
cores = 16
disk_free_bytes = 500_000_000_000

[[gpu]]
name = "NVIDIA GeForce RTX 4090"
total_bytes = 25757220864
free_bytes = 24_000_000_000
compute_capability = 8.9
host_to_device_bytes_per_second = 25e9
memory_bytes_per_second = 1.008e12
flops = 165e12
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "machine.toml"


def test_every_field_is_read(path: Path) -> None:
    path.write_text(BOTH, "utf-8")
    found = read_hardware(path)

    assert (found.ram_bytes, found.ram_free_bytes, found.cores, found.disk_free_bytes) == (
        68_719_476_736,
        60_000_000_000,
        16,
        500_000_000_000,
    )
    assert found.gpu is not None
    assert (found.gpu.name, found.gpu.free_bytes, found.gpu.compute_capability) == (
        "NVIDIA GeForce RTX 4090",
        24_000_000_000,
        8.9,
    )
    assert (found.gpu.host_to_device_bytes_per_second, found.gpu.memory_bytes_per_second, found.gpu.flops) == (
        25 * 10**9,
        1_008 * 10**9,
        165 * 10**12,
    )
    assert found.gpu.has_bfloat16


@pytest.mark.parametrize("capability", ["7.5", '"7.5"'])
def test_a_compute_capability_may_be_a_number_or_a_text(path: Path, capability: str) -> None:
    path.write_text(BOTH.replace("8.9", capability), "utf-8")
    gpu = read_hardware(path).gpu
    assert gpu is not None
    assert (gpu.compute_capability, gpu.has_bfloat16) == (7.5, False)


@pytest.mark.parametrize(
    "hardware",
    [
        machine(24, None, bfloat16=True),
        machine(64, 24),
        replace(machine(64), gpus=(replace(card(8), name='A "card" \\ ü'), card(12))),
        replace(machine(64), gpus=(replace(card(48), kind="mps", compute_capability=None),)),
        replace(machine(64), gpus=(replace(card(48), kind="rocm", compute_capability=None),)),
    ],
)
def test_what_is_written_is_what_is_read(path: Path, hardware: Hardware) -> None:
    path.write_text(written(hardware), "utf-8")
    assert read_hardware(path) == hardware
    assert known_hardware(path, path.parent) == hardware


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("cores = 16", "", "lacks cores"),
        ("cores = 16", "cores = 0", "cores in the file is 0"),
        ("cores = 16", "cores = true", "cores in the file is True"),
        ("cores = 16", "cores = 1.5", "cores in the file is 1.5"),
        ("cores = 16", "cores = nan", "cores in the file is nan"),
        ("cores = 16", "cores =", "no TOML"),
        ("cores = 16", "cores = 16\ncpus = 3", "a field cpus"),
        ("60e9", "70e9", "ram_free_bytes in the file is more than ram_bytes"),
        ("flops = 165e12", "", "[[gpu]] number 1 lacks flops"),
        ("flops = 165e12", "flops = 'many'", "flops in [[gpu]] number 1 is 'many'"),
        ("flops = 165e12", "flops = 165e12\nspeed = 1", "a field speed"),
        ("8.9", "'new'", "compute_capability in [[gpu]] number 1 is 'new'"),
        ("8.9", "[8, 9]", "compute_capability in [[gpu]] number 1 is [8, 9]"),
        ("compute_capability = 8.9", "", "compute_capability in [[gpu]] number 1 is None"),
        ("24_000_000_000", "26e9", "free_bytes in [[gpu]] number 1 is more than total_bytes"),
        ('"NVIDIA GeForce RTX 4090"', '""', "has no name"),
        ("flops = 165e12", "flops = 165e12\nkind = 'voodoo'", "not one of cuda, rocm, mps"),
        ("[[gpu]]", "[gpu]", "a table for each"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(path: Path, old: str, new: str, words: str) -> None:
    assert old in BOTH
    path.write_text(BOTH.replace(old, new, 1), "utf-8")
    with pytest.raises(HardwareRefused) as refused:
        read_hardware(path)
    assert words in refused.value.reason
    assert refused.value.path == str(path)


def test_a_file_that_cannot_be_read_says_why(path: Path) -> None:
    with pytest.raises(HardwareRefused, match="No such file"):
        read_hardware(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(HardwareRefused, match="no TOML"):
        read_hardware(path)
