"""Answers from one session: exact against plain decoding, prefilled once, left intact by any end."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from runtime.config import LONGEST_DRAFT, DraftCacheChoice, Request, Sampling, Speculation
from runtime.errors import InvalidSetting
from runtime.events import Emission, Event, Finished, Progress
from runtime.models.attention import attend_on_cpu
from runtime.models.load import Model
from runtime.pacing import Costs
from runtime.session import Session
from runtime.stats import LevelStats
from runtime.tokenizer import Tokenizer
from tests.runtime.sessions import GREEDY, HIERARCHY, PLAIN, ask, draft_always, prompt, tiny
from tests.runtime.tiny import KINDS, N_TOKENS, Kind, tiny_backend, tiny_decoder


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _cheap_drafts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The retrieval level is worthwhile however small the model and the prompt, unless a test says otherwise."""
    if "real_costs" not in request.fixturenames:
        monkeypatch.setattr("runtime.hierarchy.retrieval_costs", lambda *_: Costs(0.05, 0.01))


@pytest.fixture
def real_costs() -> None:
    """Costs follow from sizes, as for a person."""


def levels(end: Finished) -> dict[str, LevelStats]:
    return {level.name: level for level in end.stats.levels}


@pytest.mark.parametrize("kind", KINDS)
def test_speculative_greedy_equals_plain_greedy(kind: Kind) -> None:
    """Token for token in float32, with the retrieval level in between, for an answer longer than the budget."""
    model, ids = tiny(kind), prompt(200)
    request = Request(GREEDY, max_tokens=120)
    plain = ask(Session(model, None, PLAIN, 512), ids, request)
    fast = ask(Session(model, None, HIERARCHY, 512), ids, request)
    assert fast.token_ids == plain.token_ids
    assert list(levels(fast)) == ["full", "lookup", "retrieval"]
    assert fast.stats.levels[0].proposed > 0


