"""Models shared by several processes of this machine, over gloo."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from runtime.models.load import Model, load_model, read_facts
from runtime.models.sources import Source
from runtime.parallel.start import Shared, load_shared
from tests.runtime.tiny import N_TOKENS, Kind, save_tiny

CPU = torch.device("cpu")


def saved(folder: Path, kind: Kind, **changes: object) -> Source:
    """A tiny model on disk, whose vocabulary is the tokenizer's."""
    save_tiny(folder, kind, vocab_size=N_TOKENS, **changes)
    return Source("folder", str(folder), folder)


@contextmanager
def shared_and_whole(
    source: Source, cache_dir: Path, n_ranks: int = 2, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[Shared, Model]]:
    """The model run by `n_ranks` processes, and by this one alone; in float32 its weights are dense in both."""
    facts = read_facts(source, cache_dir)
    whole = load_model(source, facts, dtype, CPU, lambda _: None)
    shared = load_shared(source, facts, dtype, n_ranks, 1, lambda _: None, "gloo")
    try:
        yield shared, whole
    finally:
        shared.team.close()


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == []
