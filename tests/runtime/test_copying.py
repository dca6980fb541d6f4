"""Copies on a CUDA stream, on stand-ins that note what is asked of CUDA: none of it needs a GPU."""

import gc
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from runtime.kv.copying import CudaCopyStream, ThreadCopyStream, copy_stream, copy_tokens, lock_pages


class Cuda:
    """Streams by name, and in which order they do and wait for what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.current = Stream(self, "layers")
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(self, "copies"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self._entered)

    @contextmanager
    def _entered(self, stream: "Stream") -> Any:
        before, self.current = self.current, stream
        yield
        self.current = before


class Stream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self._cuda, self.name = cuda, name

    def wait_stream(self, other: "Stream") -> None:
        self._cuda.log.append(f"{self.name} wait for {other.name}")

    def record_event(self) -> str:
        return f"the end of {self._cuda.log[-1]}"

    def wait_event(self, event: str) -> None:
        self._cuda.log.append(f"{self.name} wait for {event}")

    def synchronize(self) -> None:
        self._cuda.log.append(f"the host waits for {self.name}")


def test_a_copy_waits_for_the_layers_and_they_for_it_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits when the stream is drained alone."""
    cuda = Cuda(monkeypatch)
    stream = CudaCopyStream(torch.device("cuda"))
    copies = [stream.submit(lambda name=name: cuda.log.append(f"{name} on {cuda.current.name}")) for name in "AB"]
    copies[0].wait()
    stream.drain()
    assert cuda.log == [
        "copies wait for layers",
        "A on copies",
        "copies wait for layers",
        "B on copies",
        "layers wait for the end of A on copies",
        "the host waits for copies",
    ]


def test_each_device_has_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    Cuda(monkeypatch)
    assert isinstance(copy_stream(torch.device("cuda")), CudaCopyStream)
    assert isinstance(copy_stream(torch.device("cpu")), ThreadCopyStream)


def test_only_contiguous_pieces_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others make PyTorch pack them first, for which the host would wait."""
    source, target = torch.arange(24.0).view(2, 6, 2), torch.zeros(2, 6, 2)
    pieces, copy = [], torch.Tensor.copy_

    def noted(into: torch.Tensor, out_of: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        pieces.append((into.is_contiguous(), out_of.is_contiguous(), non_blocking))
        return copy(into, out_of)

    monkeypatch.setattr(torch.Tensor, "copy_", noted)
    copy_tokens(source, target, 1, 4)
    assert pieces == [(True, True, True)] * 2
    assert torch.equal(target[:, 1:4], source[:, 1:4])
    assert target.count_nonzero() == 12


class Locks:
    """Stands for the part of CUDA that locks pages."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        self.error = 0

    def cudaHostRegister(self, address: int, n_bytes: int, flags: int) -> int:
        if not self.error:
            self.locked[address] = n_bytes
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


def test_memory_is_locked_to_the_byte_as_long_as_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    locks = Locks()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: locks)
    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(len(locks.locked)))
    buffer = lock_pages(torch.empty(3, 1001, 2))
    assert locks.locked == {buffer.data_ptr(): 3 * 1001 * 2 * 4}
    assert lock_pages(torch.empty(3, 0, 2)).numel() == 0
    assert len(locks.locked) == 1
    del buffer
    gc.collect()
    assert locks.locked == {}
    assert waits == [1], "copies under way end before the memory goes"


def test_memory_that_cannot_be_locked_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    locks = Locks()
    locks.error = 2
    monkeypatch.setattr(torch.cuda, "cudart", lambda: locks)
    with pytest.raises(MemoryError, match="24,000 bytes"):
        lock_pages(torch.empty(6000))
