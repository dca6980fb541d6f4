"""The full KV cache in host memory: a layer's keys and values cross the bus while the layer before is computed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.kv.chunks import gather_chunks
from runtime.kv.copying import Copy, CopyStream, copy_stream, copy_tokens, lock_pages
from runtime.kv.full import BytesMoved, FullStore

# Newest tokens of a pass, in every layer, that stay on the device until the next: more than a draft has.
KEPT = 160


class _Slot:
    """One of two buffers on the device [kv_heads, capacity, head_dim]. Once `arrived` is waited for it holds the first
    `length` tokens of `layer`; before its end is written again, `returned` must be."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self.layer: int | None = None
        self.length = 0
        self.arrived: Copy | None = None
        self.returned: Copy | None = None

    @property
    def halves(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values


class HostStore(FullStore):
    """A full store of which only the first `n_on_device` layers stay on the device.

    The others pass through two buffers there. A forward pass over a store of `length` tokens moves these `length`
    tokens of every such layer to the device once, and those it adds back, whether it adds one or a block of a prompt:
    the copy of a layer starts when the layer that used its buffer has been left. Outside of a pass `read` moves a
    layer; `keys`, `values` and `gather` move no more than they give, and nothing where that is on the device: tokens
    that were just accepted are, and in a pass all of the layer it is at. So a retrieval cache over this store that
    watches the passes crosses the bus at the start of an answer alone, for the chunks chosen and the keys it has not
    averaged yet (after a prompt all of them, half of what a pass moves).

    What `read`, `keys` and `values` give may be a buffer's own memory: it holds until the next but one layer is read
    or written. An error in a pass leaves copies under way; the next pass waits for them before it writes.
    """

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        n_on_device: int = 0,
        stream: CopyStream | None = None,
    ) -> None:
        super().__init__(n_layers, n_kv_heads, head_dim, dtype, device)
        self._first = n_on_device  # of the layers in host memory
        self._device = device
        self.stream = stream or copy_stream(device)  # may be exchanged between passes
        self._last: Copy | None = None  # of all copies; they are done when it is
        empty = torch.empty(n_kv_heads, 0, head_dim, dtype=dtype, device=device)
        for layer in self._off_device:
            self._keys[layer] = self._values[layer] = empty.cpu()
        self._slots: tuple[_Slot, ...] = (_Slot(empty, empty), _Slot(empty, empty)) if self._off_device else ()
        self._newest = dict.fromkeys(self._off_device, (0, empty, empty))  # from which position on
        self._to_device = self._from_device = 0

    @property
    def _off_device(self) -> range:
        return range(self._first, self.n_layers)

    @property
    def bytes_moved(self) -> BytesMoved:
        return BytesMoved(self._to_device, self._from_device)

    def carried_bytes(self, n_tokens: int) -> int:
        return len(self._off_device) * self._size(n_tokens)

    @property
    def device_bytes(self) -> int:
        """What layers on the device, the two buffers and the newest tokens (at most `KEPT`) hold there."""
        held = [*self._keys[: self._first], *self._values[: self._first]]
        held.extend(half for slot in self._slots for half in slot.halves)
        held.extend(half for _, *newest in self._newest.values() for half in newest)
        return sum(buffer.nbytes for buffer in held)

    def reserve(self, capacity: int) -> None:
        """As in a full store; the buffers grow first, so that they are never shorter than what passes through them."""
        if capacity <= self.capacity:
            return
        if self._last is not None:
            self.stream.drain()
        for slot in self._slots:
            slot.layer = None
            slot.keys = self._new_buffer(slot.keys, capacity)
            slot.values = self._new_buffer(slot.values, capacity)
        super().reserve(capacity)

    def extend(self, n_tokens: int) -> None:
        self._make_room(n_tokens)
        if self._last is not None:
            self._last.wait()
        for slot in self._slots:
            slot.layer = None
        for layer in self._off_device[: len(self._slots)]:
            self._fetch(layer, self._length)
        self._length += n_tokens

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        if layer < self._first:
            super().write(layer, keys, values)
            return
        end, n_tokens = self._length, keys.shape[1]
        start = end - n_tokens
        slot = self._slot(layer)
        if slot.layer != layer:
            self._fetch(layer, start)
        if slot.returned is not None:
            slot.returned.wait()
        slot.keys[:, start:end] = keys
        slot.values[:, start:end] = values
        slot.length = end
        n_kept = min(n_tokens, KEPT)
        kept_keys, kept_values = (half[:, n_tokens - n_kept :].clone() for half in (keys, values))
        self._newest[layer] = (
            end - n_kept,
            kept_keys,
            kept_values,
        )  # stale if a pass breaks off, but beyond the length
        if layer > self._first and layer + 1 < self.n_layers:
            self._fetch(layer + 1, start)
        targets = (self._keys[layer], self._values[layer])
        slot.returned = self._move(slot.halves, targets, start, end)
        self._from_device += self._size(n_tokens)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        if layer < self._first:
            return super().read(layer)
        slot = self._slot(layer)
        if slot.layer != layer or slot.length < self._length:
            self._fetch(layer, self._length)
        if slot.arrived is not None:
            slot.arrived.wait()
        return slot.keys[:, : self._length], slot.values[:, : self._length]

    def keys(self, layer: int, start: int, end: int) -> Tensor:
        return self._part(0, layer, start, end)

    def values(self, layer: int, start: int, end: int) -> Tensor:
        return self._part(1, layer, start, end)

    def gather(self, layer: int, chunks: Tensor, chunk_size: int, keys: Tensor, values: Tensor) -> None:
        """As in a full store. Where the layer is not on the device the host picks the chunks, and they alone are
        moved."""
        if layer < self._first:
            super().gather(layer, chunks, chunk_size, keys, values)
            return
        n_tokens = chunks.shape[1] * chunk_size
        if (held := self._held(layer, self._length)) is not None:
            for source, out in zip(held, (keys, values), strict=True):
                gather_chunks(source[:, : self._length], chunks, chunk_size, out)
            return
        self.stream.drain()
        on_host = chunks.cpu()
        for source, out in ((self._keys[layer], keys), (self._values[layer], values)):
            shape = (source.shape[0], n_tokens, source.shape[2])
            picked = torch.empty(shape, dtype=source.dtype, pin_memory=self._device.type == "cuda")
            gather_chunks(source[:, : self._length], on_host, chunk_size, picked)
            self._move((picked,), (out,), 0, n_tokens).wait()
        self._to_device += self._size(n_tokens)

    def trim(self, length: int) -> None:
        super().trim(length)
        self._shorten()

    def cut(self, length: int) -> None:
        super().cut(length)
        self._shorten()

    def _shorten(self) -> None:
        for slot in self._slots:
            slot.length = min(slot.length, self._length)

    def _slot(self, layer: int) -> _Slot:
        return self._slots[(layer - self._first) % len(self._slots)]

    def _held(self, layer: int, end: int) -> tuple[Tensor, Tensor] | None:
        """The layer's buffer, where the first `end` tokens are in it."""
        slot = self._slot(layer)
        if slot.layer != layer or end > slot.length:
            return None
        if slot.arrived is not None:
            slot.arrived.wait()
        return slot.halves

    def _fetch(self, layer: int, n_tokens: int) -> None:
        """Starts to bring the first `n_tokens` of a layer into its buffer. Who read it before has been waited for or
        runs before the copy; who wrote its end writes other places."""
        slot = self._slot(layer)
        slot.layer = slot.arrived = None
        if n_tokens:
            slot.arrived = self._move((self._keys[layer], self._values[layer]), slot.halves, 0, n_tokens)
            self._to_device += self._size(n_tokens)
        slot.layer, slot.length = layer, n_tokens

    def _part(self, half: int, layer: int, start: int, end: int) -> Tensor:
        """Keys (`half` 0) or values (1) of the positions from `start` to `end` [kv_heads, end - start, head_dim]."""
        source = (self._keys, self._values)[half][layer]
        if layer < self._first:
            return source[:, start:end]
        if (held := self._held(layer, end)) is not None:
            return held[half][:, start:end]
        first, *newest = self._newest[layer]
        if first <= start and end <= first + newest[half].shape[1]:
            return newest[half][:, start - first : end - first]
        part = torch.empty(source.shape[0], end - start, source.shape[2], dtype=source.dtype, device=self._device)
        if end > start:
            self._move((source[:, start:end],), (part,), 0, end - start).wait()
            self._to_device += self._size(end - start) // 2
        return part

    def _move(self, sources: Sequence[Tensor], targets: Sequence[Tensor], start: int, end: int) -> Copy:
        def copy() -> None:
            for source, target in zip(sources, targets, strict=True):
                copy_tokens(source, target, start, end)

        submitted = self._last = self.stream.submit(copy)
        return submitted

    def _size(self, n_tokens: int) -> int:
        """Bytes of the keys and values of `n_tokens` tokens in one layer."""
        n_kv_heads, _, head_dim = self._keys[-1].shape
        return 2 * n_kv_heads * n_tokens * head_dim * self._keys[-1].itemsize

    def _new_buffer(self, old: Tensor, capacity: int) -> Tensor:
        buffer = super()._new_buffer(old, capacity)
        return lock_pages(buffer) if self._device.type == "cuda" and old.device.type == "cpu" else buffer
