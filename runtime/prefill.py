"""Feeding a prompt in blocks, each a step that can be cancelled and reports how far it is."""

import threading
import time
from collections.abc import Iterator, Sequence

import torch

from runtime.events import Progress
from runtime.heap import give_back_memory
from runtime.kv.queries import Observer
from runtime.kv.store import Store
from runtime.models.decoder import Decoder

BLOCK = 1024  # tokens; 8,192 of the starter took 11.2 s in blocks of 512, 9.3 s in these, 9.5 s in blocks of 2,048
SHORTEST_BLOCK = 128
OFFLOAD_BLOCK = 2048  # where the KV cache crosses the bus once for each block
BLOCK_WORK = 1 << 38  # parameters times tokens of a block: some ten seconds of two cores, by which a cancel waits


def block_length(n_parameters: int, device: torch.device, streams: bool) -> int:
    """Tokens of a block: as many as are worth it, on a CPU fewer where the model is large; more of them where the store
    `streams` what it holds from elsewhere in every pass."""
    if streams:
        return OFFLOAD_BLOCK
    if device.type != "cpu":
        return BLOCK
    return max(SHORTEST_BLOCK, min(BLOCK, BLOCK_WORK // n_parameters))


def prefill(
    decoder: Decoder,
    store: Store,
    ids: Sequence[int],
    cancel: threading.Event,
    observer: Observer | None = None,
    block: int = BLOCK,
) -> Iterator[Progress]:
    """Feed and commit the ids the store has not seen, block by block.

    Progress counts the new tokens alone. When `cancel` is set it ends before the next block; what was fed stays.
    """
    started, first = time.perf_counter(), store.length
    total = len(ids) - first
    yield Progress("prefill", 0, total)
    while store.length < len(ids) and not cancel.is_set():
        step = torch.tensor(ids[store.length : store.length + block], device=decoder.device)
        decoder.forward(step, store, n_logits=0, observer=observer)
        store.commit()
        done = store.length - first
        rate = done / (time.perf_counter() - started)
        yield Progress("prefill", done, total, rate, (total - done) / rate)
    if total > block:
        give_back_memory()  # a block's own takes some 100 MB with the starter
