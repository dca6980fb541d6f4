"""The full KV cache on the disk: the same answers, without the memory."""

import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from app.problems import explain
from runtime.config import Request, Sampling, Speculation
from runtime.errors import KvDiskFull
from runtime.events import Finished
from runtime.hardware import is_out_of_memory
from runtime.kv import mapped
from runtime.kv.full import FullStore
from runtime.kv.mapped import MappedStore
from runtime.session import Session
from tests.runtime.sessions import GREEDY, draft_always, prompt, tiny

CPU = torch.device("cpu")
SHAPE = (2, 2, 16, torch.float32, CPU)
SMALL = Speculation(gamma=4, inner_gamma=2, budget=64, chunk_size=4, sinks=4, window=28)
linux_alone = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for its pages")


@contextmanager
def files_of_at_most(n_bytes: int) -> Iterator[None]:
    """As on a full disk, by the limit that POSIX knows."""
    resource = pytest.importorskip("resource", reason="no limits on this system")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def answers(store: FullStore, sampling: Sampling) -> tuple[list[Finished], Session]:
    """A question and a longer one behind it, for which the store grows; drafted over the retrieval cache."""
    model = tiny()
    session = Session(model, None, SMALL, 4096, store)
    ids, found = prompt(200), []
    for n_tokens in (0, 1500):
        ids = [*ids, *prompt(n_tokens + 20, seed=1)]
        request = Request(sampling, 30, evidence_spans=((0, 90), (90, 190)))
        *_, end = session.answer(ids, request, threading.Event(), time.perf_counter())
        assert isinstance(end, Finished)
        found.append(end)
        ids += end.token_ids
    return found, session


