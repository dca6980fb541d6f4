"""What this machine has, as far as choosing where to run goes: asked of it, or read from a file in its place."""

import gc
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import torch

from runtime.errors import KvDiskFull
from runtime.kv.mapped import free_disk_bytes
from runtime.native.machine import cpu_multiplies_bfloat16
from runtime.rates import kept_rates

GpuKind = Literal["cuda", "rocm", "mps"]
FIRST_WITH_BFLOAT16 = 8.0  # compute capability; older cards only imitate it

# The allocators of a processor (Linux, Windows) and of pinned memory, the libraries of a card.
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "CUDA error: out of memory",
    "CUDA out of memory",
    "ALLOC_FAILED",
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A card: memory in bytes, rates a second as measured. `compute_capability` is NVIDIA's, None for others.

    PyTorch speaks of ROCm cards as of CUDA's, and they are used alike.
    """

    name: str
    total_bytes: int
    free_bytes: int
    compute_capability: float | None
    host_to_device_bytes_per_second: int
    memory_bytes_per_second: int
    flops: int
    kind: GpuKind = "cuda"

    @property
    def has_bfloat16(self) -> bool:
        return self.compute_capability is None or self.compute_capability >= FIRST_WITH_BFLOAT16

    @property
    def is_used(self) -> bool:
        """Whether models run on it; Apple's are reported alone."""
        return self.kind != "mps"


@dataclass(frozen=True, slots=True)
class Hardware:
    """Memory and disk in bytes, `cores` physical ones where they can be told; the disk is that of downloaded models."""

    cores: int
    ram_bytes: int
    ram_free_bytes: int
    disk_free_bytes: int
    cpu_has_bfloat16: bool
    gpus: tuple[Gpu, ...] = ()

    @property
    def used_gpus(self) -> tuple[Gpu, ...]:
        """The cards that models can run on."""
        return tuple(gpu for gpu in self.gpus if gpu.is_used)

    @property
    def gpu(self) -> Gpu | None:
        """The card that models run on where one does."""
        return next(iter(self.used_gpus), None)


def detect(cache_dir: Path) -> Hardware:
    """Ask the machine; what takes a second to measure of a card is kept in `cache_dir`."""
    memory = psutil.virtual_memory()
    return Hardware(
        cores=count_cores(),
        ram_bytes=memory.total,
        ram_free_bytes=memory.available,
        disk_free_bytes=free_disk_bytes(cache_dir),
        cpu_has_bfloat16=cpu_multiplies_bfloat16(),
        gpus=(*_cuda_cards(cache_dir), *_apple_card(cache_dir)),
    )


def count_cores() -> int:
    """Physical cores where they can be told."""
    return int(psutil.cpu_count(logical=False) or os.cpu_count() or 1)


def free_bytes(device: torch.device) -> int:
    """Memory of `device`, a card or the processor, that is free now."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else int(psutil.virtual_memory().available)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of a card, of the processor, which PyTorch says by a plain `RuntimeError`, or of a disk
    that is used as such."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError | KvDiskFull):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)


def release_cached() -> None:
    """Give back to the system what nothing holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _cuda_cards(cache_dir: Path) -> tuple[Gpu, ...]:
    if not torch.cuda.is_available():
        return ()
    return tuple(_cuda_card(torch.device("cuda", index), cache_dir) for index in range(torch.cuda.device_count()))


def _cuda_card(device: torch.device, cache_dir: Path) -> Gpu:
    is_rocm = torch.version.hip is not None
    major, minor = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    rates = kept_rates(device, name, cache_dir)
    free, total = torch.cuda.mem_get_info(device)
    return Gpu(
        name=name,
        total_bytes=total,
        free_bytes=free,
        compute_capability=None if is_rocm else major + minor / 10,
        host_to_device_bytes_per_second=rates.host_to_device,
        memory_bytes_per_second=rates.memory,
        flops=rates.flops,
        kind="rocm" if is_rocm else "cuda",
    )


def _apple_card(cache_dir: Path) -> tuple[Gpu, ...]:
    """Its memory is the machine's own; the system says how much of that it may take."""
    if not torch.backends.mps.is_available():
        return ()
    total = torch.mps.recommended_max_memory()
    rates = kept_rates(torch.device("mps"), "Apple GPU", cache_dir)
    free = min(total - torch.mps.driver_allocated_memory(), psutil.virtual_memory().available)
    rows = rates.host_to_device, rates.memory, rates.flops
    return (Gpu("Apple GPU", total, free, None, *rows, kind="mps"),)


class CoresTaken:
    """How many cores other processes keep busy, on average since it was last asked."""

    SHORTEST_SECONDS = 0.1  # the system counts in hundredths

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._last = self._counted()
        self._taken = 0.0

    def now(self) -> float:
        counted = self._counted()
        seconds, busy, own = (new - old for new, old in zip(counted, self._last, strict=True))
        if seconds >= self.SHORTEST_SECONDS:
            self._taken = max(0.0, (busy - own) / seconds)
            self._last = counted
        return self._taken

    def _counted(self) -> tuple[float, float, float]:
        """Seconds of the clock, of all processors together, and of this process on them."""
        every, own = psutil.cpu_times(), self._own.cpu_times()
        idle = every.idle + getattr(every, "iowait", 0.0)
        return time.monotonic(), sum(every[:8]) - idle, own.user + own.system


def free_cores(most: int, taken: float) -> int:
    """Of `most` threads those that find a core to themselves while others keep `taken` cores busy; at least one.

    Threads meet after each short step of a pass, so one that has to wait for its core holds up all others.
    """
    return max(1, min(most, int((os.cpu_count() or 1) - taken + 0.2)))
