"""The contract of every KV store, and what each keeps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime.kv.full import FullStore
from runtime.kv.host import HostStore
from runtime.kv.mapped import MappedStore
from runtime.kv.queries import AnswerQueries, RecentQueries
from runtime.kv.retrieval import RetrievalStore
from runtime.kv.store import Store, TrimBelowCommitted
from runtime.kv.streaming import StreamingStore

LAYERS, KV_HEADS, HEAD_DIM = 2, 2, 4
SHAPE = (LAYERS, KV_HEADS, HEAD_DIM, torch.float32, torch.device("cpu"))


def full() -> FullStore:
    return FullStore(*SHAPE)


def in_host_memory() -> HostStore:
    return HostStore(*SHAPE)


def partly_in_host_memory() -> HostStore:
    return HostStore(*SHAPE, n_on_device=1)


def on_disk() -> MappedStore:
    return MappedStore(*SHAPE)


def retrieval_over_nothing() -> RetrievalStore:
    return RetrievalStore(full(), RecentQueries(), budget=64, chunk_size=4, scale=0.5)


def streaming() -> StreamingStore:
    return StreamingStore(*SHAPE, sinks=4, window=60)


def streaming_read_anew() -> StreamingStore:
    store = streaming()
    feed(store, 90)
    store.commit()
    feed(store, 3)
    store.clear()
    return store


FULL = [full, in_host_memory, partly_in_host_memory, on_disk]
STORES = [*FULL, retrieval_over_nothing, streaming, streaming_read_anew]
Make = Callable[[], Store]
MakeFull = Callable[[], FullStore]


def token(position: int, layer: int = 0) -> float:
    """What the keys of a position hold here; its values hold the negative."""
    return position + layer / 10 + 0.01


def feed(store: Store, n_tokens: int) -> None:
    start = store.length
    store.extend(n_tokens)
    for layer in range(LAYERS):
        rows = torch.tensor([token(start + i, layer) for i in range(n_tokens)])
        keys = rows[None, :, None].expand(KV_HEADS, n_tokens, HEAD_DIM)
        store.write(layer, keys, -keys)


def held(store: Store, layer: int = 0, head: int = 0) -> list[int]:
    """Positions whose keys the store holds."""
    keys, values = store.read(layer)
    assert torch.equal(keys, -values)
    return [int(x) for x in keys[head, :, 0].tolist()]


@pytest.mark.parametrize("make", STORES)
def test_the_tail_is_what_was_written(make: Make) -> None:
    store = make()
    feed(store, 5)
    feed(store, 2)
    assert (store.length, store.committed) == (7, 0)
    assert held(store) == held(store, 1, 1) == list(range(7))
    assert store.positions(2) == range(5, 7)


@pytest.mark.parametrize("make", STORES)
def test_trim_forgets_the_end_and_another_tail_takes_its_place(make: Make) -> None:
    store = make()
    feed(store, 6)
    store.trim(4)
    assert store.length == 4
    feed(store, 1)
    assert held(store) == [0, 1, 2, 3, 4]
    store.trim(99)
    assert store.length == 5, "there is nothing beyond the end to forget"


@pytest.mark.parametrize("make", [*FULL, streaming, streaming_read_anew])
def test_what_is_committed_cannot_be_trimmed(make: Make) -> None:
    store = make()
    feed(store, 6)
    store.commit()
    feed(store, 3)
    store.trim(6)
    with pytest.raises(TrimBelowCommitted):
        store.trim(5)
    assert held(store) == list(range(6))


@pytest.mark.parametrize("make", FULL)
def test_the_full_store_keeps_all_while_it_grows(make: MakeFull) -> None:
    store = make()
    for _ in range(30):
        feed(store, 37)
        store.commit()
    assert held(store, 1, 1) == list(range(30 * 37))
    assert store.n_bytes == 2 * LAYERS * KV_HEADS * HEAD_DIM * store.capacity * 4


@pytest.mark.parametrize("make", FULL)
def test_the_session_may_cut_a_full_store_anywhere(make: MakeFull) -> None:
    store = make()
    feed(store, 6)
    store.commit()
    store.cut(2)
    assert (store.length, store.committed) == (2, 2)
    feed(store, 1)
    assert held(store) == [0, 1, 2]


@pytest.mark.parametrize("make", FULL)
def test_a_full_store_gives_parts(make: MakeFull) -> None:
    """Of any layer and any stretch: just written, written some passes ago, cut and written again."""
    store = make()
    for n_tokens in (9, 200, 3):
        feed(store, n_tokens)
        store.commit()
    store.cut(207)
    feed(store, 2)
    for start, end in [(0, 0), (0, 5), (9, 12), (3, 209), (205, 208), (207, 209), (209, 209)]:
        for layer in range(LAYERS):
            keys, values = store.keys(layer, start, end), store.values(layer, start, end)
            assert keys.shape == (KV_HEADS, end - start, HEAD_DIM)
            assert torch.equal(keys, -values)
            assert keys[1, :, 2].tolist() == pytest.approx([token(i, layer) for i in range(start, end)])


@pytest.mark.parametrize("make", FULL)
def test_a_full_store_gathers_chunks(make: MakeFull) -> None:
    """Each KV head its own, to the front of buffers that go on behind."""
    store = make()
    feed(store, 50)
    chunks = torch.tensor([[0, 3, 11], [1, 2, 10]])
    for layer in range(LAYERS):
        keys, values = (torch.full((KV_HEADS, 15, HEAD_DIM), 77.0) for _ in range(2))
        store.gather(layer, chunks, 4, keys, values)
        for head in range(KV_HEADS):
            expected = [token(4 * chunk + i, layer) for chunk in chunks[head].tolist() for i in range(4)]
            assert keys[head, :12, 0].tolist() == pytest.approx(expected)
            assert torch.equal(values[head, :12], -keys[head, :12])
        assert bool((keys[:, 12:] == 77).all())
        assert bool((values[:, 12:] == 77).all())


@pytest.mark.parametrize("make", FULL)
def test_memory_that_runs_out_while_it_grows_leaves_a_full_store(
    make: MakeFull, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whichever buffer: what is held is still there, and room is made when there is memory again."""
    owner = MappedStore if make is on_disk else FullStore
    new_buffer, n_left = owner._new_buffer, 0

    def fails(store: Any, old: Tensor, capacity: int) -> Tensor:
        nonlocal n_left
        n_left -= 1
        if n_left < 0:
            raise MemoryError
        return new_buffer(store, old, capacity)

    monkeypatch.setattr(owner, "_new_buffer", fails)
    n_buffers = {full: 4, in_host_memory: 8, partly_in_host_memory: 8, on_disk: 4}[make]
    for n_made in range(n_buffers):
        store, n_left = make(), 99
        feed(store, 6)
        n_left = n_made
        with pytest.raises(MemoryError):
            store.extend(1000)
        n_left = 99
        assert store.length == 6
        assert held(store) == held(store, 1, 1) == list(range(6))
        feed(store, 1)
        feed(store, 1000)
        assert held(store) == held(store, 1, 1) == list(range(1007))


