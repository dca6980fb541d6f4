"""Layers whose weights stay in main memory, and cross the bus in every pass while the layer before is computed.

As DeepSpeed's ZeRO-Inference does (arXiv 2207.00032): a card need hold no more than two layers of a model.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from runtime.kv.copying import Copy, CopyStream, copy_stream, lock_pages
from runtime.models.layer import Layer
from runtime.models.linear import Linear


class _Slot:
    """The weights of one layer on the device, part by part; those of `layer` once `arrived` is waited for."""

    def __init__(self, like: Layer, device: torch.device) -> None:
        self.parts = tuple(torch.empty_like(linear.weight, device=device) for linear in like.linears)
        self.layer: int | None = None
        self.arrived: Copy | None = None


class StreamedLayers:
    """Layers of one shape, for one pass after another.

    Their dense weights lie in main memory, locked for the device, and pass through two buffers there; norms and biases,
    a ten thousandth of them, stay on the device. Each pass moves all weights once. A layer that iteration gives holds
    until the next is asked for; then its buffer is written anew, behind what was computed from it. A pass that breaks
    off leaves copies under way, behind which come those of the next.
    """

    def __init__(
        self, layers: Iterable[Layer], n_layers: int, device: torch.device, stream: CopyStream | None = None
    ) -> None:
        """From `layers` on any device, `n_layers` of them, each let go before the next is asked for. Raises
        `MemoryError`."""
        self.stream = stream or copy_stream(device)
        self.moved_bytes = 0  # to the device
        self._host = torch.empty(0)  # [layers, numbers]
        self._slots: tuple[_Slot, ...] = ()
        self._sources: list[tuple[Tensor, ...]] = []  # of each layer, the parts of its weights in main memory
        self._layers: list[Layer] = []  # each with the buffer it will lie in
        for layer in layers:
            if not self._layers:
                self._allocate(layer, n_layers, device)
            self._add(layer, device)

    @property
    def n_bytes(self) -> int:
        """What every pass moves."""
        return self._host.nbytes

    @property
    def device_bytes(self) -> int:
        """What the two buffers hold on the device."""
        return sum(part.nbytes for slot in self._slots for part in slot.parts)

    def __iter__(self) -> Iterator[Layer]:
        n_layers = len(self._layers)
        for index in range(min(len(self._slots), n_layers)):
            self._fetch(index)
        for index, layer in enumerate(self._layers):
            slot = self._slot(index)
            if slot.layer != index:  # another pass came between
                self._fetch(index)
            if slot.arrived is not None:
                slot.arrived.wait()
            yield layer
            if index + len(self._slots) < n_layers:
                self._fetch(index + len(self._slots))

    def _allocate(self, first: Layer, n_layers: int, device: torch.device) -> None:
        numbers = sum(linear.weight.numel() for linear in first.linears)
        host = torch.empty(n_layers, numbers, dtype=first.qkv.weight.dtype)
        self._host = lock_pages(host) if device.type == "cuda" else host
        self._slots = (_Slot(first, device), _Slot(first, device))

    def _add(self, layer: Layer, device: torch.device) -> None:
        index = len(self._layers)
        slot = self._slot(index)
        parts = self._host[index].split([part.numel() for part in slot.parts])
        sources = tuple(part.view(like.shape) for part, like in zip(parts, slot.parts, strict=True))
        for source, linear in zip(sources, layer.linears, strict=True):
            source.copy_(linear.weight)
        self._sources.append(sources)
        self._layers.append(_placed(layer, slot, device))

    def _slot(self, index: int) -> _Slot:
        return self._slots[index % len(self._slots)]

    def _fetch(self, index: int) -> None:
        """Starts to bring a layer into its buffer, behind all that has been computed from what is there."""
        slot, sources = self._slot(index), self._sources[index]
        slot.layer = None
        slot.arrived = self.stream.submit(lambda: _copy(sources, slot.parts))
        slot.layer = index
        self.moved_bytes += self._host[index].nbytes


def _placed(layer: Layer, slot: _Slot, device: torch.device) -> Layer:
    """`layer` with the weights of the buffer and all else on the device."""
    qkv, output, gate_up, down = (
        Linear(part, _there(linear.bias, device)) for part, linear in zip(slot.parts, layer.linears, strict=True)
    )
    return replace(
        layer,
        attention_norm=layer.attention_norm.to(device),
        qkv=qkv,
        query_norm=_there(layer.query_norm, device),
        key_norm=_there(layer.key_norm, device),
        output=output,
        attention_post_norm=_there(layer.attention_post_norm, device),
        mlp_norm=layer.mlp_norm.to(device),
        gate_up=gate_up,
        down=down,
        mlp_post_norm=_there(layer.mlp_post_norm, device),
    )


def _there(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)


@torch.inference_mode()  # which a thread does not inherit
def _copy(sources: Iterable[Tensor], targets: Iterable[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source, non_blocking=True)
