"""A model's shape, measured without its weights: what is allocated, run and said. No time is tested."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runtime.bench import shape_times
from runtime.bench.geometry import measure_geometry, shapes_to_measure
from runtime.bench.roofline import Roofline
from runtime.bench.shape import Noise, fill, random_weights, rope_of
from runtime.bench.shape_rows import Copied, Timed, Times, describe, record
from runtime.bench.shape_times import PASSES, PausableStream, Shape, measure_shape
from runtime.catalogue import load_catalogue
from runtime.config import EngineConfig, Speculation, Wishes
from runtime.errors import HardwareRefused, InvalidSetting, NoSuchDevice, OutOfMemory
from runtime.footprint import Pair, embedding_bytes, weight_bytes
from runtime.hardware_file import written
from runtime.kv.copying import ThreadCopyStream
from runtime.kv.full import FullStore
from runtime.kv.host import HostStore
from runtime.models.attention import attend_plainly
from runtime.models.decoder import Decoder
from runtime.models.linear import Linear
from runtime.models.packed import can_pack
from runtime.models.spec import read_spec
from runtime.plan import Plan
from runtime.predictions import Streamed
from runtime.rates import Rates
from runtime.ways import ways
from tests.runtime.machines import GIB, machine
from tests.runtime.tiny import tiny_config

CPU = torch.device("cpu")
ENTRIES = {entry.id: entry for entry in load_catalogue()}
LARGE, SMALL = ENTRIES["meta-llama/Llama-3.1-8B-Instruct"], "JackFram/llama-68m"
TINY = replace(read_spec(tiny_config("llama")), n_layers=6)
SPECULATION = Speculation(budget=64)
RATES = Rates(host_to_device=25 * 10**9, memory=10**12, flops=10**14)


def tiny_way(context: int = 256) -> Plan:
    return ways(machine(), Pair(TINY), context, Wishes(speculation=SPECULATION))[0]


def linears(spec: object, packs: bool) -> list[Linear]:
    weights = random_weights(spec, Noise(torch.bfloat16, CPU), packs)  # type: ignore[arg-type]
    return [
        weights.head,
        *(linear for layer in weights.layers for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)),
    ]


def test_random_weights_take_what_the_plan_counts() -> None:
    spec = replace(TINY, ties_embeddings=False)
    embeddings = 2 * spec.vocab_size * spec.hidden_size
    assert sum(linear.n_bytes for linear in linears(spec, False)) + embeddings == weight_bytes(spec, torch.bfloat16)


@pytest.mark.skipif(not can_pack(CPU), reason="no kernel for four-bit groups here")
def test_the_starter_is_packed_as_its_file_is() -> None:
    entry = ENTRIES["starter"]
    packed = sum(linear.n_bytes - linear.weight.nbytes for linear in linears(entry.spec, True))
    assert packed == entry.packed_bytes


def test_what_a_random_model_says_is_of_sane_scale() -> None:
    """Attention is neither on one token nor on all alike, and no token is certain: nothing overflows or is skipped."""
    noise = Noise(torch.float32, CPU)
    decoder = Decoder(TINY, random_weights(TINY, noise, False), (rope_of(TINY, CPU),), attend_plainly)
    store = FullStore(TINY.n_layers, TINY.n_kv_heads, TINY.head_dim, torch.float32, CPU)
    fill(store, TINY, noise, 100)
    logits = decoder.forward(torch.arange(8), store, n_logits=8)

    assert 0.2 < logits.std() < 5
    assert logits.softmax(-1).max() < 0.9
    assert store.committed == 100


def test_both_kinds_of_cache_are_filled_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """In several parts, whatever the layers that stay on the device."""
    monkeypatch.setattr("runtime.bench.shape.FILL_TOKENS", 40)
    sizes = (TINY.n_layers, TINY.n_kv_heads, TINY.head_dim, torch.float32, CPU)
    stores = (FullStore(*sizes), HostStore(*sizes, 2))
    for store in stores:
        fill(store, TINY, Noise(torch.float32, CPU), 100)
        fill(store, TINY, Noise(torch.float32, CPU), 100)
    for layer in range(TINY.n_layers):
        ours, theirs = (store.read(layer) for store in stores)
        assert all(map(torch.equal, ours, theirs))
        assert 0.9 < ours[0].std() < 1.1


def test_the_least_a_step_takes_is_worked_out_by_hand() -> None:
    """Llama-3.1-8B, 131,072 tokens: 15.0 GB without the embeddings that are looked up, 17.2 GB of KV cache."""
    spec = LARGE.spec
    roof = Roofline(spec, torch.bfloat16, RATES)
    weights = 2 * (spec.n_parameters - spec.vocab_size * spec.hidden_size)

    assert roof.seconds(1, 131_072, 1) == pytest.approx((weights + 131_072 * 131_072) / 1e12)
    assert replace(roof, n_streamed=32).seconds(1, 131_072, 1) == pytest.approx(131_072 * 131_072 / 25e9)
    assert replace(roof, n_streamed=32).seconds(1, 4096, 1, streams=False) < 0.02
    in_layers = spec.n_parameters - 2 * spec.vocab_size * spec.hidden_size
    attention = 4 * 32 * 32 * 128 * 1024 * (131_072 + 512.5)
    assert roof.seconds(1024, 131_072, 0) == pytest.approx((2 * 1024 * in_layers + attention) / 1e14)
    packed = replace(roof, packed_bytes=5 * 10**9)
    assert packed.seconds(1, 128, 1) < packed.seconds(128, 128, 128) / 2


@pytest.mark.parametrize("twin", [False, True], ids=["cpu", "offload"])
def test_a_shape_is_measured_in_each_way(twin: bool) -> None:
    times = measure_shape(Shape("tiny", Pair(TINY), tiny_way(), TINY.n_layers, twin), SPECULATION)

    assert (times.mode, times.twin) == (("offload", True) if twin else ("cpu", False))
    assert tuple(timed.n_tokens for timed in times.passes) == PASSES
    assert {timed.n_held for timed in times.passes} == {256}
    assert (times.first_block.n_held, times.last_block.n_held) == (0, 256 - times.last_block.n_tokens)
    assert times.retrieval.n_held == 64
    timed = (*times.passes, times.first_block, times.last_block, times.retrieval)
    assert all(entry.floor_seconds > 0 for entry in timed)
    if twin:
        assert times.copied is not None
        assert times.copied.n_bytes == 256 * TINY.kv_bytes_per_token(2)
    assert (times.copied is not None) == twin
    assert json.loads(json.dumps(record(times)))["passes"][0]["n_tokens"] == 1


def test_streamed_weights_are_measured_with_what_they_move() -> None:
    """By the twin: a pass brings KV cache and weights, one over the retrieval cache the weights alone."""
    weights = weight_bytes(TINY, torch.bfloat16) - embedding_bytes(TINY, torch.bfloat16)
    way = replace(tiny_way(), streamed=Streamed(weights=weights))
    times = measure_shape(Shape("tiny", Pair(TINY), way, TINY.n_layers, twin=True), SPECULATION)

    assert times.copied is not None
    assert times.copied.n_bytes == 256 * TINY.kv_bytes_per_token(2) + weights
    bus = replace(RATES, memory=10**18, flops=10**18)
    roof = Roofline(TINY, torch.bfloat16, bus, 0, TINY.n_layers, weights)
    assert roof.seconds(1, 256, 1) == pytest.approx(times.copied.n_bytes / 25e9)
    assert roof.seconds(1, 64, 1, streams=False) == pytest.approx(weights / 25e9)


@pytest.mark.parametrize("twin", [False, True], ids=["cpu", "offload"])
def test_few_layers_are_scaled_to_all_and_what_is_no_layer_is_not(monkeypatch: pytest.MonkeyPatch, twin: bool) -> None:
    """By a clock that counts a second for each layer's attention, and one for each output head."""
    ticks = [0.0]

    def counting(original: Callable[..., torch.Tensor], seconds: Callable[[int], float]) -> Callable[..., torch.Tensor]:
        def counted(self: Decoder, *args: object) -> torch.Tensor:
            given = original(self, *args)
            ticks[0] += seconds(len(given))
            return given

        return counted

    def clock(_: torch.device, run: Callable[[], object]) -> float:
        before = ticks[0]
        run()
        return ticks[0] - before + 1e-9

    monkeypatch.setattr(Decoder, "_attention", counting(Decoder._attention, lambda _: 1.0))
    monkeypatch.setattr(Decoder, "run", counting(Decoder.run, lambda n_rows: float(n_rows > 0)))
    monkeypatch.setattr(shape_times, "seconds_of", clock)
    whole, part = (measure_shape(Shape("tiny", Pair(TINY), tiny_way(), n, twin), SPECULATION) for n in (6, 2))

    for times in (whole, part):
        assert times.plain.seconds == times.retrieval.seconds == pytest.approx(7)
        assert times.last_block.seconds == pytest.approx(6)
    assert (whole.measured_layers, part.measured_layers) == (6, 2)
    if whole.copied is not None and part.copied is not None:
        assert whole.copied.n_bytes == part.copied.n_bytes