def test_streaming_keeps_sinks_and_window_and_evicts_on_commit_alone() -> None:
    store = StreamingStore(*SHAPE, sinks=2, window=3)
    feed(store, 9)
    assert len(held(store)) == 9
    store.commit()
    assert held(store) == [0, 1, 6, 7, 8]
    feed(store, 2)
    assert store.positions(2) == range(5, 7), "positions are those in the window"
    store.trim(10)
    store.commit()
    assert held(store, 1, 1) == [0, 1, 7, 8, 9]
    assert store.length == 10


def test_streaming_refuses_a_tail_it_has_no_room_for() -> None:
    with pytest.raises(ValueError, match="a tail of 500 tokens"):
        streaming().extend(500)


def queries_for(*positions: int) -> list[Tensor]:
    """Queries that point at the keys of some positions, one per KV head (two query heads each)."""
    return [torch.full((2 * KV_HEADS, len(positions), HEAD_DIM), 1.0) for _ in range(LAYERS)]


def filled(n_tokens: int) -> FullStore:
    store = full()
    feed(store, n_tokens)
    store.commit()
    return store


def retrieval(store: FullStore, budget: int, recent: RecentQueries | None = None, **options: int) -> RetrievalStore:
    return RetrievalStore(store, recent or RecentQueries(), budget, chunk_size=4, scale=0.5, **options)


def test_a_budget_for_the_whole_prompt_holds_the_full_cache() -> None:
    store = filled(50)
    chosen = retrieval(store, budget=50)
    chosen.select(queries_for(1))
    for layer in range(LAYERS):
        for mine, theirs in zip(chosen.read(layer), store.read(layer), strict=True):
            assert torch.equal(mine, theirs)
    assert (chosen.length, chosen.committed) == (50, 50)


