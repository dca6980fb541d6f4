"""What crosses the bus where the full KV cache is in host memory, to the byte."""

import random
from typing import Any

import pytest
import torch

from runtime.choices import SeededChoices
from runtime.config import Request, Sampling
from runtime.drafter import Draft
from runtime.kv.full import BytesMoved
from runtime.kv.host import KEPT, HostStore
from runtime.kv.queries import Observers, RecentQueries
from runtime.kv.retrieval import RetrievalStore
from runtime.pacing import FixedPacing
from runtime.scorer import Scorer
from runtime.session import Session
from runtime.speculation import decode
from runtime.stats import LevelStats
from tests.runtime.copy_streams import SteppedStream
from tests.runtime.host_stores import LAYERS, five_layers, in_host, on_device, same
from tests.runtime.sessions import GREEDY, PLAIN, ask, tiny
from tests.runtime.tiny import random_ids

PER_TOKEN = 2 * 2 * 16 * 4  # bytes a layer: keys and values of two KV heads of 16 numbers of 4 bytes


@pytest.mark.parametrize("n_on_device", [0, 2, 4, 5])
def test_a_pass_moves_what_is_held_once_and_returns_what_is_new(n_on_device: int) -> None:
    """Blocks of a prompt, plain steps, drafts that stand or not: the tokens held before, in each layer off the device.
    So a prompt of n tokens in blocks of b moves them n / 2b times on the whole, whatever the layers."""
    decoder = five_layers()
    store = in_host(decoder, SteppedStream(), n_on_device)
    per_token = PER_TOKEN * (LAYERS - n_on_device)
    passes = [(30, 30), (30, 30), (30, 30), (10, 10), (1, 1), (1, 1), (9, 4), (9, 9), (5, 0), (1, 1)]
    came = went = 0
    for n_tokens, n_kept in passes:
        came += store.length * per_token
        went += n_tokens * per_token
        decoder.forward(random_ids(n_tokens), store)
        assert store.bytes_moved == BytesMoved(came, went)
        store.trim(store.length - n_tokens + n_kept)
        store.commit()
    assert came == (0 + 30 + 60 + 90 + 100 + 101 + 102 + 106 + 115 + 115) * per_token


def test_a_prompt_crosses_the_bus_once_a_block() -> None:
    """Whole, as a session reads it: 2,048 tokens are fed at once, so of 4,500 tokens none comes more than twice."""
    model = tiny()
    per_token = 3 * PER_TOKEN
    session = Session(model, None, PLAIN, 8192, in_host(model.decoder))
    ids = random_ids(4501).tolist()
    stats = ask(session, ids, Request(GREEDY, 1)).stats
    came = [0, 2048, 4096, 4500]  # what is held when a block, and then the last token, is fed
    assert (stats.to_device_bytes, stats.from_device_bytes) == (sum(came) * per_token, len(ids) * per_token)
    assert stats.to_device_bytes < 2.4 * len(ids) * per_token
    for store in (in_host(model.decoder, None, 3), on_device(model.decoder)):
        moved = ask(Session(model, None, PLAIN, 8192, store), ids[:99], Request(GREEDY, 9)).stats
        assert (moved.to_device_bytes, moved.from_device_bytes, moved.moved_bytes_per_token) == (0, 0, 0)


def test_an_answer_says_what_it_moved() -> None:
    """Plain decoding moves all that is held for every token; evidence then the keys, which no token is charged for."""
    model, ids, n_answer = tiny(), random_ids(200).tolist(), 20
    for n_on_device in (0, 2):
        per_token = (3 - n_on_device) * PER_TOKEN
        session = Session(model, None, PLAIN, 512, in_host(model.decoder, None, n_on_device))
        stats = ask(session, ids, Request(GREEDY, n_answer)).stats
        assert stats.decode_tokens == n_answer
        decoded = sum(199 + step for step in range(n_answer)) * per_token
        assert stats.decode_moved_bytes == decoded + n_answer * per_token
        assert stats.moved_bytes_per_token == stats.decode_moved_bytes / n_answer
        assert stats.to_device_bytes == decoded  # of one block nothing has to come
        assert stats.from_device_bytes == (199 + n_answer) * per_token
        looked = ask(session, [*ids, 5], Request(GREEDY, n_answer, evidence_spans=((0, 100),))).stats
        plain = ask(session, [*ids, 6], Request(GREEDY, n_answer)).stats
        assert looked.decode_moved_bytes == plain.decode_moved_bytes
        n_left = 3 - n_on_device - 2  # layers that are not in the buffers any more
        n_keys = max(0, n_left) * 220 * PER_TOKEN // 2
        assert looked.to_device_bytes - plain.to_device_bytes == n_keys