def shape_of_tiny() -> tuple[int, int, int, torch.dtype, torch.device]:
    decoder = tiny().decoder
    return decoder.spec.n_layers, decoder.spec.n_kv_heads, decoder.spec.head_dim, decoder.dtype, decoder.device


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, seed=5)], ids=["greedy", "sampled"])
def test_answers_and_what_is_held_are_those_of_a_full_store(
    sampling: Sampling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, while the cache grows in the midst of a conversation; of blocks of the same length."""
    draft_always(monkeypatch, has_retrieval=True)
    monkeypatch.setattr("runtime.prefill.OFFLOAD_BLOCK", 1024)
    plain, on_disk = FullStore(*shape_of_tiny()), MappedStore(*shape_of_tiny(), tmp_path)
    (ours, _), (theirs, _) = answers(on_disk, sampling), answers(plain, sampling)

    assert on_disk.capacity > 1700
    for our, their in zip(ours, theirs, strict=True):
        assert (our.token_ids, our.text, our.reason) == (their.token_ids, their.text, their.reason)
        assert our.evidence == their.evidence
        assert sum(level.proposed for level in our.stats.levels) > 0
    assert on_disk.length == plain.length
    for layer in range(plain.n_layers):
        assert all(map(torch.equal, on_disk.read(layer), plain.read(layer)))


def test_nothing_is_seen_of_it_in_the_folder(tmp_path: Path) -> None:
    """Nor would be after a crash; a folder that is not there yet is made."""
    if os.name != "posix":
        pytest.skip("this system gives open files a name")
    store = MappedStore(*SHAPE, tmp_path / "cache")
    store.reserve(1000)
    assert list((tmp_path / "cache").iterdir()) == []
    assert store.n_bytes == 2 * 2 * 2 * 16 * 4 * 1000


GROWS = """
import sys
from pathlib import Path
import torch
from runtime.kv.full import FullStore
from runtime.kv.mapped import MappedStore

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

shape = 4, 4, 64, torch.float32, torch.device("cpu")
store = MappedStore(*shape, Path(sys.argv[2])) if sys.argv[1] == "disk" else FullStore(*shape)
rows = torch.ones(4, 256, 64)
before = anonymous()
for _ in range(64):
    store.extend(256)
    for layer in range(4):
        store.write(layer, rows, rows)
        store.read(layer)
    store.commit()
print(store.n_bytes, anonymous() - before)
"""


@linux_alone
@pytest.mark.parametrize("where", ["disk", "memory"])
def test_memory_stays_low_while_it_grows(where: str, tmp_path: Path) -> None:
    """Of 128 MiB none is the process's own; of a full store, the control, all is."""
    command = [sys.executable, "-c", GROWS, where, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    n_bytes, grown = map(int, done.stdout.split())

    assert n_bytes >= 2 * 4 * 4 * 64 * 4 * 64 * 256
    assert (grown < n_bytes // 8) == (where == "disk")


def test_a_disk_with_too_little_room_is_said_before_any_work(tmp_path: Path) -> None:
    """With what all layers together would take; what was held is still there."""
    store = MappedStore(*SHAPE, tmp_path)
    store.extend(5)
    before = store.n_bytes
    too_many = mapped.free_disk_bytes(tmp_path)  # tokens, of half a KB each
    with pytest.raises(KvDiskFull) as refused:
        store.extend(too_many)
    assert refused.value.needed_bytes > refused.value.free_bytes > 0
    assert (store.length, store.n_bytes) == (5, before)
    assert is_out_of_memory(refused.value)
    said = str(explain(refused.value))
    assert said.startswith("The KV cache needs ")
    assert str(tmp_path) in said


@pytest.mark.parametrize("has_fallocate", [True, False])
def test_a_disk_that_fills_up_meanwhile_is_an_error_and_no_signal(
    has_fallocate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks are there before the first is written, also where the system cannot promise them."""
    if not has_fallocate:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    store = MappedStore(*SHAPE, tmp_path)
    store.reserve(1000)
    store.extend(1000)
    for layer in range(2):
        store.write(layer, torch.ones(2, 1000, 16), torch.ones(2, 1000, 16))
    with files_of_at_most(3 << 20), pytest.raises(KvDiskFull) as refused:
        store.reserve(40_000)
    assert refused.value.needed_bytes == 2 * 40_000 * 16 * 4
    assert (store.length, store.capacity) == (1000, 1000)
    assert all(bool((half == 1).all()) for half in store.read(1))
    with files_of_at_most(6 << 20):
        store.reserve(40_000)
    assert store.capacity == 40_000


@linux_alone
def test_the_next_layer_is_on_its_way_while_one_is_read(tmp_path: Path) -> None:
    """All of its used part; of layers behind it, of those with a window, and of what is beyond the length nothing."""
    n_layers, used, capacity = 5, 3 << 14, 1 << 16  # 12 and 16 MiB a buffer
    windows = (None, 32, None, None, None)
    store = MappedStore(n_layers, 1, 64, torch.float32, CPU, tmp_path, windows)
    store.reserve(capacity)
    store.extend(capacity)
    for layer in range(n_layers):
        store.write(layer, torch.ones(1, capacity, 64), torch.ones(1, capacity, 64))
    store.trim(used)
    forget(store, tmp_path)
    buffers = [store._keys, store._values]
    if any(in_memory(half[layer]) for half in buffers for layer in range(n_layers)):
        pytest.skip("this disk is memory itself")

    store.read(0)
    assert store.ahead is not None
    store.ahead.result()
    wanted = used * 64 * 4
    until = time.monotonic() + 60
    while min(in_memory(half[2]) for half in buffers) < wanted and time.monotonic() < until:
        time.sleep(0.01)
    for half in buffers:
        assert wanted <= in_memory(half[2]) <= wanted + mapped.PIECE
        assert [in_memory(half[layer]) for layer in (0, 1, 3, 4)] == [0] * 4
    store.read(4)
    store.ahead.result()
    while not in_memory(store._keys[0]) and time.monotonic() < until:
        time.sleep(0.01)
    assert in_memory(store._keys[0]) > 0, "the first layer comes after the last"


def forget(store: MappedStore, folder: Path) -> None:
    """Let the system write what the store holds, and keep none of it in memory."""
    os.sync()
    for buffer in (*store._keys, *store._values):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(buffer.data_ptr()), ctypes.c_size_t(buffer.nbytes), 4)  # DONTNEED
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # of the listing itself, which is closed by now
            if os.readlink(link).startswith(str(folder)):
                os.posix_fadvise(int(link.name), 0, 0, os.POSIX_FADV_DONTNEED)


def in_memory(buffer: torch.Tensor) -> int:
    """Bytes of a mapped buffer that are, by whole pages."""
    pages = (ctypes.c_ubyte * -(-buffer.nbytes // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(buffer.data_ptr()), ctypes.c_size_t(buffer.nbytes), pages) == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE
