"""Memory that runs out, on purpose, at every place where it is taken: the answer is still the whole answer."""

import functools
import gc
import pkgutil
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.config import EngineConfig, Request, Sampling, Speculation, Wishes
from runtime.engine import Engine, assemble
from runtime.errors import MemoryRanOut, OutOfMemory
from runtime.events import Emission, Event, Finished, Notice, Progress
from runtime.footprint import Pair
from runtime.hardware import is_out_of_memory
from runtime.hardware_file import written
from runtime.loading import Loaded, Report, find
from runtime.memory import Placed, plan, worse
from runtime.models.load import Model
from runtime.session import Session
from runtime.ways import ways
from tests.runtime.machines import machine
from tests.runtime.sessions import GREEDY, PLAIN, draft_always, prompt, tiny
from tests.runtime.tiny import save_tiny

SMALL = Speculation(gamma=4, inner_gamma=2, budget=64, chunk_size=4, sinks=4, window=28)
REQUEST = Request(GREEDY, 30, evidence_spans=((0, 90), (90, 190)), logprobs=2)
ERRORS = (
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:125] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:81] DefaultCPUAllocator: not enough memory: you tried to allocate 9"),
)
PLACES = {
    "rotary embedding": "runtime.models.load.Model.rope",
    "full store": "runtime.kv.full.FullStore._new_buffer",
    "activations": "runtime.models.decoder.Decoder._feed_forward",
    "retrieval store": "runtime.kv.retrieval.RetrievalStore.__init__",
    "chunks": "runtime.kv.retrieval.RetrievalStore.select",
    "draft store": "runtime.kv.streaming.StreamingStore.__init__",
    "graphs": "runtime.session.captured_on_gpu",
    "graphs of the draft": "runtime.hierarchy.captured_on_gpu",
    "distributions": "runtime.scorer.probabilities",
    "verification": "runtime.speculation.verify",
    "log-probabilities": "runtime.answer.token_logprobs",
    "evidence": "runtime.stores.attention_used",
}


