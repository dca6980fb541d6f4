"""Weights in main memory: whatever the order of copies and layers, the logits are those of weights on the device."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from runtime.config import EngineConfig, Request, Speculation, Wishes
from runtime.engine import Engine, EngineFacts, assemble
from runtime.events import Event, Finished
from runtime.footprint import Pair, buffered_weight_bytes, embedding_bytes, weight_bytes
from runtime.hardware_file import written
from runtime.hierarchy import level_costs
from runtime.kv.copying import Copy, CopyStream, ThreadCopyStream
from runtime.kv.full import FullStore
from runtime.loading import Loaded, find
from runtime.memory import Placed
from runtime.models.decoder import Decoder
from runtime.models.load import Model, load_model, read_facts
from runtime.models.sources import locate
from runtime.pacing import PassCosts
from runtime.passes import measure, pass_costs
from runtime.plan import Plan
from runtime.prefill import block_length
from runtime.session import Session
from runtime.ways import ways
from tests.runtime.copy_streams import Fault, NeverWaits, SlowThread, SteppedStream
from tests.runtime.host_stores import LAYERS, everything, five_layers, in_host, on_device, same
from tests.runtime.machines import machine
from tests.runtime.sessions import GREEDY, HIERARCHY, PLAIN, ask, draft_always, prompt, tiny
from tests.runtime.tiny import KINDS, Kind, random_ids, save_tiny, tiny_decoder

IDS = random_ids(64)
BLOCKS = ((0, 33), (33, 40), (40, 41), (41, 42), (42, 64))  # a prompt, then drafts and single tokens
CPU = torch.device("cpu")


def logits_of(decoder: Decoder, store: FullStore, blocks: tuple[tuple[int, int], ...] = BLOCKS) -> list[Tensor]:
    return [decoder.forward(IDS[start:end], store, n_logits=end - start) for start, end in blocks]


def per_pass(decoder: Decoder) -> int:
    """Bytes of weights in layers, as the plan counts them."""
    return weight_bytes(decoder.spec, decoder.dtype) - embedding_bytes(decoder.spec, decoder.dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_every_family_says_the_same(kind: Kind) -> None:
    """To the bit, with biases, norms and windows: blocks, short passes and single tokens, one after the other."""
    decoder, _ = tiny_decoder(kind)
    streaming = decoder.streaming()
    ours, theirs = on_device(decoder), on_device(decoder)
    assert same(logits_of(streaming, ours), logits_of(decoder, theirs))
    assert same(everything(ours), everything(theirs))
    assert streaming.moved_bytes == len(BLOCKS) * per_pass(decoder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_layers", [1, 2, 3, 5])
def test_any_number_of_layers_passes_through_two_buffers(n_layers: int, dtype: torch.dtype) -> None:
    decoder, _ = tiny_decoder("llama", dtype=dtype, num_hidden_layers=n_layers)
    streaming = decoder.streaming()
    assert same(logits_of(streaming, on_device(decoder)), logits_of(decoder, on_device(decoder)))
    streamed = streaming._streamed
    assert streamed is not None
    assert streaming.carried_bytes == streamed.n_bytes == per_pass(decoder)
    assert streamed.device_bytes == buffered_weight_bytes(decoder.spec, dtype)
    assert (decoder.carried_bytes, decoder.moved_bytes) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_no_copy_races_with_what_is_computed(seed: int) -> None:
    """Each copy runs as late as it may, or some time before, over both kinds of store."""
    decoder = five_layers()
    expected = logits_of(decoder, on_device(decoder))
    for stream in (SteppedStream(seed), SteppedStream()):
        streaming = decoder.streaming(stream)
        assert same(logits_of(streaming, on_device(decoder)), expected)
        assert same(logits_of(streaming, in_host(decoder, stream)), expected)


def test_a_stream_that_is_not_waited_for_is_noticed() -> None:
    """Control."""
    decoder = five_layers()
    assert not same(
        logits_of(decoder.streaming(NeverWaits()), on_device(decoder)), logits_of(decoder, on_device(decoder))
    )


@pytest.mark.parametrize("make", [ThreadCopyStream, lambda: SlowThread(0.004)], ids=["fast copies", "slow copies"])
@pytest.mark.parametrize("layer_seconds", [0.0, 0.004], ids=["fast layers", "slow layers"])
def test_a_thread_copies_beside_the_layers(make: Callable[[], CopyStream], layer_seconds: float) -> None:
    class Slow:
        def observe(self, layer: int, start: int, queries: Tensor) -> None:
            time.sleep(layer_seconds)

    decoder = five_layers()
    streaming = decoder.streaming(make())
    ours, theirs = in_host(decoder, make()), on_device(decoder)
    for start, end in BLOCKS:
        logits = streaming.forward(IDS[start:end], ours, end - start, Slow())
        assert torch.equal(logits, decoder.forward(IDS[start:end], theirs, end - start))


class Noted:
    """Notes which layer is copied and which computed, and when; copies run at once."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def submit(self, copy: Callable[[], None]) -> Copy:
        copy()
        self.noted.append("copy")
        return self

    def wait(self) -> None:
        self.noted.append("wait")

    def drain(self) -> None:
        pass

    def observe(self, layer: int, start: int, queries: Tensor) -> None:
        self.noted.append(f"layer {layer}")