def test_first_chunk_newest_tokens_and_a_short_last_chunk_are_always_kept() -> None:
    chosen = retrieval(filled(203), budget=40)
    chosen.select(queries_for(1))
    kept = held(chosen)
    assert kept[:4] == [0, 1, 2, 3]
    assert kept[-7:] == [196, 197, 198, 199, 200, 201, 202]
    assert len(kept) <= 40
    assert kept == sorted(set(kept))
    assert chosen.length == 203


def test_each_kv_head_keeps_the_chunks_its_own_queries_want() -> None:
    """The queries of two heads share each KV head; the two KV heads want different places."""
    store = full()
    store.extend(200)
    for layer in range(LAYERS):
        keys = torch.zeros(KV_HEADS, 200, HEAD_DIM)
        keys[0, 80:84] = 5.0
        keys[1, 120:124] = 5.0
        values = torch.arange(200.0)[None, :, None].expand(KV_HEADS, 200, HEAD_DIM)
        store.write(layer, keys, values)
    store.commit()
    chosen = retrieval(store, budget=24)
    chosen.select(queries_for(1))
    for head, place in ((0, 80), (1, 120)):
        _, values = chosen.read(1)
        assert {place, place + 3} <= set(values[head, :, 0].int().tolist())
        assert 200 - place not in values[head, :, 0].int().tolist()


def test_without_queries_the_newest_are_kept() -> None:
    chosen = retrieval(filled(200), budget=24)
    chosen.select([])
    assert held(chosen)[:4] == [0, 1, 2, 3]
    assert held(chosen)[4:] == list(range(200 - len(held(chosen)) + 4, 200))


def test_commit_takes_accepted_tokens_from_the_full_cache() -> None:
    store = filled(50)
    chosen = retrieval(store, budget=60)
    chosen.select(queries_for(1))
    chosen.extend(3)
    for layer in range(LAYERS):
        chosen.write(layer, torch.full((KV_HEADS, 3, HEAD_DIM), 99.0), torch.full((KV_HEADS, 3, HEAD_DIM), -99.0))
    feed(store, 2)
    store.commit()
    chosen.trim(52)
    chosen.commit()
    assert held(chosen, 1, 1) == list(range(52))
    assert (chosen.length, chosen.committed) == (52, 52)


def test_commit_catches_up_when_it_was_not_fed() -> None:
    """After a round without drafts the full cache is ahead."""
    store = filled(50)
    chosen = retrieval(store, budget=64)
    chosen.select(queries_for(1))
    feed(store, 4)
    store.commit()
    chosen.commit()
    assert held(chosen) == list(range(54))


def test_an_answer_longer_than_the_budget_never_holds_more_than_the_budget() -> None:
    store = filled(203)
    chosen = retrieval(store, budget=40, refresh_every=1000)
    chosen.select(queries_for(1))
    for _ in range(100):
        feed(store, 3)
        store.commit()
        chosen.commit()
        kept = held(chosen)
        assert len(kept) <= 40
        assert kept[-1] == store.length - 1
        assert kept[:4] == [0, 1, 2, 3]


def test_chunks_are_chosen_anew_for_the_newest_queries() -> None:
    """The verify pass's queries decide what is kept from then on."""
    recent = RecentQueries()
    store = full()
    store.extend(200)
    for layer in range(LAYERS):
        keys = torch.zeros(KV_HEADS, 200, HEAD_DIM)
        keys[:, 80:84, 0] = 9.0
        keys[:, 120:124, 1] = 9.0
        values = torch.arange(200.0)[None, :, None].expand(KV_HEADS, 200, HEAD_DIM)
        store.write(layer, keys, values)
    store.commit()
    chosen = retrieval(store, 24, recent, refresh_every=4)

    def look(axis: int) -> None:
        query = torch.zeros(2 * KV_HEADS, 1, HEAD_DIM)
        query[..., axis] = 1.0
        for layer in range(LAYERS):
            recent.observe(layer, 199, query)

    def kept() -> set[int]:
        return set(chosen.read(0)[1][0, :, 0].int().tolist())

    look(0)
    chosen.select(recent.latest())
    assert 80 in kept()
    assert 120 not in kept()
    look(1)
    feed(store, 4)
    store.commit()
    chosen.commit()
    assert 120 in kept()
    assert 80 not in kept()


