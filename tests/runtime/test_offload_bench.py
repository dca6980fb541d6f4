"""The bench over an offloaded KV cache: its twin on a processor, what it says moved, what it says of overlap."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runtime.bench import overlap, twin
from runtime.bench.measure import run
from runtime.bench.overlap import Overlap, overlaps
from runtime.bench.plan import Plan
from runtime.bench.runner import Ours
from runtime.bench.twin import PacedStore, twin_session
from runtime.config import EngineConfig, Request, Sampling, Speculation
from runtime.engine import assemble
from runtime.kv.copying import Copy
from runtime.kv.full import BytesMoved
from runtime.session import Session
from tests.runtime.copy_streams import SteppedStream
from tests.runtime.host_stores import everything, five_layers, in_host, on_device, same
from tests.runtime.sessions import GREEDY, PLAIN, ask, prompt, tiny
from tests.runtime.tiny import N_TOKENS, random_ids, save_tiny

PER_TOKEN = 2 * 2 * 16 * 4  # bytes a layer: keys and values of two KV heads of 16 numbers of 4 bytes


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    save_tiny(tmp_path / "model", "llama", vocab_size=N_TOKENS)
    small = Speculation(gamma=4, inner_gamma=2, budget=64, chunk_size=4, sinks=4, window=28)
    return EngineConfig(tmp_path, str(tmp_path / "model"), context=1024, dtype="float32", threads=1, speculation=small)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a card there is no twin")
def test_without_a_card_the_twin_is_measured_and_says_so(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plain decoding moves all that is held each time; rows carry it, and what passes take beside their parts."""
    monkeypatch.setattr(twin, "BUS", 1e9)
    monkeypatch.setattr("runtime.bench.measure.SETTLE_SECONDS", 0.0)
    path = tmp_path / "rows.json"
    plan = Plan(contexts=(400,), tasks=("continue",), n_prompts=1, n_seeds=1, answer_tokens=8, json_path=path)
    run(replace(config, mode="offload"), plan, GREEDY)
    said = capsys.readouterr().out
    rows = {row["system"]: row for row in json.loads(path.read_text("utf-8"))}

    assert "no CUDA GPU here, so this is its twin on the processor" in said
    assert said.count("overlap efficiency") == len(overlap.PASSES)
    held = sum(399 + step for step in range(8))
    assert rows["plain"]["moved_bytes_per_token"] == (held + 8) * 3 * PER_TOKEN / 8
    assert [each["n_tokens"] for each in rows["triforce"]["overlaps"]] == list(overlap.PASSES)
    assert "MB a token" in said


def test_the_twin_says_what_the_device_says(config: EngineConfig) -> None:
    engine = assemble(config, lambda _: None)
    try:
        answers = []
        for new_session in (engine.new_session, lambda n_tokens: twin_session(engine, n_tokens)):
            runner = Ours(new_session, ("plain", "triforce"), config.speculation, 500)
            runner.prefill(prompt(300))
            answers.append([runner.answer(name, prompt(300), Sampling(1.0, seed=2), 60) for name in runner.systems])
            measured = runner.overlaps()
        assert [timed.ids for timed in answers[0]] == [timed.ids for timed in answers[1]]
        assert all(timed.moved_bytes_per_token == 0 for timed in answers[0])
        assert all(timed.moved_bytes_per_token > 0 for timed in answers[1])
        assert len(measured) == len(overlap.PASSES)
    finally:
        engine.close()


class Clock:
    """Time that passes by sleeping alone."""

    def __init__(self) -> None:
        self.now = 5.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("slice_bytes", [1, 4096, 1 << 20])