def test_a_paused_stream_copies_nothing() -> None:
    stream, copied = PausableStream(ThreadCopyStream()), []
    for is_paused in (False, True, False):
        stream.is_paused = is_paused
        stream.submit(lambda: copied.append(stream.is_paused)).wait()
    assert copied == [False, False]


def times_of(passes: tuple[float, ...], retrieval: float, copied: Copied | None = None) -> Times:
    timed = tuple(Timed(n, 4096, seconds, seconds / 2) for n, seconds in zip(PASSES, passes, strict=True))
    return Times(
        model="tiny", mode="cpu", twin=False, context=4096, dtype="float32", threads=2, n_layers=8, measured_layers=2,
        layers_on_gpu=0, rates=RATES, first_block=Timed(512, 0, 1.0, 0.5), last_block=Timed(512, 3584, 3.0, 1.0),
        passes=timed, retrieval=Timed(1, 1024, retrieval, retrieval), choosing_seconds=0.1, copied=copied,
        predicted=tiny_way().predicted,
    )  # fmt: skip


def test_speed_ups_follow_from_the_passes_measured() -> None:
    """Every pass takes a second whatever it verifies, a retrieval step a tenth of one."""
    times = times_of((1.0,) * len(PASSES), 0.1)
    best = max((1 - 0.8 ** (gamma + 1)) / 0.2 / (1 + 0.1 * gamma) for gamma in range(1, 64))

    assert [speed_up.acceptance for speed_up in times.speed_ups] == [0.7, 0.8, 0.9]
    assert times.speed_ups[1].speed_up == pytest.approx(best)
    assert times.prefill_seconds == 8 * 2.0
    assert times.costs.passes[2] == 1.0
    rising = times_of((1.0, 4.0, 8.0, 16.0, 64.0), 0.9)
    assert rising.costs.passes[1] == pytest.approx(2.0)  # on the line from 1 token to 4
    assert [(speed_up.gamma, speed_up.speed_up) for speed_up in rising.speed_ups] == [(0, 1.0)] * 3