def test_memory_is_where_it_is_counted() -> None:
    """On the device: the layers that stay there and two buffers, however many layers pass through them; and the newest
    tokens of those."""
    decoder = five_layers()
    for n_on_device, n_there in [(0, 2), (2, 4), (4, 6), (5, 5)]:
        store = in_host(decoder, SteppedStream(), n_on_device)
        store.reserve(100)
        assert store.device_bytes == 100 * PER_TOKEN * n_there
        assert store.n_bytes == 100 * PER_TOKEN * LAYERS
        for n_tokens, n_kept in [(KEPT + 40, KEPT), (3, 3)]:
            store.reserve(300)
            decoder.forward(random_ids(n_tokens), store)
            assert store.device_bytes == PER_TOKEN * (300 * n_there + n_kept * (LAYERS - n_on_device))


class Both:
    """A store in host memory and one on the device that go the same way, each with a retrieval cache chosen from it."""

    def __init__(self, n_prompt: int, budget: int) -> None:
        self.decoder = five_layers()
        self.stream = SteppedStream()
        self.host = in_host(self.decoder, self.stream)
        self.stores = (self.host, on_device(self.decoder))
        self._recent = (RecentQueries(), RecentQueries())
        self.caches: list[RetrievalStore] = []
        self.feed(n_prompt, 0)
        scale = self.decoder.spec.attention_scale
        self.caches = [
            RetrievalStore(store, recent, budget, 8, scale, windows=(None, 20, None, None, None))
            for store, recent in zip(self.stores, self._recent, strict=True)
        ]
        self.select()

    def feed(self, n_tokens: int, seed: int, n_kept: int | None = None, watched: bool = False) -> None:
        """A pass, of whose tokens the first `n_kept` stand, None for all; the caches watch it or do not."""
        for store, recent, cache in zip(self.stores, self._recent, self.caches or (None, None), strict=True):
            observer = Observers(recent, cache) if watched and cache is not None else recent
            self.decoder.forward(random_ids(n_tokens, seed), store, 0, observer)
            store.trim(store.length - n_tokens + (n_tokens if n_kept is None else n_kept))
            store.commit()

    def select(self) -> None:
        for cache, recent in zip(self.caches, self._recent, strict=True):
            cache.select(recent.latest())

    def commit(self) -> None:
        for cache in self.caches:
            cache.commit()

    def check(self) -> None:
        for layer in range(LAYERS):
            assert same(*(list(cache.read(layer)) for cache in self.caches))


def test_a_retrieval_cache_chooses_the_same_from_host_memory() -> None:
    """At first, and again and again while an answer grows beyond the budget."""
    both = Both(300, budget=64)
    both.check()
    for step in range(40):
        both.feed(1 + step % 5, step)
        both.commit()
        both.check()


