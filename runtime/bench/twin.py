"""Offload's twin on a processor: a KV cache that crosses a bus of a given speed, played by a thread.

What is played is the bus's time alone: tokens, bytes moved and what overlaps are those of a card.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.engine import Engine
from runtime.kv.copying import Copy, copy_tokens
from runtime.kv.host import HostStore
from runtime.session import Session

BUS = 5e8  # bytes a second: the starter's copies take some ten times its plain step, as they do beside a home card
SLICE_BYTES = (
    1 << 18
)  # copied at once, small enough for one thread; then it sleeps until the bus would have brought them


class PacedStore(HostStore):
    """A store in host memory whose copies take as long as a bus of `rate` bytes a second would."""

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        n_on_device: int,
        rate: float,
    ) -> None:
        super().__init__(n_layers, n_kv_heads, head_dim, dtype, device, n_on_device)
        self._rate = rate
        self._free_at = 0.0  # when the bus is free again, by `perf_counter`

    def _move(self, sources: Sequence[Tensor], targets: Sequence[Tensor], start: int, end: int) -> Copy:
        token_bytes = sum(source.shape[0] * source.shape[2] * source.itemsize for source in sources)
        step = max(1, SLICE_BYTES // token_bytes)

        submitted = time.perf_counter()

        def copy() -> None:
            # A bus begins with what waits for it at once; this thread may be woken later, and makes up for that.
            self._free_at = max(self._free_at, submitted)
            for first in range(start, end, step):
                last = min(first + step, end)
                for source, target in zip(sources, targets, strict=True):
                    copy_tokens(source, target, first, last)
                self._free_at += (last - first) * token_bytes / self._rate
                time.sleep(max(0.0, self._free_at - time.perf_counter()))

        self._last = self.stream.submit(copy)
        return self._last


def twin_session(engine: Engine, n_tokens: int) -> Session:
    """A session as an offloading engine would make it, no layer's KV cache staying on the device."""
    return engine.new_session(n_tokens, PacedStore(*engine.kv_shape, 0, BUS), BUS)