def test_the_next_layers_copy_is_under_way_before_a_layer_is_computed() -> None:
    decoder, noted = five_layers(), Noted()
    decoder.streaming(noted).forward(IDS, on_device(decoder), observer=noted)
    order = ["copy", "copy", "wait", "layer 0", "copy", "wait", "layer 1", "copy", "wait", "layer 2", "copy"]
    assert noted.noted == [*order, "wait", "layer 3", "wait", "layer 4"]


def test_passes_over_several_stores_take_turns() -> None:
    """Also decoders of other rotary embeddings, which share the weights."""
    decoder = five_layers()
    streaming = decoder.streaming(SteppedStream(1))
    again = streaming.with_rope(streaming._ropes)
    ours, theirs = [on_device(decoder) for _ in range(2)], [on_device(decoder) for _ in range(2)]
    for block in BLOCKS:
        for number, model in enumerate((streaming, again)):
            got, expected = (logits_of(*each, (block,)) for each in ((model, ours[number]), (decoder, theirs[number])))
            assert same(got, expected)
    assert streaming.moved_bytes == again.moved_bytes == 2 * len(BLOCKS) * per_pass(decoder)


def test_a_pass_within_a_pass_leaves_both_right() -> None:
    decoder = five_layers()
    streaming = decoder.streaming(SteppedStream(2))
    expected = [[linear.weight.clone() for linear in layer.linears] for layer in decoder._weights.layers]
    layers = streaming._streamed
    assert layers is not None
    for number, layer in enumerate(layers):
        assert same([linear.weight for linear in layer.linears], expected[number])
        if number in (1, 2):
            for inner, other in enumerate(layers):
                assert same([linear.weight for linear in other.linears], expected[inner])


class Breaks:
    """An observer that raises in one layer."""

    def __init__(self, at: int) -> None:
        self._at = at

    def observe(self, layer: int, start: int, queries: Tensor) -> None:
        if layer == self._at:
            raise Fault


@pytest.mark.parametrize("at", range(LAYERS))
@pytest.mark.parametrize("make", [lambda: SteppedStream(), lambda: SteppedStream(3), lambda: SlowThread(0.002)])
def test_after_an_error_in_a_layer_the_next_pass_is_right(make: Callable[[], CopyStream], at: int) -> None:
    decoder = five_layers()
    streaming, store = decoder.streaming(make()), on_device(decoder)
    first = logits_of(streaming, store, BLOCKS[:2])
    before = streaming.moved_bytes
    with pytest.raises(Fault):
        streaming.forward(IDS[40:41], store, observer=Breaks(at))
    begun = min(at + 2, LAYERS)
    assert streaming.moved_bytes - before == begun * per_pass(decoder) // LAYERS
    assert same([*first, *logits_of(streaming, store, BLOCKS[2:])], logits_of(decoder, on_device(decoder)))


def test_a_pass_broken_off_at_any_call_of_the_stream_is_followed_by_a_right_one() -> None:
    decoder = five_layers()
    expected = logits_of(decoder, on_device(decoder))
    counted = SteppedStream(4)
    decoder.streaming(counted).forward(IDS[:33], on_device(decoder))
    assert counted.n_calls == 2 * LAYERS
    for n_left in range(counted.n_calls):
        stream = SteppedStream(4)
        streaming, store = decoder.streaming(stream), on_device(decoder)
        stream.n_left = n_left
        with pytest.raises(Fault):
            streaming.forward(IDS[:33], store)
        assert store.length == 0
        stream.n_left = None
        assert same(logits_of(streaming, store), expected)


def test_what_a_copy_raises_ends_this_pass_and_all_later_ones() -> None:
    decoder, stream = five_layers(), ThreadCopyStream()

    def fails() -> None:
        raise Fault

    streaming = decoder.streaming(stream)
    stream.submit(fails)
    for _ in range(2):
        with pytest.raises(Fault):
            streaming.forward(IDS, on_device(decoder))