@pytest.mark.parametrize("draft_cache", ["streaming", "retrieval"])
@pytest.mark.parametrize("has_retrieval", [True, False])
def test_a_draft_model_over_a_small_cache_changes_no_token(
    has_retrieval: bool, draft_cache: DraftCacheChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft_always(monkeypatch, has_retrieval)
    model, ids = tiny(), prompt(200)
    request = Request(GREEDY, max_tokens=60)
    plain = ask(Session(model, None, PLAIN, 512), ids, request)
    fast = ask(Session(model, tiny(seed=1), replace(HIERARCHY, draft_cache=draft_cache), 512), ids, request)
    assert fast.token_ids == plain.token_ids
    assert fast.stats.levels[0].proposed > 60
    assert set(levels(fast)) == {"full", "lookup", "model"} | ({"retrieval"} if has_retrieval else set())


def test_the_target_as_its_own_draft_is_always_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Window >= sequence and draft = target: every round emits gamma + 1."""
    draft_always(monkeypatch, has_retrieval=False)
    model = tiny()
    speculation = Speculation(gamma=3, budget=4000, sinks=4, window=600, drafter="model")
    end = ask(Session(model, model, speculation, 512), prompt(100), Request(GREEDY, max_tokens=41))
    level, model = end.stats.levels
    assert model.proposed == level.proposed
    assert level.accepted == level.proposed == 3 * level.rounds


@pytest.mark.parametrize("kind", ["llama", "ministral", "gemma3_text"])
def test_with_room_for_everything_every_retrieval_draft_is_accepted(kind: Kind) -> None:
    """Budget >= sequence: the retrieval cache is the full cache."""
    speculation = Speculation(gamma=4, inner_gamma=2, budget=400, chunk_size=4, drafter="none")
    end = ask(Session(tiny(kind), None, speculation, 512), prompt(200), Request(GREEDY, max_tokens=80))
    full = levels(end)["full"]
    assert full.proposed > 60
    assert full.accepted == full.proposed


def test_a_short_prompt_needs_no_retrieval_level(real_costs: None) -> None:
    end = ask(Session(tiny(), None, HIERARCHY, 512), prompt(60), Request(GREEDY, max_tokens=8))
    assert [level.name for level in end.stats.levels] == ["full", "lookup"]


def test_a_seed_fixes_a_sampled_answer() -> None:
    model, ids = tiny(), prompt(200)
    request = Request(Sampling(1.0, seed=11), max_tokens=40)
    first, second = (ask(Session(model, None, HIERARCHY, 512), ids, request) for _ in range(2))
    other = ask(Session(model, None, HIERARCHY, 512), ids, Request(Sampling(1.0, seed=12), max_tokens=40))
    assert first.token_ids == second.token_ids != other.token_ids


OPTIONS = [
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.8},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 1.0},
    {"frequency_penalty": -0.2, "presence_penalty": 0.5, "repetition_penalty": 1.1},
    {"logit_bias": ((40, 6.0), (41, -100.0)), "frequency_penalty": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_sampling_options_keep_greedy_speculation_on_the_plain_path(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each option picks what plain decoding picks, whatever was said before, and differs from doing without."""
    draft_always(monkeypatch, has_retrieval=True)
    model, ids = tiny(), prompt(200)
    request = Request(Sampling(0, **options), max_tokens=60)
    plain = ask(Session(model, None, PLAIN, 512), ids, request)
    assert ask(Session(model, None, HIERARCHY, 512), ids, request).token_ids == plain.token_ids
    assert plain.token_ids != ask(Session(model, None, PLAIN, 512), ids, Request(GREEDY, 60)).token_ids


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_level_counts_the_same_history(
    options: dict[str, Any], temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target as its own draft, and a retrieval cache with room for everything: all is accepted."""
    draft_always(monkeypatch, has_retrieval=True)
    model = tiny()
    speculation = Speculation(gamma=4, inner_gamma=2, budget=400, chunk_size=4, sinks=4, window=400, drafter="model")
    request = Request(Sampling(temperature, seed=3, **options), max_tokens=41)
    end = ask(Session(model, model, speculation, 512), prompt(100), request)
    full, retrieval = levels(end)["full"], levels(end)["retrieval"]
    # A coin of this seed falls between q and a p that rounding made smaller about once in a million tokens.
    assert (full.proposed, retrieval.proposed) == (4 * full.rounds, 2 * full.rounds)
    assert (full.accepted, retrieval.accepted) == (full.proposed, retrieval.proposed)


def test_a_biased_token_that_the_model_does_not_have_is_refused() -> None:
    session, known = Session(tiny(), None, PLAIN, 512), Sampling(0, logit_bias=((N_TOKENS - 1, 100.0),))
    assert set(ask(session, prompt(50), Request(known, 3)).token_ids) == {N_TOKENS - 1}
    with pytest.raises(InvalidSetting, match="logit-bias"):
        ask(session, prompt(50), Request(Sampling(logit_bias=((N_TOKENS, 1.0),))))


def test_a_follow_up_prefills_its_own_tokens_alone() -> None:
    session = Session(tiny(), None, HIERARCHY, 512)
    first = ask(session, ids := prompt(200), Request(GREEDY, max_tokens=20))
    follow_up = [*ids, *first.token_ids, *prompt(30, seed=3)]
    second = ask(session, follow_up, Request(GREEDY, max_tokens=20))
    # The last token of the answer has not been through the model yet.
    assert second.stats.cached_tokens >= 200 + len(first.token_ids) - 1
    assert second.stats.new_tokens == len(follow_up) - second.stats.cached_tokens <= 31
    fresh = ask(Session(tiny(), None, PLAIN, 512), follow_up, Request(GREEDY, max_tokens=20))
    assert second.token_ids == fresh.token_ids


def test_another_question_about_the_same_document_keeps_the_document() -> None:
    session, document = Session(tiny(), None, HIERARCHY, 512), prompt(200)
    ask(session, [*document, *prompt(25, 1)], Request(GREEDY, max_tokens=30))
    second = ask(session, [*document, *prompt(25, 2)], Request(GREEDY, max_tokens=30))
    assert second.stats.cached_tokens >= 200
    fresh = ask(Session(tiny(), None, PLAIN, 512), [*document, *prompt(25, 2)], Request(GREEDY, max_tokens=30))
    assert second.token_ids == fresh.token_ids


def test_the_same_prompt_again_computes_one_token() -> None:
    session, ids = Session(tiny(), None, HIERARCHY, 512), prompt(100)
    first = ask(session, ids, Request(GREEDY, max_tokens=10))
    second = ask(session, ids, Request(GREEDY, max_tokens=10))
    assert (second.stats.cached_tokens, second.stats.new_tokens) == (99, 1)
    assert second.token_ids == first.token_ids


def test_stop_during_prefill_keeps_what_was_prefilled() -> None:
    session, ids, cancel = Session(tiny(), None, HIERARCHY, 2048), prompt(1500), threading.Event()
    seen: list[Event] = []
    for event in session.answer(ids, Request(GREEDY, max_tokens=5), cancel, time.perf_counter()):
        seen.append(event)
        if isinstance(event, Progress) and event.done:
            cancel.set()
    end = seen[-1]
    assert isinstance(end, Finished)
    assert (end.reason, end.token_ids, end.text) == ("cancelled", (), "")
    done = max(event.done for event in seen if isinstance(event, Progress))
    assert 0 < done < 1500
    assert ask(session, ids, Request(GREEDY, max_tokens=5)).stats.cached_tokens == done


def test_stop_while_answering_ends_within_one_round() -> None:
    session, cancel = Session(tiny(), None, HIERARCHY, 512), threading.Event()
    emissions = 0
    for event in session.answer(prompt(200), Request(GREEDY, max_tokens=300), cancel, time.perf_counter()):
        if isinstance(event, Emission) and event.token_ids:
            emissions += 1
            if emissions == 2:
                cancel.set()
    assert emissions == 2
    assert isinstance(event, Finished)
    assert event.reason == "cancelled"
    assert len(event.token_ids) == event.stats.decode_tokens > 0


def test_progress_counts_new_tokens_up_to_all_of_them() -> None:
    session = Session(tiny(), None, HIERARCHY, 2048)
    events = list(session.answer(prompt(1200), Request(GREEDY, max_tokens=2), threading.Event(), time.perf_counter()))
    progress = [event for event in events if isinstance(event, Progress)]
    assert [event.done for event in progress] == [0, 1024, 1199]
    assert {event.total for event in progress} == {1199}
    assert progress[0].seconds_left is None
    assert progress[-1].seconds_left == 0


@pytest.mark.parametrize("speculation", [PLAIN, HIERARCHY])
def test_a_stop_string_ends_the_answer_and_is_not_shown(speculation: Speculation) -> None:
    model, ids = tiny(), prompt(200)
    whole = ask(Session(model, None, PLAIN, 512), ids, Request(GREEDY, max_tokens=60))
    word = whole.text[20:23]
    end = ask(Session(model, None, speculation, 512), ids, Request(GREEDY, max_tokens=60, stop=(word,)))
    assert end.reason == "stop"
    assert end.text == whole.text[: whole.text.index(word)]


def test_emitted_text_and_ids_add_up_to_the_answer() -> None:
    session = Session(tiny(), None, HIERARCHY, 512)
    events = list(session.answer(prompt(200), Request(GREEDY, max_tokens=50), threading.Event(), time.perf_counter()))
    emissions, end = [event for event in events if isinstance(event, Emission)], events[-1]
    assert isinstance(end, Finished)
    assert "".join(event.text for event in emissions) == end.text
    assert tuple(i for event in emissions for i in event.token_ids) == end.token_ids
    assert end.reason == "length"
    assert len(end.token_ids) == 50


def test_log_probabilities_are_the_models_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every emitted token, by transformers' forward pass over prompt and answer; without a wish there are none."""
    draft_always(monkeypatch, has_retrieval=True)
    decoder, oracle = tiny_decoder("llama", attend=attend_on_cpu, vocab_size=N_TOKENS)
    session = Session(Model(decoder, oracle.config, Tokenizer(tiny_backend())), None, HIERARCHY, 512)
    ids, sampling = prompt(150), Sampling(0.8, seed=4, repetition_penalty=1.3)
    events = list(session.answer(ids, Request(sampling, 40, logprobs=3), threading.Event(), time.perf_counter()))
    found = [each for event in events if isinstance(event, Emission) for each in event.logprobs]
    end = events[-1]
    assert isinstance(end, Finished)
    with torch.no_grad():
        expected = oracle(torch.tensor([[*ids, *end.token_ids]])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
    rows = zip(expected, end.token_ids, strict=True)
    assert [each.logprob for each in found] == pytest.approx([float(row[i]) for row, i in rows], abs=1e-4)
    best, best_ids = expected.topk(3)
    assert [[i for i, _ in each.top] for each in found] == best_ids.tolist()
    torch.testing.assert_close(torch.tensor([[x for _, x in each.top] for each in found]), best, atol=1e-4, rtol=0)
    silent = session.answer(ids, Request(sampling, 5), threading.Event(), time.perf_counter())
    assert not any(event.logprobs for event in silent if isinstance(event, Emission))


def test_levels_count_what_they_emitted() -> None:
    """Tokens of a level = accepted + one a round, before what the end cuts off."""
    end = ask(Session(tiny(), None, HIERARCHY, 512), prompt(200), Request(GREEDY, max_tokens=50))
    full, lookup, retrieval = (levels(end)[name] for name in ("full", "lookup", "retrieval"))
    assert 50 <= full.accepted + full.rounds <= 50 + LONGEST_DRAFT
    assert retrieval.accepted + retrieval.rounds <= full.proposed  # lookup drafts for the full cache too
    assert lookup.accepted >= retrieval.accepted
    assert lookup.proposed >= retrieval.proposed


def test_evidence_lies_within_the_spans_asked_for() -> None:
    ids = prompt(200)
    request = Request(GREEDY, max_tokens=30, evidence_spans=((20, 60), (100, 150)))
    end = ask(Session(tiny(), None, HIERARCHY, 512), ids, request)
    assert all(20 <= span.start < span.end <= 60 or 100 <= span.start < span.end <= 150 for span in end.evidence)
    assert all(span.weight >= 0.3 for span in end.evidence)
    assert ask(Session(tiny(), None, HIERARCHY, 512), ids, Request(GREEDY, max_tokens=30)).evidence == ()


def test_a_prompt_beyond_the_trained_context_is_answered_with_yarn() -> None:
    model, ids = tiny(), prompt(900)
    request = Request(GREEDY, max_tokens=20)
    stretched = ask(Session(model, None, PLAIN, 1024), ids, request)
    assert stretched.token_ids != ask(Session(model, None, PLAIN, 512), ids, request).token_ids
    assert stretched.token_ids == ask(Session(model, None, HIERARCHY, 1024), ids, request).token_ids
