"""Copies that run beside the computation: on a CUDA stream, or in a thread that keeps the same contract."""

import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor, UntypedStorage


class Copy(Protocol):
    """A copy that was submitted."""

    def wait(self) -> None:
        """Whatever the caller computes from now on comes after the copy; raises what a copy has raised."""
        ...


class CopyStream(Protocol):
    """Runs copies one after the other, in the order submitted, while the caller goes on.

    One order for both directions: what was written to the host is there for every later copy, and what goes back is
    small against what comes. After an error no later copy can be trusted, so all of them raise it.
    """

    def submit(self, copy: Callable[[], None]) -> Copy:
        """Runs `copy` after all that the caller has computed so far."""
        ...

    def drain(self) -> None:
        """Returns when nothing is left to copy: the host's own memory can be read and freed."""
        ...


class ThreadCopyStream:
    """The twin on a CPU, where what the caller has computed is done when it returns."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "kv-copy")
        self._error: BaseException | None = None

    def submit(self, copy: Callable[[], None]) -> Copy:
        return _InThread(self._thread.submit(self._run, copy))

    def drain(self) -> None:
        self.submit(lambda: None).wait()

    def _run(self, copy: Callable[[], None]) -> None:
        if self._error is not None:
            raise self._error
        try:
            copy()
        except BaseException as error:
            self._error = error
            raise


class _InThread:
    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()


class CudaCopyStream:
    """A stream beside the one the layers run on. Nothing here makes the host wait but `drain`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def submit(self, copy: Callable[[], None]) -> Copy:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            copy()
        return _OnDevice(self._stream.record_event(), self._device)

    def drain(self) -> None:
        self._stream.synchronize()


class _OnDevice:
    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self._event, self._device = event, device

    def wait(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)


def copy_stream(device: torch.device) -> CopyStream:
    """The one for a device."""
    return CudaCopyStream(device) if device.type == "cuda" else ThreadCopyStream()


@torch.inference_mode()  # which a thread does not inherit, and buffers made under it ask for
def copy_tokens(source: Tensor, target: Tensor, start: int, end: int) -> None:
    """Copies the tokens from `start` to `end` between buffers [kv_heads, capacity, head_dim], to the same places.

    Head by head: only between contiguous tensors do host and card copy without making the host wait.
    """
    for head_source, head_target in zip(source, target, strict=True):
        head_target[start:end].copy_(head_source[start:end], non_blocking=True)


def lock_pages(buffer: Tensor) -> Tensor:
    """The same host memory, which CUDA can copy from and to by itself as long as the tensor lives.

    PyTorch's own pinned memory is rounded up to a power of two: of a KV cache just above one, half would be wasted.
    Raises `MemoryError`.
    """
    storage = buffer.untyped_storage()
    if storage.nbytes():
        error = int(torch.cuda.cudart().cudaHostRegister(storage.data_ptr(), storage.nbytes(), 0))
        if error:
            raise MemoryError(f"CUDA cannot lock {storage.nbytes():,} bytes of host memory (error {error})")
        weakref.finalize(buffer, _unlock, storage).atexit = False  # which keeps the memory until it is unlocked
    return buffer


def _unlock(storage: UntypedStorage) -> None:
    torch.cuda.synchronize()  # a copy may still be under way
    torch.cuda.cudart().cudaHostUnregister(storage.data_ptr())