def test_a_paced_copy_takes_as_long_as_the_bus_would(slice_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte, in slices of any size; and it copies the bits that it should."""
    clock = Clock()
    monkeypatch.setattr(twin, "time", clock)
    monkeypatch.setattr(twin, "SLICE_BYTES", slice_bytes)
    decoder, rate = five_layers(), 1e6
    spec = decoder.spec
    shape = (spec.n_layers, spec.n_kv_heads, spec.head_dim, decoder.dtype, decoder.device)
    paced, plain = PacedStore(*shape, 2, rate), on_device(decoder)
    for n_tokens in (30, 1, 5):
        for store in (paced, plain):
            decoder.forward(random_ids(n_tokens), store)
            store.commit()
    paced.stream.drain()
    assert clock.now - 5.0 == pytest.approx(sum(paced.bytes_moved) / rate)
    assert paced.bytes_moved == BytesMoved((30 + 31) * 3 * PER_TOKEN, 36 * 3 * PER_TOKEN)
    assert same(everything(paced), everything(plain))


class LateStream:
    """Runs each copy at once, when `delay` seconds more have passed."""

    def __init__(self, clock: Clock, delay: float) -> None:
        self._clock, self._delay = clock, delay

    def submit(self, copy: Callable[[], None]) -> Copy:
        self._clock.sleep(self._delay)
        copy()
        return self

    def wait(self) -> None:
        pass

    def drain(self) -> None:
        pass


@pytest.mark.parametrize(("delay", "seconds"), [(0.0, 2.0), (0.5, 2.0), (1.0, 2.0), (1.5, 3.0)])
def test_a_bus_does_not_wait_for_a_thread_that_is_woken_late(
    delay: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies of a second each, one after the other. What is late by more than it takes ends late, and a bus that
    had nothing to do has saved up nothing."""
    clock = Clock()
    monkeypatch.setattr(twin, "time", clock)
    store = PacedStore(1, 1, 4, torch.float32, torch.device("cpu"), 0, rate=10 * 2 * 4 * 4)
    store.stream = LateStream(clock, delay)
    for _ in range(2):
        store.extend(10)
        store.write(0, torch.ones(1, 10, 4), torch.ones(1, 10, 4))
        store.trim(0)

    assert clock.now - 5.0 == pytest.approx(seconds)


def test_efficiency_is_the_longer_part_over_the_whole() -> None:
    assert Overlap.of(1, [(0.9, 0.2, 1.0)]).efficiency == 0.9
    assert Overlap.of(1, [(0.1, 0.2, 0.25)]).efficiency == pytest.approx(0.8)
    assert Overlap.of(1, [(0.5, 0.5, 1.0)]).efficiency == 0.5  # one after the other
    assert Overlap.of(1, [(1, 2, 2), (2, 4, 4), (3, 6, 6)]) == Overlap(1, 2, 4, 4, 1.0)
    drifts = Overlap.of(1, [(1, 1, 1), (1, 2, 2.5), (9, 1, 10), (5, 5, 10), (9, 9, 10)])
    assert drifts == Overlap(1, 5, 2, 10, 0.9)


def test_what_is_measured_leaves_the_session_as_it_was() -> None:
    """Passes of which nothing is copied among them; and they move no more than passes do."""
    model, ids = tiny(), prompt(200)
    stream = SteppedStream()
    session, plain = (Session(model, None, PLAIN, 512, store) for store in (in_host(model.decoder, stream), None))
    request = Request(GREEDY, max_tokens=20)
    ask(session, ids, request), ask(plain, ids, request)
    before, held = session.full.bytes_moved, session.full.length
    assert [each.n_tokens for each in overlaps(session)] == list(overlap.PASSES)
    assert session.full.length == held
    assert session.full.stream is stream  # type: ignore[attr-defined]
    n_passes = 3 * (1 + overlap.REPEATS)
    moved = session.full.bytes_moved.since(before)
    assert moved.to_device == len(overlap.PASSES) * n_passes * held * 3 * PER_TOKEN
    assert ask(session, [*ids, 7], request).token_ids == ask(plain, [*ids, 7], request).token_ids
    assert overlaps(plain) == ()