def test_people_read_what_was_measured_beside_what_was_predicted() -> None:
    text = describe(times_of((1.0,) * len(PASSES), 0.1, Copied(10**9, 0.5, 1.0, 1.25)))
    assert "Measured over 2 of 8 layers" in text
    assert "1.0 GB cross the bus in a pass, at 2.0 GB/s" in text
    assert "overlap 0.80" in text
    assert "(predicted " in text
    assert "Drafts accepted at 0.8: " in text
    assert "none pay" in describe(times_of((1.0, 4.0, 8.0, 16.0, 64.0), 0.9))


def config(
    tmp_path: Path, free_gib: float | None = None, gpu_gib: float | None = None, **given: object
) -> EngineConfig:
    hardware = None
    if free_gib is not None:
        hardware = tmp_path / "machine.toml"
        hardware.write_text(written(machine(free_gib, gpu_gib, bfloat16=True)), "utf-8")
    return EngineConfig(tmp_path, threads=1, hardware=hardware, **given)  # type: ignore[arg-type]


def test_of_a_large_model_as_many_layers_are_measured_as_fit(tmp_path: Path) -> None:
    """Llama-3.1-8B at 32,768 tokens: a layer is 436 MB and its cache 134 MB, embeddings and head are 2.1 GB."""

    def measured(free_gib: float, **given: object) -> Shape:
        (shape,) = shapes_to_measure(LARGE, machine(free_gib, bfloat16=True), 32_768, config(tmp_path, **given))
        return shape

    assert measured(40).n_layers == 32
    assert 6 <= measured(8).n_layers <= 12
    assert not measured(8).twin
    assert measured(8, mode="offload").twin
    sizes = [6 + part / 10 for part in range(10)]
    ours, theirs = (sum(measured(size, mode=mode).n_layers for size in sizes) for mode in ("cpu", "offload"))
    assert theirs < ours  # two buffers more
    with pytest.raises(OutOfMemory) as refused:
        list(shapes_to_measure(LARGE, machine(2, bfloat16=True), 32_768, config(tmp_path)))
    assert refused.value.needed_bytes > refused.value.free_bytes == 2 * GIB


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="no such"):
        measure_geometry(config(tmp_path), "no such", None)
    with pytest.raises(NoSuchDevice):
        measure_geometry(config(tmp_path, 24, mode="gpu"), SMALL, None)
    if not torch.cuda.is_available():
        with pytest.raises(HardwareRefused):
            measure_geometry(config(tmp_path, 24, 24), SMALL, None)
    with pytest.raises(OutOfMemory):
        measure_geometry(config(tmp_path, 24, 8, mode="gpu", context=131_072), LARGE.id, None)


def test_a_model_of_the_catalogue_is_measured_without_a_download(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (times,) = measure_geometry(config(tmp_path, 24, context=128), SMALL, tmp_path / "times.json")
    said = capsys.readouterr().out

    assert said.startswith(f"{SMALL} at 128 tokens, by random weights")
    assert times.predicted is not None
    (kept,) = json.loads((tmp_path / "times.json").read_text("utf-8"))
    assert kept["measured_layers"] == kept["n_layers"] == 2
    assert kept["speed_ups"][0]["acceptance"] == 0.7


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_all_modes_are_measured_on_a_card(tmp_path: Path) -> None:
    found = measure_geometry(EngineConfig(tmp_path, context=4096), SMALL, None)
    assert [times.mode for times in found] == ["gpu", "offload", "offload, with weights", "cpu"]
    assert all(times.copied is not None for times in found[1:3])