def test_a_pass_over_the_full_store_chooses_anew_for_its_own_queries() -> None:
    """Of what was committed before it; what is accepted of it is then taken over as ever, and the next passes do not
    choose again."""
    store = full()
    store.extend(200)
    for layer in range(LAYERS):
        keys = torch.zeros(KV_HEADS, 200, HEAD_DIM)
        keys[:, 80:84, 0] = 9.0
        keys[:, 120:124, 1] = 9.0
        keys[:, 160:164] = 1.0  # wanted by all, less
        values = -torch.arange(200.0)[None, :, None].expand(KV_HEADS, 200, HEAD_DIM)
        store.write(layer, keys, values)
    store.commit()
    chosen = retrieval(store, 24, refresh_every=8)

    def look(axis: int) -> list[Tensor]:
        query = torch.zeros(2 * KV_HEADS, 3, HEAD_DIM)
        query[..., axis] = 1.0
        return [query] * LAYERS

    def kept() -> list[int]:
        return [-int(value) for value in chosen.read(0)[1][0, :, 0]]

    def step(axis: int, n_tokens: int, n_accepted: int) -> list[int]:
        feed(store, n_tokens)
        for layer, query in enumerate(look(axis)):
            chosen.observe(layer, store.length - n_tokens, query)
        accepted = store.length - n_tokens + n_accepted
        for each in (store, chosen):
            each.trim(accepted)
            each.commit()
        assert chosen.length == chosen.committed == accepted
        return kept()

    chosen.select(look(0))
    assert {80, 120} & set(kept()) == {80}
    assert {80, 120} & set(step(1, 3, 2)) == {80}, "not due"
    anew = step(1, 6, 3)
    assert {80, 120} & set(anew) == {120}
    assert anew[-5:] == [200, 201, 202, 203, 204]
    assert {80, 120} & set(step(0, 3, 1)) == {120}, "not due again"


@pytest.mark.parametrize("window", [1, 7, 50, 300])
def test_a_sliding_layer_holds_its_newest_tokens(window: int) -> None:
    """Whatever the budget chooses for the others: the window as one piece, up to the drafts, after every commit."""
    store = filled(200)
    chosen = RetrievalStore(store, RecentQueries(), 40, 4, scale=0.5, windows=(None, window))
    chosen.select(queries_for(1))
    for n_tokens in [3] * 60:
        feed(store, n_tokens)
        store.commit()
        feed(chosen, n_tokens + 2)
        chosen.trim(store.length)
        newest = held(chosen, layer=1)
        assert newest == list(range(newest[0], store.length))
        assert len(newest) >= min(window, store.length)
        chosen.commit()
        assert len(held(chosen)) <= 40
        assert chosen.length == store.length


def test_means_follow_a_cut() -> None:
    """After a cut the chunks that are gone leave no trace in the scores."""
    store = filled(200)
    chosen = retrieval(store, budget=24)
    chosen.select(queries_for(1))
    store.cut(101)
    chosen.cut(101)
    feed(store, 60)
    store.commit()
    chosen.select(queries_for(1))
    fresh = retrieval(store, budget=24)
    fresh.select(queries_for(1))
    assert held(chosen) == held(fresh)


def test_recent_queries_of_a_pass_that_broke_off_do_not_count() -> None:
    recent, query = RecentQueries(window=2), torch.ones(1, 3, 2)
    for layer in range(3):
        recent.observe(layer, 0, query)
    recent.observe(0, 3, 2 * query)
    assert [float(layer[0, 0, 0]) for layer in recent.latest()] == [1, 1, 1]
    for layer in range(3):
        recent.observe(layer, 3, 3 * query)
    assert [float(layer[0, 0, 0]) for layer in recent.latest()] == [3, 3, 3]
    assert recent.latest()[0].shape == (1, 2, 2)


def test_answer_queries_forget_rejected_drafts() -> None:
    watched = AnswerQueries(start=10, n_tokens=4)
    watched.observe(0, 8, torch.arange(5.0)[None, :, None].expand(1, 5, 2))  # positions 8 to 12
    watched.observe(0, 11, torch.tensor([7.0, 8.0, 9.0, 9.0])[None, :, None].expand(1, 4, 2))  # 11 to 14
    assert watched.upto(13)[0][0, :, 0].tolist() == [2.0, 7.0, 8.0]
    assert watched.upto(99)[0].shape == (1, 4, 2)
    assert watched.upto(10)[0].shape == (1, 0, 2)
