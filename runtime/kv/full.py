"""The full KV cache, on the model's device."""

from typing import NamedTuple

import torch
from torch import Tensor

from runtime.heap import give_back_memory, use_large_pages
from runtime.kv.chunks import gather_chunks
from runtime.kv.store import TrimBelowCommitted

GROWTH = 256


class BytesMoved(NamedTuple):
    """What has crossed the bus between main memory and the device."""

    to_device: int = 0
    from_device: int = 0

    def since(self, before: "BytesMoved") -> "BytesMoved":
        return BytesMoved(self.to_device - before.to_device, self.from_device - before.from_device)


class FullStore:
    """Every token's keys and values, in one buffer [kv_heads, capacity, head_dim] a layer.

    Prefixes of such a buffer are strided; the attention kernels used read them at full speed.
    """

    keys_are_rotated = True

    def __init__(self, n_layers: int, n_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self._length = self._committed = 0
        empty = torch.empty(n_kv_heads, 0, head_dim, dtype=dtype, device=device)
        self._keys = [empty] * n_layers
        self._values = [empty] * n_layers

    @property
    def length(self) -> int:
        return self._length

    @property
    def committed(self) -> int:
        return self._committed

    @property
    def capacity(self) -> int:
        """Tokens there is room for in every layer, also where making more ran out of memory half way."""
        return min(buffer.shape[1] for buffer in (*self._keys, *self._values))

    @property
    def n_layers(self) -> int:
        return len(self._keys)

    @property
    def n_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in (*self._keys, *self._values))

    @property
    def bytes_moved(self) -> BytesMoved:
        """Since the store was made."""
        return BytesMoved()

    @property
    def streams(self) -> bool:
        """Whether passes move any of it to the device."""
        return self.carried_bytes(1) > 0

    def carried_bytes(self, n_tokens: int) -> int:
        """Bytes that a pass over `n_tokens` held moves to the device."""
        return 0

    def positions(self, n_tokens: int) -> range:
        return range(self._length - n_tokens, self._length)

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens, layer by layer so that one layer's copy is the most held twice."""
        if capacity <= self.capacity:
            return
        for buffers in (self._keys, self._values):
            for layer, old in enumerate(buffers):
                new = self._new_buffer(old, capacity)
                new[:, : self._length] = old[:, : self._length]
                buffers[layer] = new
        give_back_memory()  # that of the old buffers, or of another sequence's before these are filled

    def extend(self, n_tokens: int) -> None:
        self._make_room(n_tokens)
        self._length += n_tokens

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        start = self._length - keys.shape[1]
        self._keys[layer][:, start : self._length] = keys
        self._values[layer][:, start : self._length] = values

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._keys[layer][:, : self._length], self._values[layer][:, : self._length]

    def keys(self, layer: int, start: int, end: int) -> Tensor:
        """Keys [kv_heads, end - start, head_dim] of the positions from `start` to `end`."""
        return self._keys[layer][:, start:end]

    def values(self, layer: int, start: int, end: int) -> Tensor:
        return self._values[layer][:, start:end]

    def gather(self, layer: int, chunks: Tensor, chunk_size: int, keys: Tensor, values: Tensor) -> None:
        """Copy whole chunks [kv_heads, n_chunks] to the front of `keys` and `values` [kv_heads, room, head_dim]."""
        for source, out in ((self._keys[layer], keys), (self._values[layer], values)):
            gather_chunks(source[:, : self._length], chunks, chunk_size, out)

    def trim(self, length: int) -> None:
        if length < self._committed:
            raise TrimBelowCommitted(length, self._committed)
        self._length = min(self._length, length)

    def commit(self) -> None:
        self._committed = self._length

    def cut(self, length: int) -> None:
        """Cut back to `length` tokens, committed or not. For the session alone."""
        self._length = min(self._length, length)
        self._committed = min(self._committed, length)

    def _make_room(self, n_tokens: int) -> None:
        if self._length + n_tokens > self.capacity:
            self.reserve(self._length + n_tokens + GROWTH)

    def _new_buffer(self, old: Tensor, capacity: int) -> Tensor:
        buffer = old.new_empty(old.shape[0], capacity, old.shape[2])
        if buffer.device.type == "cpu":
            use_large_pages(buffer.data_ptr(), buffer.nbytes)
        return buffer