def test_a_model_is_loaded_into_main_memory(tmp_path: Path) -> None:
    """Layer by layer; embeddings, head and norms besides, and nothing in a packed form."""
    save_tiny(tmp_path, "qwen2")
    source = locate(str(tmp_path), tmp_path, False, lambda _: None)
    facts, seen = read_facts(source, tmp_path), []
    whole, streamed = (
        load_model(source, facts, torch.bfloat16, CPU, seen.append, stream=stream) for stream in (None, SteppedStream())
    )
    assert len(seen) == 2 * (facts.spec.n_layers + 1)
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]
    assert streamed.decoder.carried_bytes == per_pass(whole.decoder)
    got, expected = (logits_of(model.decoder, on_device(model.decoder)) for model in (streamed, whole))
    assert same(got, expected)


def streaming_model(seed: int = 0, stream: CopyStream | None = None) -> Model:
    model = tiny(seed=seed)
    return replace(model, decoder=model.decoder.streaming(stream))


@pytest.mark.parametrize("speculation", [PLAIN, HIERARCHY], ids=["plain", "drafted"])
def test_an_answer_is_the_same_and_counts_what_it_moved(
    speculation: Speculation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pass moves all weights: blocks of the prompt, rounds over the full cache and over the retrieval cache."""
    draft_always(monkeypatch, has_retrieval=True)
    model, ids, request = streaming_model(), prompt(200), Request(GREEDY, 30, evidence_spans=((0, 90),))
    passes = 0
    run = Decoder.run

    def counted(self: Decoder, *arguments: object) -> Tensor:
        nonlocal passes
        passes += self.carried_bytes > 0
        return run(self, *arguments)  # type: ignore[arg-type]  # handed on as they came

    monkeypatch.setattr(Decoder, "run", counted)
    full = in_host(model.decoder, SteppedStream(5))
    end = ask(Session(model, tiny(seed=1), speculation, 512, full, 1e9), ids, request)
    weights, stats = model.decoder.carried_bytes, end.stats
    assert end.token_ids == ask(Session(tiny(), None, PLAIN, 512), ids, request).token_ids
    assert model.decoder.moved_bytes == passes * weights
    assert stats.to_device_bytes == passes * weights + full.bytes_moved.to_device
    assert stats.from_device_bytes == full.bytes_moved.from_device
    n_blocks = -(-(len(ids) - 1) // block_length(model.spec.n_parameters, CPU, True))
    if speculation is PLAIN:
        assert passes == n_blocks + 30
    assert stats.decode_moved_bytes > (passes - n_blocks) * weights
    assert stats.decode_moved_bytes < (passes - n_blocks) * weights + sum(full.bytes_moved)


def known(model: Model) -> Model:
    """With passes that take 10 ms, and a millisecond more for each 4,096 tokens in the cache."""
    passes = PassCosts(1, 1, (0, 4096), (1, 16), (0.010, 0.010), (0.011, 0.011))
    return replace(model, passes=passes)


def test_a_pass_over_the_retrieval_cache_waits_for_the_weights() -> None:
    """Weights that take 100 ms and a KV cache that takes 300 ms: a retrieval pass costs a quarter of a plain step, a
    draft model's what it did; without weights to wait for it would be the time it takes to compute."""
    model, draft = known(tiny()), known(tiny(seed=1))
    without = level_costs(model, draft, HIERARCHY, 4096, 0.4)
    with_weights = level_costs(model, draft, HIERARCHY, 4096, 0.4, 0.1)
    assert with_weights.retrieval.draft == pytest.approx(0.25)
    assert without.retrieval.draft == pytest.approx(0.010 / 0.4, rel=0.01)
    assert with_weights.model == without.model
    assert with_weights.lookup == without.lookup
    assert with_weights.retrieval.verify(8) == without.retrieval.verify(8) == 1.0
    assert level_costs(tiny(), tiny(), HIERARCHY, 4096, 0.4, 0.1) == level_costs(tiny(), tiny(), HIERARCHY, 4096, 0.4)


def test_a_session_says_what_its_passes_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, ...]] = []

    def noted(*arguments: object) -> object:
        asked.append(arguments[-2:])  # type: ignore[arg-type]
        return level_costs(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("runtime.session.level_costs", noted)
    model = streaming_model()
    full = in_host(model.decoder)
    ask(Session(model, None, HIERARCHY, 512, full, 1e6), prompt(100), Request(GREEDY, 2))
    weights = model.decoder.carried_bytes / 1e6
    ((bus_seconds, weight_seconds),) = asked
    assert weight_seconds == weights
    assert bus_seconds == pytest.approx(weights + full.carried_bytes(100) / 1e6)


def test_passes_of_streamed_weights_are_measured_anew(tmp_path: Path) -> None:
    """With the waits that belong to them, and kept beside those of the same model on the device."""
    decoder = five_layers()
    for model in (decoder, decoder.streaming()):
        pass_costs(model, "a", tmp_path, 1)
    assert len(list((tmp_path / "passes").iterdir())) == 2
    assert measure(decoder.streaming(SlowThread(0.005)), 1).short[0] > 0.005 * LAYERS


def test_passes_that_wait_for_weights_are_not_captured() -> None:
    """They run on addresses that are written anew meanwhile."""
    decoder = five_layers()
    assert (decoder.can_be_captured, decoder.streaming().can_be_captured) == (True, False)


SMALL = Speculation(gamma=4, inner_gamma=2, budget=64, chunk_size=4, sinks=4, window=28)


def config(folder: Path, **options: object) -> EngineConfig:
    values = {"threads": 1, "dtype": "float32", "device": "auto", "context": 2048, "speculation": SMALL} | options
    return EngineConfig(folder / "cache", str(folder / "model"), **values)  # type: ignore[arg-type]


def streamed_way(model: Model) -> Plan:
    found = ways(machine(64, 24), Pair(model.spec), 2048, Wishes(dtype="float32", speculation=SMALL))
    return next(way for way in found if way.streamed.weights)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "model", "llama", max_position_embeddings=2048)
    return tmp_path