class Allocations:
    """Counts what is asked for at one place, and raises at the calls chosen; `first` None: at none."""

    def __init__(self, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_calls, self.n_times, self.error = 0, 1, ERRORS[0]
        self.first: int | None = None
        module, _, name = PLACES[place].rpartition(".")
        owner: Any = _resolve(module)
        whole = getattr(owner, name)

        def take(*arguments: Any, **named: Any) -> Any:
            self.n_calls += 1
            if self.first is not None and self.first <= self.n_calls - 1 < self.first + self.n_times:
                raise type(self.error)(*self.error.args)  # one that is kept would keep the frames it went through
            return whole(*arguments, **named)

        monkeypatch.setattr(owner, name, take)

    def fail(self, first: int, n_times: int, error: BaseException = ERRORS[0]) -> None:
        """From call `first` on (from 0, counted anew), so many times."""
        self.n_calls, self.first, self.n_times, self.error = 0, first, n_times, error


def _resolve(path: str) -> Any:
    return pkgutil.resolve_name(path)


@pytest.fixture(autouse=True)
def _drafting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    draft_always(monkeypatch, has_retrieval=True)
    yield
    torch.set_num_threads(threads)


class Ways:
    """The twin on a processor of a card's ways: gpu, offload, cpu, over the same weights."""

    def __init__(self) -> None:
        self.loaded = 0
        target, draft = model(0), model(1)
        found = ways(machine(64, 24), Pair(target.spec), 2048, Wishes(speculation=SMALL))
        plans = {way.mode: way for way in reversed(found)}
        self.plans = [plans["gpu"], replace(plans["offload"], layers_on_gpu=1), plans["cpu"]]
        self.first = Loaded(self.plans[0], target, draft)

    def next(self, loaded: Loaded, n_tokens: int, progress: Report) -> Loaded | None:
        behind = self.plans[self.plans.index(loaded.plan) + 1 :]
        if not behind:
            return None
        self.loaded += 1
        return replace(loaded, plan=behind[0])


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("facts")
    save_tiny(folder / "model", "llama")
    built = assemble(config(folder), lambda _: None)
    built.close()
    return built.facts


def config(folder: Path, **options: Any) -> EngineConfig:
    values = {"threads": 1, "dtype": "float32", "device": "auto", "context": 2048, "speculation": SMALL} | options
    return EngineConfig(folder / "cache", str(folder / "model"), **values)


@pytest.fixture
def engine(facts: Any) -> Iterator[Engine]:
    chain = Ways()
    built = Engine(replace(facts, mode="gpu"), chain.first, SMALL, chain.next)
    yield built
    built.close()


def events_of(engine: Engine, ids: list[int], request: Request = REQUEST) -> list[Event]:
    return list(engine.answer(ids, request, threading.Event()))


def ended(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


@functools.cache
def model(seed: int) -> Model:
    return tiny(seed=seed)


@functools.cache
def plainly_of(ids: tuple[int, ...], request: Request) -> Finished:
    *_, end = Session(model(0), None, PLAIN, 512).answer(ids, request, threading.Event(), time.perf_counter())
    assert isinstance(end, Finished)
    return end


def plainly(ids: list[int], request: Request = REQUEST) -> Finished:
    """What plain decoding of an untroubled session says."""
    return plainly_of(tuple(ids), request)


def notices(events: list[Event]) -> list[str]:
    return [event.sentence for event in events if isinstance(event, Notice)]


def assert_whole(events: list[Event], ids: list[int], request: Request = REQUEST) -> None:
    """The answer is plain decoding's; what was streamed is it, once; its counters add up."""
    end, expected = ended(events), plainly(ids, request)
    assert (end.token_ids, end.text, end.reason) == (expected.token_ids, expected.text, expected.reason)
    emissions = [event for event in events if isinstance(event, Emission)]
    assert "".join(event.text for event in emissions) == end.text
    assert tuple(token for event in emissions for token in event.token_ids) == end.token_ids
    assert sum(len(event.logprobs) for event in emissions) == len(end.token_ids)
    assert len(end.evidence) == len(expected.evidence)
    for span, other in zip(end.evidence, expected.evidence, strict=True):
        assert (span.start, span.end) == (other.start, other.end)
        assert span.weight == pytest.approx(other.weight, rel=1e-4)
    stats = end.stats
    assert stats.prompt_tokens == stats.cached_tokens + stats.new_tokens == len(ids)
    assert stats.decode_tokens == len(end.token_ids)
    level = stats.levels[0]
    assert len({level.name for level in stats.levels}) == len(stats.levels)
    assert level.accepted + level.rounds >= stats.decode_tokens


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("n_times", [1, 2, 4])
def test_an_answer_survives_wherever_memory_runs_out(
    place: str, n_times: int, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: in the same mode. Twice in a row: in the next. Four times: in the one behind that."""
    ids = prompt(200)
    allocations = Allocations(place, monkeypatch)
    events_of(engine, ids)
    n_calls = allocations.n_calls
    assert n_calls > 0, "the place is passed"
    starts = {1: (0, n_calls - 1), 2: (n_calls // 2, n_calls - 1), 4: (0, n_calls // 2)}[n_times]
    for number, first in enumerate(sorted(set(starts))):
        chain = Ways()
        built = Engine(replace(engine.facts, mode="gpu"), chain.first, SMALL, chain.next)
        allocations.fail(first, n_times, ERRORS[(number + n_times) % len(ERRORS)])
        events = events_of(built, ids)
        allocations.first = None
        assert_whole(events, ids)
        modes = ["gpu", "offload", "cpu"]
        assert (chain.loaded, built.facts.mode) == (n_times // 2, modes[n_times // 2])
        assert len(notices(events)) == n_times // 2
        more = [*ids, *ended(events).token_ids, *prompt(9, 3)]
        follow_up = replace(REQUEST, evidence_spans=())
        again = events_of(built, more, follow_up)
        assert ended(again).stats.cached_tokens >= len(more) - 10
        assert notices(again) == []
        assert_whole(again, more, follow_up)
        built.close()


def test_the_person_is_told_with_numbers_and_the_mode_changes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    allocations = Allocations("verification", monkeypatch)
    allocations.fail(3, 2)
    events = events_of(engine, prompt(200))
    (said,) = notices(events)
    at = events.index(Notice(said))
    n_before = sum(len(event.token_ids) for event in events[:at] if isinstance(event, Emission))
    assert n_before > 0
    assert f"Memory ran out in mode gpu after {n_before} tokens of this answer, so it went on in mode offload" in said
    assert "\n" not in said
    assert engine.facts.mode == "offload"
    assert engine.facts.mode_reason.startswith("Memory ran out before (gpu). ")
    assert isinstance(events[at + 1], Progress)


def test_where_no_mode_is_left_the_next_smaller_question_is_answered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was said before is told, and kept neither twice nor half."""
    ids = prompt(200)
    expected = plainly(ids).token_ids
    allocations = Allocations("verification", monkeypatch)
    allocations.fail(3, 10_000)
    emitted: list[int] = []
    events = engine.answer(ids, REQUEST, threading.Event())
    seen = (event.token_ids for event in events if isinstance(event, Emission))
    with pytest.raises(MemoryRanOut) as refused:
        emitted.extend(token for tokens in seen for token in tokens)
    assert (refused.value.n_tokens, refused.value.mode) == (230, "cpu")
    assert tuple(emitted) == expected[: len(emitted)]
    assert emitted
    allocations.first = None
    small = replace(REQUEST, evidence_spans=())
    assert_whole(events_of(engine, prompt(50, 4), small), prompt(50, 4), small)
    assert engine._worker.is_alive()


def test_kept_documents_are_let_go_before_the_mode_is(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = prompt(200, 1), prompt(220, 2)
    events_of(engine, first)
    allocations = Allocations("activations", monkeypatch)
    allocations.fail(40, 1)
    assert_whole(events_of(engine, second), second)
    assert engine.facts.mode == "gpu"
    assert len(engine._sessions) == 1
    assert ended(events_of(engine, [*second, 7])).stats.cached_tokens == 220
    assert ended(events_of(engine, [*first, 7])).stats.cached_tokens == 0


@pytest.mark.parametrize("n_times", [1, 2])
@pytest.mark.parametrize("sampling", [Sampling(1.0, seed=5), Sampling(0.8, seed=6, repetition_penalty=1.3)])
def test_numbers_drawn_once_are_not_drawn_again(
    sampling: Sampling, n_times: int, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain decoding draws one number a token. Where a pass fails none is drawn, so the seed's answer stays what it is;
    it would not if the numbers, or the counts of what was said, began anew."""
    ids, request = prompt(200), Request(sampling, 30)
    expected = plainly(ids, request).token_ids
    chain = Ways()
    built = Engine(engine.facts, replace(chain.first, draft=None), PLAIN, chain.next)
    allocations = Allocations("distributions", monkeypatch)
    allocations.fail(11, n_times)
    events = events_of(built, ids, request)
    assert len(notices(events)) == n_times // 2
    assert ended(events).token_ids == expected
    again = Engine(engine.facts, replace(chain.first, draft=None), PLAIN, chain.next)
    restarted = events_of(again, [*ids, *expected[:11]], request)
    assert ended(restarted).token_ids[:19] != expected[11:], "the control: numbers that begin anew"
    built.close()
    again.close()


def test_other_errors_are_no_lack_of_memory(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    allocations = Allocations("verification", monkeypatch)
    allocations.fail(2, 1, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        events_of(engine, prompt(200))
    assert engine.facts.mode == "gpu"
    assert [is_out_of_memory(error) for error in ERRORS] == [True] * 4


def test_nothing_of_a_mode_that_was_left_stays(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its sessions nor threads of theirs."""
    seen: list[weakref.ref[Session]] = []
    made = Session.__init__

    def note(session: Session, *arguments: Any) -> None:
        seen.append(weakref.ref(session))
        made(session, *arguments)

    monkeypatch.setattr(Session, "__init__", note)
    allocations = Allocations("activations", monkeypatch)
    allocations.fail(60, 4)
    before = threading.active_count()
    events_of(engine, prompt(200))
    gc.collect()
    assert [session() is not None for session in seen] == [False, False, True]
    assert threading.active_count() <= before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "model", "llama")
    save_tiny(tmp_path / "draft", "llama", seed=1, num_hidden_layers=1)
    (tmp_path / "machine.toml").write_text(written(machine(64, 24)), "utf-8")
    return tmp_path


def on_a_card(folder: Path, **options: Any) -> tuple[Any, Loaded]:
    """A loader on a machine with a card, and its models as if they lay there."""
    loader = find(config(folder, hardware=folder / "machine.toml", **options), 1, lambda _: None)
    found = plan(machine(64, 24), Pair(loader.target.facts.spec), 2048, Wishes(dtype="float32", speculation=SMALL))
    beside = Placed(replace(found, mode="cpu", dtype=torch.float32), None, None)
    return loader, replace(loader._load(beside, lambda _: None), plan=found)


def test_weights_are_loaded_anew_only_where_they_must_lie_elsewhere(folder: Path) -> None:
    """From the card to the card they stay, then go to main memory as they are, but for the draft's; for the processor
    they are read again, with the draft's."""
    loader, loaded = on_a_card(folder, draft_model=str(folder / "draft"))
    seen: list[Progress] = []
    second = loader.next(loaded, 500, seen.append)
    assert (second.plan.mode, second.target, second.draft, seen) == ("offload", loaded.target, loaded.draft, [])
    third = loader.next(second, 500, seen.append)
    assert (third.plan.name, third.draft, seen) == ("offload, with weights", loaded.draft, [])
    assert third.target.decoder.carried_bytes == third.plan.streamed.weights
    last = loader.next(third, 500, seen.append)
    assert last.plan.mode == "cpu"
    assert (last.target.decoder.carried_bytes, last.draft is loaded.draft) == (0, False)
    assert {event.stage for event in seen} == {"load"}
    seen.clear()
    on_disk = loader.next(last, 500, seen.append)
    assert (on_disk.plan.is_on_disk, on_disk.target, on_disk.draft, seen) == (True, last.target, last.draft, [])
    assert loader.next(on_disk, 500, seen.append) is None


def test_a_mode_that_was_asked_for_is_not_left(folder: Path) -> None:
    loader, loaded = on_a_card(folder, mode="gpu")
    assert loader.next(loaded, 500, lambda _: None) is None


def test_ways_behind_one_fit_and_are_as_wished(folder: Path) -> None:
    pair = Pair(model(0).spec)
    failed = ways(machine(64, 24), pair, 500, Wishes())[0]
    names = ["offload", "offload, with weights", "cpu", "cpu, with the KV cache on disk"]
    assert [way.name for way in worse(machine(64, 24), pair, 500, Wishes(), failed)] == names
    assert [way.name for way in worse(machine(64, 24, disk_gib=0), pair, 500, Wishes(), failed)] == names[:3]
    assert worse(replace(machine(64, 24), ram_free_bytes=0), pair, 500, Wishes(), failed) == ()
    assert [way.name for way in worse(machine(64, 24), pair, 500, Wishes(device="cuda"), failed)] == names[:2]


def test_weights_that_find_no_memory_are_an_error_with_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded at the start, and in the midst of an answer, where the models there are stay."""

    def fails(*_: Any) -> Any:
        raise MemoryError

    loader, loaded = on_a_card(folder)
    second = loader.next(loaded, 500, lambda _: None)
    monkeypatch.setattr("runtime.loading.load_model", fails)
    monkeypatch.setattr("runtime.models.streamed.StreamedLayers._allocate", fails)
    assert loader.next(second, 500, lambda _: None) is None
    with pytest.raises(OutOfMemory) as refused:
        assemble(config(folder, device="cpu"), lambda _: None)
    assert refused.value.needed_bytes > 0
