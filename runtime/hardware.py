"""What this machine has, as far as choosing a device and a number format goes."""

import os
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
