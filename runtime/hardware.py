"""What this machine has, as far as choosing a device and a number format goes."""

import os
import time
from dataclasses import dataclass

import psutil
import torch

from runtime.models.attention import cpu_multiplies_bfloat16


@dataclass(frozen=True, slots=True)
class Hardware:
    """`gpu_name` is None without a CUDA device; memory in bytes, `cores` physical ones where they can be told."""

    cores: int
    ram_bytes: int
    ram_free_bytes: int
    gpu_name: str | None
    gpu_free_bytes: int
    gpu_has_bfloat16: bool
    cpu_has_bfloat16: bool


def detect() -> Hardware:
    """Ask the machine."""
    memory = psutil.virtual_memory()
    has_gpu = torch.cuda.is_available()
    return Hardware(
        cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        ram_bytes=memory.total,
        ram_free_bytes=memory.available,
        gpu_name=torch.cuda.get_device_name() if has_gpu else None,
        gpu_free_bytes=torch.cuda.mem_get_info()[0] if has_gpu else 0,
        gpu_has_bfloat16=has_gpu and torch.cuda.is_bf16_supported(),
        cpu_has_bfloat16=cpu_multiplies_bfloat16(),
    )


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