def finished(events: Iterator[Event]) -> Finished:
    *_, end = events
    assert isinstance(end, Finished)
    return end


def test_a_plan_with_streamed_weights_runs(folder: Path) -> None:
    """The twin on a processor: two questions, the second over what the first left."""
    plain = assemble(config(folder, device="cpu"), lambda _: None)
    target = plain._loaded.target
    way = streamed_way(target)
    streaming = replace(target, decoder=target.decoder.streaming())
    assert way.streamed.weights == streaming.decoder.carried_bytes
    built = Engine(plain.facts, Loaded(way, streaming), SMALL, lambda *_: None)
    ids = prompt(300)
    for asked in (ids, [*ids, *prompt(40, 1)]):
        ours, theirs = (finished(each.answer(asked, Request(GREEDY, 40), threading.Event())) for each in (built, plain))
        assert ours.token_ids == theirs.token_ids
        assert ours.stats.cached_tokens == theirs.stats.cached_tokens
        assert ours.stats.to_device_bytes > 40 / 5 * way.streamed.weights
        assert theirs.stats.to_device_bytes == 0
    built.close()
    plain.close()


def test_where_memory_runs_out_weights_leave_the_card_before_it_is_given_up(folder: Path) -> None:
    """They go from where they are, and nothing is read again."""
    (folder / "machine.toml").write_text(written(machine(64, 24)), "utf-8")
    loader = find(config(folder, hardware=folder / "machine.toml"), 1, lambda _: None)
    found = {way.name: way for way in ways(machine(64, 24), loader._pair, 2048, loader._config.wishes)}
    on_processor = loader._load(Placed(found["cpu"], None, None), lambda _: None)
    seen: list[object] = []
    second = loader.next(replace(on_processor, plan=found["offload"]), 500, seen.append)
    assert second is not None
    assert second.plan.name == "offload, with weights"
    assert second.target.decoder.carried_bytes == second.plan.streamed.weights
    assert second.target.passes is not None
    assert seen == []
    got, expected = (logits_of(each.target.decoder, on_device(each.target.decoder)) for each in (second, on_processor))
    assert same(got, expected)
    third = loader.next(second, 500, seen.append)
    assert third is not None
    assert (third.plan.name, third.target.decoder.carried_bytes) == ("cpu", 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_card_streamed_weights_answer_as_those_that_lie_there(folder: Path) -> None:
    answers = []
    loader = find(config(folder, device="cuda"), 1, lambda _: None)
    hardware = loader._hardware(None)
    for speculation in (SMALL, PLAIN):
        for way in ways(hardware, loader._pair, 2048, loader._config.wishes)[:3]:
            loaded = loader._load(Placed(way, None, None), lambda _: None)
            built = Engine(described(folder), loaded, speculation, lambda *_: None)
            answers.append(finished(built.answer(prompt(300), Request(GREEDY, 40), threading.Event())))
            built.close()
    assert len({answer.token_ids for answer in answers}) == 1


def described(folder: Path) -> EngineFacts:
    built = assemble(config(folder, device="cpu"), lambda _: None)
    built.close()
    return built.facts
