"""The StreamingLLM cache (arXiv 2309.17453): the first tokens as attention sinks, and a window of the newest."""

import torch
from torch import Tensor

from runtime.kv.store import TrimBelowCommitted

TAIL = 160  # room for drafts and for feeding a prompt in blocks


class StreamingStore:
    """Holds `sinks` + `window` committed tokens; only `commit` evicts.

    Keys are held before RoPE and rotated at their positions in the window, so that a small model never sees a
    distance beyond its training however long the text.
    """

    keys_are_rotated = False

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        sinks: int,
        window: int,
    ) -> None:
        self.n_sinks, self.n_window = sinks, window
        self._held = self._length = self._committed = 0
        shape = (n_kv_heads, sinks + window + TAIL, head_dim)
        self._keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(n_layers)]
        self._values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(n_layers)]

    @property
    def length(self) -> int:
        return self._length

    @property
    def committed(self) -> int:
        return self._committed

    @property
    def capacity(self) -> int:
        return self._keys[0].shape[1]

    @property
    def n_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in (*self._keys, *self._values))

    def positions(self, n_tokens: int) -> range:
        return range(self._held - n_tokens, self._held)

    def extend(self, n_tokens: int) -> None:
        if self._held + n_tokens > self.capacity:
            raise ValueError(f"a tail of {n_tokens} tokens is longer than the {TAIL} there is room for")
        self._held += n_tokens
        self._length += n_tokens

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        start = self._held - keys.shape[1]
        self._keys[layer][:, start : self._held] = keys
        self._values[layer][:, start : self._held] = values

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._keys[layer][:, : self._held], self._values[layer][:, : self._held]

    def buffers(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._keys[layer], self._values[layer]

    def held(self, layer: int) -> int:
        return self._held

    def trim(self, length: int) -> None:
        if length < self._committed:
            raise TrimBelowCommitted(length, self._committed)
        forgotten = max(0, self._length - length)
        self._length -= forgotten
        self._held -= forgotten

    def commit(self) -> None:
        self._committed = self._length
        surplus = self._held - self.n_sinks - self.n_window
        if surplus <= 0:
            return
        for buffer in (*self._keys, *self._values):
            kept = buffer[:, self.n_sinks + surplus : self._held].clone()  # source and target overlap
            buffer[:, self.n_sinks : self._held - surplus] = kept
        self._held -= surplus

    def clear(self) -> None:
        """Forget everything, committed or not, to hold another reading of the sequence."""
        self._held = self._length = self._committed = 0

    def skip(self, n_tokens: int) -> None:
        """Count `n_tokens` of the sequence as seen and evicted without ever holding them."""
        self._length += n_tokens
        self._committed = self._length