def test_accepted_tokens_reach_a_retrieval_cache_without_the_bus() -> None:
    """They are still on the device, in every layer."""
    both = Both(300, budget=200)
    for step, n_tokens in enumerate([4, 1, KEPT // 8, 2]):
        both.feed(n_tokens, step)
        before = both.host.bytes_moved
        both.commit()
        assert both.host.bytes_moved == before
        both.check()


def test_a_pass_that_chooses_anew_moves_no_more_than_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own layers are on the device: what was held comes once, what is new goes back once, and the choice is that
    of a store on the device. It is made from time to time, of all layers without a window or of none."""
    both, n_gathered = Both(300, budget=128), 0
    gather = HostStore.gather

    def counted(*given: Any) -> None:
        nonlocal n_gathered
        n_gathered += 1
        gather(*given)

    monkeypatch.setattr(HostStore, "gather", counted)
    for step in range(60):
        n_tokens, n_held, before = 1 + step % 9, both.host.length, both.host.bytes_moved
        both.feed(n_tokens, step, n_kept=1 + step % 9 // 2, watched=True)
        both.commit()
        moved = both.host.bytes_moved.since(before)
        assert moved == BytesMoved(n_held * LAYERS * PER_TOKEN, n_tokens * LAYERS * PER_TOKEN)
        both.check()
    assert n_gathered in range(4 * 3, 4 * 20, 4)


def test_choosing_anew_moves_what_is_chosen_and_no_more() -> None:
    """Outside of a pass: the chosen chunks, and the keys that were never averaged, where they are not on the device any
    more."""
    both = Both(300, budget=64)
    for step in range(10):
        both.feed(1, step)
    before = both.host.bytes_moved.to_device
    both.select()
    n_chunks = (64 - 64 // 4 - 310 % 8) // 8
    chosen = 2 * n_chunks * 8 * PER_TOKEN  # in the layers without a window; two of the four are in the buffers still
    keys = 2 * (310 - 296) * PER_TOKEN // 2  # of the other two; the newest token is on the device
    windows = 20 * PER_TOKEN
    rest = 2 * (310 % 8) * PER_TOKEN
    assert both.host.bytes_moved.to_device - before == chosen + keys + windows + rest


class Scripted:
    """Proposes what plain decoding says, each token right with the chance given."""

    def __init__(self, answer: list[int], n_prompt: int, acceptance: float, retrieval: RetrievalStore) -> None:
        self._answer, self._n_prompt, self._acceptance, self._retrieval = answer, n_prompt, acceptance, retrieval
        self._random = random.Random(7)

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        said = len(tokens) - self._n_prompt
        right = self._answer[said : said + gamma]
        return Draft(tuple(t if self._random.random() < self._acceptance else (t + 1) % 256 for t in right))

    def trim(self, length: int) -> None:
        pass

    def commit(self) -> None:
        self._retrieval.commit()

    def levels(self) -> tuple[LevelStats, ...]:
        return ()


def test_triforce_moves_a_fifth_of_plain_decoding_at_most() -> None:
    """Bytes per emitted token, both ways, the choice of chunks counted: at 0.9 acceptance and gamma 16 a round emits
    (1 - 0.9^17) / 0.1 = 8.3 tokens, for one pass."""
    decoder, ids, n_answer = five_layers(), random_ids(400).tolist(), 240

    def run(gamma: int, acceptance: float, answer: list[int]) -> tuple[list[int], float, float]:
        store, recent = in_host(decoder, SteppedStream()), RecentQueries()
        store.reserve(800)
        decoder.forward(torch.tensor(ids[:-1]), store, 0, recent)
        store.commit()
        retrieval = RetrievalStore(store, recent, 64, 8, decoder.spec.attention_scale)
        before, rounds = sum(store.bytes_moved), 0
        retrieval.select(recent.latest())
        drafter = Scripted(answer, len(ids), acceptance, retrieval)
        scorer = Scorer(decoder, store, Sampling(temperature=0), recent, answer_start=len(ids))
        tokens = list(ids)
        for _ in decode(scorer, drafter, tokens, FixedPacing(gamma), SeededChoices(0)):
            rounds += 1
            if len(tokens) - len(ids) >= n_answer:
                break
        n_emitted = len(tokens) - len(ids)
        return tokens[len(ids) :], n_emitted / rounds, (sum(store.bytes_moved) - before) / n_emitted

    plain, one, plain_bytes = run(0, 1.0, [])
    said, emitted, our_bytes = run(16, 0.9, [*plain, *plain[:20]])
    assert said[:n_answer] == plain[:n_answer]
    assert one == 1
    assert 6.5 < emitted < 10
    assert our_bytes < plain_bytes / 5
    _, _, bytes_at_half = run(16, 0.5, [*plain, *plain[:20]])
    assert bytes_at_half > plain_bytes / 5, "control: at 0.5 a round emits 2 tokens"
