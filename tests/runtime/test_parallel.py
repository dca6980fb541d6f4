"""A model shared by several ranks gives what one process gives, and its ranks end together."""

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import torch

from runtime.config import Request, Sampling, Speculation
from runtime.errors import InvalidSetting, RankLost
from runtime.events import Emission
from runtime.models.load import Model
from runtime.models.sources import Source
from runtime.models.spec import read_spec
from runtime.parallel import messages as told
from runtime.parallel.shard import largest, shares
from runtime.parallel.start import Shared
from runtime.session import Session
from tests.runtime.ranks import assert_gone, saved, shared_and_whole
from tests.runtime.sessions import GREEDY, HIERARCHY, PLAIN, ask, draft_always, prompt, tiny
from tests.runtime.tiny import KINDS, Kind, tiny_config

SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=3)
UNEVEN = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 80}
N_TOKENS = 512
ALIKE = {"mistral", "ministral3", "smollm3", "granite"}  # to others as far as their heads and columns are cut

Pair = tuple[Shared, Model]


def sessions(pair: Pair, speculation: Speculation = HIERARCHY, draft: Model | None = None) -> tuple[Session, Session]:
    shared, whole = pair
    return (
        Session(shared.model, draft, speculation, N_TOKENS, stores=shared.stores),
        Session(whole, draft, speculation, N_TOKENS),
    )


def compare_three_turns(pair: Pair, draft: Model | None = None) -> None:
    """Greedy, sampled, and greedy again, each going on from the turn before; both find the same levels worth it."""
    both = sessions(pair, draft=draft)
    ids = prompt(150)
    for turn, sampling in enumerate((GREEDY, SAMPLED, GREEDY)):
        request = Request(sampling, 30, evidence_spans=((0, 150),))
        ours, theirs = (ask(session, ids, request) for session in both)
        assert ours.token_ids == theirs.token_ids
        assert ours.stats.levels == theirs.stats.levels
        assert ours.stats.cached_tokens == theirs.stats.cached_tokens
        assert (ours.stats.cached_tokens > 150) == (turn > 0)
        assert ours.stats.levels[0].proposed > 0
        assert [(span.start, span.end) for span in ours.evidence] == [(s.start, s.end) for s in theirs.evidence]
        weights = [[span.weight for span in answer.evidence] for answer in (ours, theirs)]
        assert weights[0] == pytest.approx(weights[1], rel=1e-3)
        ids = [*ids, *ours.token_ids, *prompt(20, turn + 5)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return saved(tmp_path_factory.mktemp("llama") / "model", "llama")


@pytest.fixture
def pair(llama: Source, tmp_path: Path) -> Iterator[Pair]:
    with shared_and_whole(llama, tmp_path) as pair:
        yield pair


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in ALIKE)) for kind in KINDS])
def test_every_family_answers_as_in_one_process(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, has_retrieval=True)
    with shared_and_whole(saved(tmp_path / "model", kind), tmp_path) as pair:
        compare_three_turns(pair)


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_heads_that_do_not_divide_and_biases_everywhere(
    n_ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three KV heads on two ranks; a bias after a sum counts once."""
    draft_always(monkeypatch, has_retrieval=True)
    source = saved(tmp_path / "model", "llama", attention_bias=True, mlp_bias=True, **UNEVEN)
    with shared_and_whole(source, tmp_path, n_ranks) as pair:
        compare_three_turns(pair)


def test_a_draft_model_is_on_rank_0_alone(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, has_retrieval=True)
    compare_three_turns(pair, draft=tiny(seed=1))


def test_a_rank_that_adds_nothing_is_noticed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with rank 0's sums left out, which the other takes part in all the same, answers differ."""
    total = pair[0].team.total
    for layer in pair[0].model.decoder._weights.layers:
        monkeypatch.setattr(layer.down, "_total", lambda tensor: total(tensor.clone()))
    ours, theirs = (ask(session, prompt(100), Request(GREEDY, 20)) for session in sessions(pair, PLAIN))
    assert ours.token_ids != theirs.token_ids


def test_logits_differ_by_rounding_alone(pair: Pair) -> None:
    ours, theirs = sessions(pair, PLAIN)
    ids = torch.tensor(prompt(100))
    rows = [session.decoder.forward(ids, session._full, n_logits=100) for session in (ours, theirs)]
    torch.testing.assert_close(*rows, rtol=1e-4, atol=1e-4)


def test_kv_in_main_memory_is_shared_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, has_retrieval=True)
    shared, _ = pair
    ours, theirs = sessions(pair)
    ours = Session(shared.model, None, HIERARCHY, N_TOKENS, shared.stores.full(ours.decoder, 1), stores=shared.stores)
    for sampling in (GREEDY, SAMPLED):
        answers = [ask(session, prompt(150), Request(sampling, 30)).token_ids for session in (ours, theirs)]
        assert answers[0] == answers[1]
    assert ours._full.bytes_moved.to_device > 0


