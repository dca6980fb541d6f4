"""What forward passes cost on this machine: measured once for a model and kept, so that a seed fixes an answer."""

import json
import time
from dataclasses import asdict
from pathlib import Path

import torch

from runtime.choices import SeededChoices
from runtime.config import Sampling
from runtime.kept import keep, place
from runtime.kv.full import FullStore
from runtime.models.decoder import Decoder
from runtime.pacing import PassCosts
from runtime.scorer import Scorer
from runtime.stores import OWN, Stores

FORMAT = 9  # counted up whenever the kernels or what is measured change
TOKENS = (1, 2, 3, 4, 5, 8, 16)
SHORT, LONG = 256, 4096  # tokens in the cache
REPEATS = 5
SLOW_SECONDS = 0.2  # a pass that takes longer is measured once, and at fewer sizes
FASTER = 0.95  # more threads are worth it where they take less than this share of the time


def pass_costs(decoder: Decoder, name: str, cache_dir: Path, most_threads: int, stores: Stores = OWN) -> PassCosts:
    """Those kept in `cache_dir` for the model `name` on as many threads, else measured now, in a second or two."""
    device = f"{decoder.device}, weights streamed" if decoder.carried_bytes else str(decoder.device)
    what = (FORMAT, name, decoder.spec, str(decoder.dtype), device, most_threads, torch.__version__)
    path = place(cache_dir, "passes", what)
    if (kept := _read(path)) is not None:
        return kept
    measured = measure(decoder, most_threads, stores)
    keep(path, asdict(measured))
    return measured


def measure(decoder: Decoder, most_threads: int, stores: Stores = OWN) -> PassCosts:
    """Time passes over empty caches of two lengths; the thread count of the process is left as it was."""
    before = torch.get_num_threads()
    try:
        short, long = (_store(decoder, n_held, stores) for n_held in (SHORT, LONG))
        _seconds(decoder, short, 1)  # warms up
        slow = _seconds(decoder, short, 1) > SLOW_SECONDS
        repeats, tokens = (1, (1, 4, 16)) if slow else (REPEATS, TOKENS)
        for n in tokens:  # each size may be code of its own, compiled when it is used first
            _seconds(decoder, short, n)
        threads = _best_threads(decoder, long, most_threads, repeats)
        torch.set_num_threads(threads)
        # Round by round, so that whatever else the machine does slows all of them alike.
        rounds = [[_seconds(decoder, store, n) for store in (short, long) for n in tokens] for _ in range(repeats)]
        best = tuple(map(min, zip(*rounds, strict=True)))
        return PassCosts(most_threads, threads, (SHORT, LONG), tokens, best[: len(tokens)], best[len(tokens) :])
    finally:
        torch.set_num_threads(before)


def _best_threads(decoder: Decoder, store: FullStore, most: int, repeats: int) -> int:
    """The fewest threads that take not much longer than the fastest number of them over a long cache: over a short
    one the starter takes as long with two as with one."""
    if decoder.device.type != "cpu":
        return most
    counts = sorted({most, *(2**power for power in range(most.bit_length()) if 2**power < most)})
    seconds = dict.fromkeys(counts, float("inf"))
    for _ in range(repeats + 1):
        for count in counts:
            torch.set_num_threads(count)
            _seconds(decoder, store, 1)  # wakes the threads
            seconds[count] = min(seconds[count], _seconds(decoder, store, 1))
    fastest: float = min(seconds.values())
    return int(next(count for count in counts if FASTER * seconds[count] <= fastest))


def _store(decoder: Decoder, n_held: int, stores: Stores) -> FullStore:
    """A full cache of `n_held` tokens that mean nothing."""
    spec = decoder.spec
    store = stores.full(decoder)
    store.reserve(n_held + max(TOKENS))
    store.extend(n_held)
    zeros = torch.zeros(spec.n_kv_heads, n_held, spec.head_dim, dtype=decoder.dtype, device=decoder.device)
    for layer in range(spec.n_layers):
        store.write(layer, zeros, zeros)
    store.commit()
    return store


def _seconds(decoder: Decoder, store: FullStore, n_tokens: int) -> float:
    scorer = Scorer(decoder, store, Sampling(), answer_start=0)
    tokens, draft = [0] * (store.length + 1), [0] * (n_tokens - 1)
    started = time.perf_counter()
    SeededChoices(0).draw(scorer.score(tokens, draft)[-1])
    seconds = time.perf_counter() - started
    store.trim(store.committed)
    return seconds


def _read(path: Path) -> PassCosts | None:
    """What was kept; None where there is nothing, or nothing whole."""
    try:
        kept = json.loads(path.read_text("utf-8"))
        short, long = (tuple(map(float, kept[name])) for name in ("short", "long"))
        tokens = tuple(map(int, kept["tokens"]))
        if not 1 < len(tokens) == len(short) == len(long):
            return None
        return PassCosts(int(kept["most_threads"]), int(kept["threads"]), (SHORT, LONG), tokens, short, long)
    except (OSError, ValueError, KeyError, TypeError):
        return None
