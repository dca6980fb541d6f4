"""What a draft model reads of a long text: little, and what the target's attention asks for."""

import pytest
import torch

from runtime.drafters.context import MOST_BEHIND, REFRESH_EVERY, DraftContext
from runtime.kv.full import FullStore
from runtime.kv.queries import RecentQueries
from runtime.kv.ranking import ChunkRanking
from runtime.kv.streaming import StreamingStore
from runtime.models.decoder import Decoder
from tests.runtime.tiny import N_TOKENS, random_ids, tiny_decoder

CHUNK, SINKS, WINDOW = 8, 16, 24
LAYERS, KV_HEADS, HEAD_DIM = 2, 2, 4


class Wanted:
    """A ranking that wants certain chunks."""

    chunk_size = CHUNK

    def __init__(self, *chunks: int) -> None:
        self.chunks = chunks
        self.asked: list[int] = []

    def best(self, n_chunks: int, end: int) -> tuple[int, ...]:
        self.asked.append(end)
        assert n_chunks == len(self.chunks) == SINKS // CHUNK
        assert max(self.chunks) < end // CHUNK
        return self.chunks


class Counting:
    """A decoder that counts the tokens it reads."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.device = decoder.device
        self.n_read = 0

    def forward(self, ids: torch.Tensor, store: StreamingStore, n_logits: int) -> None:
        self.n_read += len(ids)
        self._decoder.forward(ids, store, n_logits)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder("llama", vocab_size=N_TOKENS)[0]


def empty(decoder: Decoder) -> StreamingStore:
    spec = decoder.spec
    return StreamingStore(spec.n_layers, spec.n_kv_heads, spec.head_dim, decoder.dtype, decoder.device, SINKS, WINDOW)


def read_as_one_text(decoder: Decoder, ids: list[int]) -> StreamingStore:
    store = empty(decoder)
    decoder.forward(torch.tensor(ids), store, 0)
    return store


def hold_the_same(first: StreamingStore, second: StreamingStore) -> bool:
    pairs = zip(first.read(2), second.read(2), strict=True)
    return all(mine.shape == theirs.shape and torch.allclose(mine, theirs, atol=1e-4) for mine, theirs in pairs)


TEXT = random_ids(3000).tolist()


def test_a_long_text_is_never_read_whole(decoder: Decoder) -> None:
    """Of 3,000 tokens the start and the end are read, as if they were one text."""
    store, model = empty(decoder), Counting(decoder)
    DraftContext(model, store).follow(TEXT, 3000)
    assert model.n_read == SINKS + WINDOW
    assert (store.length, store.committed) == (3000, 3000)
    assert hold_the_same(store, read_as_one_text(decoder, TEXT[:SINKS] + TEXT[-WINDOW:]))


def test_chunks_that_the_target_wants_are_read_in_place_of_the_start(decoder: Decoder) -> None:
    store, model = empty(decoder), Counting(decoder)
    DraftContext(model, store, Wanted(0, 100)).follow(TEXT, 3000)
    assert model.n_read == SINKS + WINDOW
    assert store.length == 3000
    assert hold_the_same(store, read_as_one_text(decoder, TEXT[:8] + TEXT[800:808] + TEXT[-WINDOW:]))
    assert not hold_the_same(store, read_as_one_text(decoder, TEXT[:SINKS] + TEXT[-WINDOW:]))


def test_chunks_are_read_anew_only_when_others_are_wanted(decoder: Decoder) -> None:
    store, model, ranking = empty(decoder), Counting(decoder), Wanted(0, 100)
    context = DraftContext(model, store, ranking)

    def go_on(start: int) -> int:
        """An answer grows by as many tokens as chunks are kept for; gives how many are read the while."""
        before = model.n_read
        for committed in range(start + 1, start + REFRESH_EVERY + 1):
            model.forward(torch.tensor(TEXT[store.length : committed]), store, 0)
            store.commit()
            context.follow(TEXT, committed)
        return model.n_read - before

    context.follow(TEXT, 1000)
    assert go_on(1000) == REFRESH_EVERY
    assert ranking.asked == [1000 - WINDOW, 1000 + REFRESH_EVERY - WINDOW], "asked every so many tokens"
    ranking.chunks = (0, 50)
    assert go_on(1000 + REFRESH_EVERY) == REFRESH_EVERY, "half of the chunks are still wanted"
    ranking.chunks = (40, 50)
    assert go_on(1000 + 2 * REFRESH_EVERY) == REFRESH_EVERY + SINKS + WINDOW
    assert hold_the_same(store, read_as_one_text(decoder, TEXT[320:328] + TEXT[400:408] + TEXT[1168:1192]))


@pytest.mark.parametrize("ranking", [None, Wanted(0, 100)], ids=["streaming", "retrieval"])
@pytest.mark.parametrize("behind", [1, MOST_BEHIND + 1, 10 * WINDOW])
def test_it_catches_up_without_reading_what_would_be_evicted(
    decoder: Decoder, ranking: Wanted | None, behind: int
) -> None:
    store, model = empty(decoder), Counting(decoder)
    context = DraftContext(model, store, ranking)
    context.follow(TEXT, 2000)
    before, model.n_read = store.length, 0
    context.follow(TEXT, 2000 + behind)
    assert 2000 + behind - store.length <= MOST_BEHIND
    assert model.n_read <= SINKS + WINDOW
    assert store.length == (before if behind <= MOST_BEHIND else 2000 + behind)


def test_what_is_uncommitted_is_kept_where_nothing_has_to_be_read(decoder: Decoder) -> None:
    store = empty(decoder)
    context = DraftContext(decoder, store)
    context.follow(TEXT, 2000)
    decoder.forward(torch.tensor(TEXT[2000:2005]), store, 0)
    context.follow(TEXT, 2000)
    assert (store.length, store.committed) == (2005, 2000)


def test_a_text_that_fits_is_read_as_it_is(decoder: Decoder) -> None:
    """Window >= text: nothing is chosen, and the cache is the full cache."""
    store, ranking, n_tokens = empty(decoder), Wanted(0, 1), SINKS + WINDOW
    DraftContext(decoder, store, ranking).follow(TEXT, n_tokens)
    assert ranking.asked == []
    assert hold_the_same(store, read_as_one_text(decoder, TEXT[:n_tokens]))


def filled(*places: tuple[int, int]) -> FullStore:
    """200 tokens whose keys are nought but at some (position, axis), in all layers and heads."""
    store = FullStore(LAYERS, KV_HEADS, HEAD_DIM, torch.float32, torch.device("cpu"))
    store.extend(200)
    keys = torch.zeros(KV_HEADS, 200, HEAD_DIM)
    for position, axis in places:
        keys[:, position, axis] = 50.0
    for layer in range(LAYERS):
        store.write(layer, keys, keys)
    store.commit()
    return store


def look(queries: RecentQueries, axis: int) -> None:
    query = torch.zeros(2 * KV_HEADS, 1, HEAD_DIM)
    query[..., axis] = 1.0
    for layer in range(LAYERS):
        queries.observe(layer, 199, query)


def test_the_target_ranks_chunks_by_its_newest_queries() -> None:
    queries = RecentQueries()
    ranking = ChunkRanking(filled((83, 0), (121, 1)), queries, CHUNK, 0.5)
    look(queries, 0)
    assert ranking.best(2, 200) == (0, 10)
    look(queries, 1)
    assert ranking.best(2, 200) == (0, 15)
    assert ranking.best(2, 120) != (0, 15), "only whole chunks before the end are ranked"
    assert max(ranking.best(3, 127)) < 15


def test_layers_that_see_the_newest_tokens_alone_do_not_vote() -> None:
    queries = RecentQueries()
    ranking = ChunkRanking(filled((83, 0), (121, 1)), queries, CHUNK, 0.5, (16, None))
    for layer, axis in enumerate((0, 1)):
        query = torch.zeros(2 * KV_HEADS, 1, HEAD_DIM)
        query[..., axis] = 1.0
        queries.observe(layer, 199, query)
    assert ranking.best(2, 200) == (0, 15)
    assert ChunkRanking(filled((83, 0)), queries, CHUNK, 0.5, (16, 16)).best(2, 200) == (0, 24)


def test_without_queries_the_newest_chunks_are_best() -> None:
    assert ChunkRanking(filled(), RecentQueries(), CHUNK, 0.5).best(3, 190) == (0, 21, 22)


def test_tokens_that_came_later_are_ranked_too() -> None:
    store, queries = filled(), RecentQueries()
    ranking = ChunkRanking(store, queries, CHUNK, 0.5)
    look(queries, 2)
    ranking.best(2, 200)
    store.extend(20)
    for layer in range(LAYERS):
        keys = torch.zeros(KV_HEADS, 20, HEAD_DIM)
        keys[:, 10, 2] = 50.0
        store.write(layer, keys, keys)
    assert 26 not in ranking.best(2, 200)
    store.commit()
    assert ranking.best(2, 220) == (0, 26)
