"""Machines to plan for."""

from runtime.hardware import Gpu, Hardware

GIB = 2**30


def card(free_gib: float, compute_capability: float = 8.9) -> Gpu:
    """Of the speed of a large home card."""
    size = int(free_gib * GIB)
    return Gpu("A card", size, size, compute_capability, 25 * 10**9, 10**12, 165 * 10**12)


def machine(
    ram_gib: float = 24, gpu_gib: float | None = None, bfloat16: bool = False, cores: int = 2, disk_gib: float = 100
) -> Hardware:
    """All memory free; `bfloat16` of the processor."""
    size = int(ram_gib * GIB)
    return Hardware(cores, size, size, int(disk_gib * GIB), bfloat16, () if gpu_gib is None else (card(gpu_gib),))
