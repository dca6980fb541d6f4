"""What the machine is found to have, and how fast a card is measured to be."""

import math
from pathlib import Path

import pytest
import torch

from runtime.hardware import detect, free_bytes
from runtime.rates import CAUTIOUS, Rates, kept_rates, measure

CPU = torch.device("cpu")


def test_detection_finds_this_machine(tmp_path: Path) -> None:
    found = detect(tmp_path / "not yet there")
    assert found.cores >= 1
    assert 0 < found.ram_free_bytes <= found.ram_bytes
    assert found.disk_free_bytes > 0
    assert (found.gpu is None) != torch.cuda.is_available()
    assert 0 < free_bytes(CPU) <= found.ram_bytes


def test_rates_are_measured_on_any_device() -> None:
    """The processor's own stand in for a card's."""
    rates = measure(CPU, 1 << 16, 64)
    assert min(rates.host_to_device, rates.memory, rates.flops) > 0


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Counts measurements."""
    calls: list[str] = []

    def count(device: torch.device, n_bytes: int, side: int) -> Rates:
        calls.append(str(device))
        return Rates(1, 2, 3)

    monkeypatch.setattr("runtime.rates.measure", count)
    return calls


def test_rates_are_measured_once_for_a_card(tmp_path: Path, measured: list[str]) -> None:
    found = [kept_rates(CPU, name, tmp_path) for name in ("A card", "A card", "Another")]
    assert found == [Rates(1, 2, 3)] * 3
    assert len(measured) == 2


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"host_to_device": 0, "memory": 1, "flops": 1}'])
def test_what_was_kept_and_is_damaged_is_measured_again(tmp_path: Path, measured: list[str], damage: str) -> None:
    kept_rates(CPU, "A card", tmp_path)
    (path,) = (tmp_path / "rates").iterdir()
    path.write_text(damage, "utf-8")
    assert kept_rates(CPU, "A card", tmp_path) == Rates(1, 2, 3)
    assert len(measured) == 2


def test_a_card_too_full_to_measure_is_taken_for_a_slow_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that is not kept."""

    def fail(device: torch.device, n_bytes: int, side: int) -> Rates:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("runtime.rates.measure", fail)
    assert kept_rates(CPU, "A card", tmp_path) == CAUTIOUS
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_card_is_found_with_its_rates(tmp_path: Path) -> None:
    gpu = detect(tmp_path).gpu
    assert gpu is not None
    assert 0 < gpu.free_bytes <= gpu.total_bytes
    rates = (gpu.host_to_device_bytes_per_second, gpu.memory_bytes_per_second, gpu.flops)
    assert all(math.isfinite(rate) and rate > 10**9 for rate in rates)
