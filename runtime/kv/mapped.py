"""The full KV cache in a file that is mapped into memory, for one that main memory does not hold."""

import ctypes
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

import torch
from torch import Tensor

from runtime.errors import KvDiskFull
from runtime.kv.full import FullStore

ZEROS = bytes(1 << 20)
# Asked for more at once, Linux brings no more than the window of the disk, often 128 KiB, and drops the rest: of one
# request for 256 MiB it brought 8.
PIECE = 1 << 17


class MappedStore(FullStore):
    """A full store whose buffers lie in files of the folder, one each, without a name: nothing stays of them, however
    the process ends.

    While a layer is computed, a thread asks for the used part of the next one. The system keeps what memory has room
    for, and writes what it takes away.
    """

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        folder: Path | None = None,
        windows: Sequence[int | None] = (),
    ) -> None:
        """`folder` None: the system's own for temporary files. Layers with a window of `windows` see tokens that were
        just written, and are not asked for ahead."""
        super().__init__(n_layers, n_kv_heads, head_dim, dtype, device)
        self._folder = Path(tempfile.gettempdir()) if folder is None else folder
        seen = [layer for layer in range(n_layers) if not windows or windows[layer] is None]
        self._after = dict(zip(seen, seen[1:] + seen[:1], strict=True))
        self._thread = ThreadPoolExecutor(1, "kv-read-ahead")
        self.ahead: Future[None] | None = None  # the newest request

    def carried_bytes(self, n_tokens: int) -> int:
        """As if nothing of it were in memory."""
        n_kv_heads, _, head_dim = self._keys[0].shape
        return 2 * len(self._after) * n_kv_heads * n_tokens * head_dim * self._keys[0].itemsize

    def reserve(self, capacity: int) -> None:
        """As in a full store; raises `KvDiskFull` before any work where the disk has too little for all layers."""
        n_kv_heads, _, head_dim = self._keys[0].shape
        whole = 2 * self.n_layers * n_kv_heads * capacity * head_dim * self._keys[0].itemsize
        if capacity > self.capacity and whole - self.n_bytes > (free := free_disk_bytes(self._folder)):
            raise KvDiskFull(str(self._folder), whole - self.n_bytes, free)
        super().reserve(capacity)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        following = self._after.get(layer)
        if following is not None:
            buffers, n_tokens = (self._keys[following], self._values[following]), self._length
            self.ahead = self._thread.submit(lambda: read_ahead(buffers, n_tokens))
        return super().read(layer)

    def _new_buffer(self, old: Tensor, capacity: int) -> Tensor:
        shape = (old.shape[0], capacity, old.shape[2])
        n_values = shape[0] * shape[1] * shape[2]
        mapped = _map_file(self._folder, n_values * old.itemsize)
        return torch.frombuffer(mapped, dtype=old.dtype, count=n_values).view(shape)


def free_disk_bytes(folder: Path) -> int:
    """Of the disk that `folder` is on, or will be."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def read_ahead(buffers: Sequence[Tensor], n_tokens: int) -> None:
    """Ask the system for the first `n_tokens` of mapped buffers [kv_heads, capacity, head_dim]; nothing where it has no
    `madvise`."""
    if sys.platform == "win32":
        return
    madvise = ctypes.CDLL(None).madvise  # the one of `mmap` would keep Python's lock
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for buffer in buffers:
        for head in range(buffer.shape[0]):
            start = buffer.data_ptr() + head * buffer.stride(0) * buffer.itemsize
            end = start + n_tokens * buffer.stride(1) * buffer.itemsize
            for address in range(start - start % mmap.PAGESIZE, end, PIECE):
                madvise(address, min(PIECE, end - address), mmap.MADV_WILLNEED)


def _map_file(folder: Path, n_bytes: int) -> mmap.mmap:
    """A file of which all blocks are there, so that no write finds a full disk; raises `KvDiskFull`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, n_bytes)
            else:
                left = n_bytes
                while left:
                    left -= file.write(ZEROS[:left])
        except OSError as error:
            if error.errno not in (ENOSPC, EDQUOT, EFBIG):
                raise
            raise KvDiskFull(str(folder), n_bytes, free_disk_bytes(folder)) from error
        return mmap.mmap(file.fileno(), n_bytes)