def test_stop_in_the_middle_leaves_all_ranks_at_the_same_token(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped while decoding and while prefilling; what was kept is used by the next answer, which is right."""
    draft_always(monkeypatch, has_retrieval=True)
    both = sessions(pair)
    for session in both:
        cancel = threading.Event()
        events = session.answer(prompt(150), Request(GREEDY, 40), cancel, time.perf_counter())
        for event in events:
            if isinstance(event, Emission):
                cancel.set()
        cancel = threading.Event()
        cancel.set()
        assert ask(session, prompt(200, 7), Request(GREEDY, 5), cancel).reason == "cancelled"
    answers = [ask(session, prompt(150), Request(SAMPLED, 40)) for session in both]
    assert answers[0].token_ids == answers[1].token_ids


def test_sessions_side_by_side_and_one_let_go(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, has_retrieval=True)
    first, second = sessions(pair), sessions(pair)
    for number in range(2):
        for both in (first, second):
            answers = [ask(session, prompt(120, number), Request(SAMPLED, 20)) for session in both]
            assert answers[0].token_ids == answers[1].token_ids
    del first, both
    answers = [ask(session, prompt(120, 9), Request(SAMPLED, 20)) for session in second]
    assert answers[0].token_ids == answers[1].token_ids


def test_the_starter_with_an_uneven_split(starter_path: Path, tmp_path: Path) -> None:
    """Nine heads of three KV heads: three on rank 0, six on rank 1; no weight of it is in four-bit groups there."""
    with shared_and_whole(Source("starter", "starter", starter_path), tmp_path) as pair:
        assert (pair[0].model.spec.n_heads, pair[0].model.spec.n_kv_heads) == (3, 1)
        ids = pair[1].tokenizer.encode("The quick brown fox jumps over the lazy dog. " * 12)
        for sampling in (GREEDY, SAMPLED):
            answers = [ask(session, ids, Request(sampling, 16)) for session in sessions(pair)]
            assert answers[0].token_ids == answers[1].token_ids


@pytest.mark.parametrize(("kv_heads", "columns", "n_ranks"), [(8, 14_336, 2), (3, 1536, 2), (5, 80, 4), (4, 96, 4)])
def test_shares_are_even_and_whole(kv_heads: int, columns: int, n_ranks: int) -> None:
    config = {"num_attention_heads": 2 * kv_heads, "num_key_value_heads": kv_heads, "intermediate_size": columns}
    spec = read_spec(tiny_config("llama", hidden_size=16 * kv_heads, **config))
    parts = shares(spec, n_ranks)
    for n_all, ranges in ((kv_heads, [part.kv_heads for part in parts]), (columns, [part.columns for part in parts])):
        assert (ranges[0].start, ranges[-1].stop) == (0, n_all)
        assert all(before.stop == after.start for before, after in pairwise(ranges))
        assert 0 < len(ranges[0]) <= len(ranges[-1])
    assert max(len(part.kv_heads) for part in parts) == -(-kv_heads // n_ranks)
    most = largest(spec, n_ranks)
    assert all(part.spec_of(spec).n_parameters <= most.n_parameters for part in parts)


def test_more_ranks_than_kv_heads_are_refused_before_any_is_started(llama: Source, tmp_path: Path) -> None:
    before = psutil.Process().children()
    with pytest.raises(InvalidSetting) as refused, shared_and_whole(llama, tmp_path, n_ranks=3):
        pass
    assert (refused.value.name, refused.value.value) == ("gpus", 3)
    assert "at most 2" in refused.value.allowed
    assert psutil.Process().children() == before


def test_nothing_listens_or_talks_beyond_this_machine(pair: Pair) -> None:
    shared, _ = pair
    ask(sessions(pair)[0], prompt(50), Request(GREEDY, 2))
    processes = [psutil.Process(), *map(psutil.Process, shared.team.pids)]
    found = [each for process in processes for each in process.net_connections("inet")]
    assert len(found) >= 2  # they do talk
    assert {address.ip for each in found for address in (each.laddr, each.raddr) if address} == {"127.0.0.1"}


def test_a_rank_killed_between_passes_ends_all_with_a_clear_error(pair: Pair) -> None:
    session, _ = sessions(pair)
    children = [psutil.Process(pid) for pid in pair[0].team.pids]
    ask(session, prompt(50), Request(GREEDY, 2))
    children[0].kill()
    for _ in range(2):  # the second time at once
        with pytest.raises(RankLost) as lost:
            ask(session, prompt(60), Request(GREEDY, 2))
        assert (lost.value.rank, lost.value.n_ranks) == (1, 2)
        assert "SIGKILL" in lost.value.reason
    assert_gone(children)


def test_a_rank_killed_while_all_compute_ends_all_with_a_clear_error(tmp_path: Path) -> None:
    """Three ranks, so that one other is left to be ended."""
    source = saved(tmp_path / "model", "llama", **UNEVEN)
    with shared_and_whole(source, tmp_path, n_ranks=3) as pair:
        session, _ = sessions(pair, PLAIN)
        children = [psutil.Process(pid) for pid in pair[0].team.pids]
        events = session.answer(prompt(50), Request(GREEDY, 400), threading.Event(), time.perf_counter())
        next(event for event in events if isinstance(event, Emission))
        threading.Timer(0.05, children[0].kill).start()
        with pytest.raises(RankLost) as lost:
            list(events)
        assert lost.value.rank == 1
        assert "SIGKILL" in lost.value.reason
        assert_gone(children)


def test_an_error_of_a_rank_in_a_pass_reaches_rank_0_with_its_reason(pair: Pair) -> None:
    """The other rank does not know the store; rank 0 waits for its part of a sum."""
    team = pair[0].team
    children = [psutil.Process(pid) for pid in team.pids]
    with pytest.raises(RankLost) as lost, team.together(told.Forward(10_000, 10_000, (), (1,))):
        team.total(torch.ones(4))
    assert lost.value.rank == 1
    assert "KeyError" in lost.value.reason
    assert_gone(children)


def test_an_error_of_rank_0_in_a_pass_ends_all(pair: Pair) -> None:
    """The others wait for a sum that never comes."""
    session, _ = sessions(pair, PLAIN)
    children = [psutil.Process(pid) for pid in pair[0].team.pids]
    with pytest.raises(IndexError):  # an id that no embedding has
        ask(session, [*prompt(50), 100_000, 5], Request(GREEDY, 2))
    assert_gone(children)
    with pytest.raises(RankLost):
        ask(session, prompt(50), Request(GREEDY, 2))
