"""Sessions over tiny models, as several test modules ask them."""

import threading
import time

import pytest
import torch

from runtime.config import Request, Sampling, Speculation
from runtime.events import Finished
from runtime.models.attention import Attend, attend_on_cpu
from runtime.models.load import Model
from runtime.pacing import FixedPacing
from runtime.session import Session
from runtime.tokenizer import Tokenizer
from tests.runtime.tiny import N_TOKENS, Kind, random_ids, tiny_backend, tiny_decoder

GREEDY = Sampling(temperature=0)
PLAIN = Speculation(enabled=False)
HIERARCHY = Speculation(gamma=4, inner_gamma=2, budget=48, chunk_size=4, sinks=4, window=28)


def tiny(
    kind: Kind = "llama", seed: int = 0, dtype: torch.dtype = torch.float32, attend: Attend = attend_on_cpu
) -> Model:
    decoder, oracle = tiny_decoder(kind, seed, dtype, attend, vocab_size=N_TOKENS)
    return Model(decoder, oracle.config, Tokenizer(tiny_backend()))


def draft_always(monkeypatch: pytest.MonkeyPatch, has_retrieval: bool) -> None:
    """Draft gamma tokens each round, whether it pays or not."""
    monkeypatch.setattr("runtime.hierarchy.AdaptivePacing", lambda most, *_: FixedPacing(most))
    monkeypatch.setattr("runtime.session.gains_by_retrieval", lambda *_: has_retrieval)


def prompt(n_tokens: int, seed: int = 0) -> list[int]:
    """Ids of text alone; a passage stands twice, so that lookup finds something."""
    ids = [i + 3 for i in (random_ids(n_tokens, seed) % (N_TOKENS - 3)).tolist()]
    ids[-20:] = ids[:20]
    return ids


def ask(session: Session, ids: list[int], request: Request, cancel: threading.Event | None = None) -> Finished:
    *_, end = session.answer(ids, request, cancel or threading.Event(), time.perf_counter())
    assert isinstance(end, Finished)
    return end


def kept_keys(session: Session, n_tokens: int) -> list[torch.Tensor]:
    store = session._full
    return [half[:, :n_tokens].clone() for layer in range(store.n_layers) for half in store.read(layer)]
