"""How fast a card copies and multiplies: measured once on a machine and kept."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from runtime.kept import keep, place
from runtime.models.linear import Linear

FORMAT = 1  # counted up whenever what is measured changes
COPIED_BYTES = 1 << 27
SIDE = 8192  # of the matrices multiplied
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second from pinned host memory and through the device's own, operations a second of products."""

    host_to_device: int
    memory: int
    flops: int


# Of a card so full that nothing can be measured on it: those of a small old one.
CAUTIOUS = Rates(host_to_device=6 * 10**9, memory=10**11, flops=5 * 10**12)


def kept_rates(device: torch.device, name: str, cache_dir: Path) -> Rates:
    """Those kept in `cache_dir` for the card `name`, else measured now, in about a second."""
    what = (FORMAT, name, str(device), torch.__version__)
    path = place(cache_dir, "rates", what)
    if (kept := _read(path)) is not None:
        return kept
    try:
        measured = measure(device, COPIED_BYTES, SIDE)
    except torch.OutOfMemoryError:
        return CAUTIOUS  # not kept: another day there is room
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()  # else what was allocated here would not count as free
    keep(path, asdict(measured))
    return measured


def measure(device: torch.device, n_bytes: int, side: int, dtype: torch.dtype = torch.bfloat16) -> Rates:
    """By copies of `n_bytes` and a product of square matrices of `side`; raises `torch.OutOfMemoryError`."""
    host = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there, beside = (torch.empty(n_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    matrix = torch.ones(side, side, dtype=dtype, device=device)
    multiply = Linear(matrix)
    return Rates(
        host_to_device=int(n_bytes / least_seconds(device, lambda: there.copy_(host, non_blocking=True))),
        memory=int(2 * n_bytes / least_seconds(device, lambda: beside.copy_(there))),  # read and written
        flops=int(2 * side**3 / least_seconds(device, lambda: multiply(matrix))),
    )


def least_seconds(device: torch.device, run: Callable[[], object]) -> float:
    """The least of some runs, after one that warms up."""
    run()
    return min(seconds_of(device, run) for _ in range(REPEATS))


def seconds_of(device: torch.device, run: Callable[[], object]) -> float:
    """From an idle device to an idle device."""
    _wait(device)
    started = time.perf_counter()
    run()
    _wait(device)
    return max(time.perf_counter() - started, 1e-9)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _read(path: Path) -> Rates | None:
    """What was kept; None where there is nothing, or nothing whole."""
    try:
        rates = Rates(**{name: int(rate) for name, rate in json.loads(path.read_text("utf-8")).items()})
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return rates if min(rates.host_to_device, rates.memory, rates.flops) > 0 else None
