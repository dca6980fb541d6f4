"""One way to run a model on a machine, with what it needs and what is there."""

from dataclasses import dataclass
from typing import Literal

import torch

from runtime.footprint import MARGIN_BYTES, Bytes
from runtime.predictions import Prediction, Streamed

Mode = Literal["gpu", "offload", "cpu"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run a model for sequences of `context` tokens, whether it fits or not.

    `bytes` lie on the device that computes, which has `free_bytes`; `streamed` in main memory, which has
    `ram_free_bytes`, or on the disk where that has `disk_free_bytes`. `layers_on_gpu` have their KV on the card; `bus`
    bytes a second reach the device from where the rest lies, None where all is there. Where `n_gpus` share the heads,
    all this is that of the fullest, with its part of main memory. `reason` is one sentence with the numbers it rests
    on.
    """

    mode: Mode
    dtype: torch.dtype
    context: int
    reason: str
    layers_on_gpu: int
    bytes: Bytes
    free_bytes: int
    streamed: Streamed
    ram_free_bytes: int
    predicted: Prediction
    bus: float | None = None
    n_gpus: int = 1
    disk_free_bytes: int | None = None

    @property
    def is_on_disk(self) -> bool:
        """Whether the KV cache is."""
        return self.disk_free_bytes is not None

    @property
    def beside_free_bytes(self) -> int:
        """Of what the streamed parts lie on."""
        return self.ram_free_bytes if self.disk_free_bytes is None else self.disk_free_bytes

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.mode == "cpu" else "cuda")

    @property
    def n_on_device(self) -> int | None:
        """Layers whose KV is on the device where others' is not; None where all is."""
        return self.layers_on_gpu if self.mode == "offload" else None

    @property
    def fits(self) -> bool:
        return self.missing_bytes == 0

    def is_like(self, other: "Plan") -> bool:
        """Whether it is the same way, of whatever sizes."""
        ours, theirs = ((way.mode, way.streamed.weights > 0, way.is_on_disk) for way in (self, other))
        return ours == theirs

    @property
    def name(self) -> str:
        """The mode, and whether weights are streamed in it, or the KV cache lies on the disk."""
        if self.is_on_disk:
            return f"{self.mode}, with the KV cache on disk"
        return f"{self.mode}, with weights" if self.streamed.weights else self.mode

    @property
    def missing_bytes(self) -> int:
        """What the device, or main memory or the disk beside it, has too little of."""
        on_device = max(0, self.bytes.total - self.free_bytes)
        streams = self.streamed.total > 0
        beside = max(0, self.streamed.total + MARGIN_BYTES - self.beside_free_bytes) if streams else 0
        return max(on_device, beside)


def gib(n_bytes: int) -> str:
    """In GiB, or in MiB where there is less than one."""
    return f"{n_bytes / 2**30:,.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:,.0f} MiB"
