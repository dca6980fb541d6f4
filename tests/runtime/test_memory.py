"""Where a model runs, from facts alone."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from runtime.catalogue import Entry, load_catalogue
from runtime.config import Speculation, Wishes
from runtime.errors import InvalidSetting, NoSuchDevice, OutOfMemory
from runtime.footprint import CUDA_CONTEXT_BYTES, MARGIN_BYTES, Pair
from runtime.memory import plan, plan_longest
from runtime.models.spec import Spec, read_spec
from runtime.plan import Plan, gib
from runtime.ways import ways
from tests.runtime.machines import GIB, card, machine
from tests.runtime.tiny import tiny_config

SPEC = read_spec(tiny_config("llama"))
ENTRIES = {entry.id: entry for entry in load_catalogue()}
LARGE = ENTRIES["meta-llama/Llama-3.1-8B-Instruct"]
PAIR = LARGE.pair_with(ENTRIES[str(LARGE.draft)])
CARDS = (8, 12, 16, 24, 48, 80, 141)
CONTEXTS = (8192, 32_768, 131_072)
TARGETS = [entry for entry in ENTRIES.values() if entry.role == "target"]


def best(gpu_gib: float | None, pair: Pair, context: int, ram_gib: float = 256) -> Plan:
    return plan(machine(ram_gib, gpu_gib, bfloat16=True), pair, context, Wishes())


def rank(chosen: Plan) -> tuple[int, int]:
    """Better is higher: by mode, then by weights on the card, then by layers."""
    return {"cpu": 0, "offload": 1, "gpu": 3}[chosen.mode] + (
        chosen.mode == "offload" and not chosen.streamed.weights
    ), chosen.layers_on_gpu


def test_without_a_gpu_the_cpu_is_used_and_says_so() -> None:
    chosen = plan(machine(), Pair(SPEC), 8192, Wishes())
    assert (chosen.mode, chosen.device, chosen.dtype) == ("cpu", torch.device("cpu"), torch.bfloat16)
    assert "no CUDA GPU" in chosen.reason
    assert "24.0 GiB are free" in chosen.reason


def test_the_number_format_follows_processor_and_card() -> None:
    for bfloat16 in (
        True,
        False,
    ):  # as fast in bfloat16 as in float32 where there are no instructions, and half as large
        assert plan(machine(bfloat16=bfloat16), Pair(SPEC), 8192, Wishes()).dtype is torch.bfloat16
    assert plan(machine(bfloat16=True), Pair(SPEC), 8192, Wishes(dtype="float32")).dtype is torch.float32
    old = replace(machine(), gpus=(card(24, 7.5),))
    assert (plan(old, Pair(SPEC), 8192, Wishes()).mode, plan(old, Pair(SPEC), 8192, Wishes()).dtype) == (
        "gpu",
        torch.float32,
    )


def test_a_gpu_is_used_when_weights_and_kv_fit() -> None:
    """8B at 128K in bfloat16: 16.1 GB of weights and 17.2 GB of KV."""
    pair = Pair(LARGE.spec)
    assert plan(machine(64, 48), pair, 131_072, Wishes()).mode == "gpu"
    small_card = plan(machine(64, 4, bfloat16=True), pair, 131_072, Wishes())
    assert small_card.mode == "cpu"
    assert "4.0 GiB free" in small_card.reason
    assert plan(machine(64, 24), pair, 16_384, Wishes()).mode == "gpu"


def test_the_draft_model_counts() -> None:
    alone, drafted = (best(20.5, pair, 8192) for pair in (Pair(LARGE.spec), PAIR))
    assert (alone.mode, drafted.mode) == ("gpu", "offload")
    assert drafted.bytes.draft == pytest.approx(2.5e9, rel=0.02)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("entry", TARGETS, ids=lambda entry: entry.id)
def test_no_plan_exceeds_its_card_and_a_bigger_card_is_never_worse(entry: Entry, context: int) -> None:
    """With and without a draft model, on 8 to 141 GiB; some plan is found for each, and gpu on the largest."""
    for draft in {None, entry.draft}:
        pair = entry.pair_with(ENTRIES[draft] if draft else None)
        plans = [best(size, pair, context) for size in CARDS]
        for size, chosen in zip(CARDS, plans, strict=True):
            assert chosen.bytes.total <= (256 if chosen.mode == "cpu" else size) * GIB
            assert chosen.streamed.total + MARGIN_BYTES <= 256 * GIB
            assert min(chosen.predicted.prefill_seconds, chosen.predicted.tokens_per_second) > 0
        assert all(rank(smaller) <= rank(larger) for smaller, larger in pairwise(plans))
        assert plans[-1].mode == "gpu"


def test_the_modes_of_one_pair_by_card() -> None:
    """Llama-3.1-8B with its draft model and 64 GiB of memory: what is kept on each card, as worked out by hand."""
    plans = [best(size, PAIR, 131_072, ram_gib=64) for size in CARDS]
    streams_weights = [bool(chosen.streamed.weights) for chosen in plans]

    assert [chosen.mode for chosen in plans] == ["cpu", "offload", "offload", "offload", "gpu", "gpu", "gpu"]
    assert streams_weights == [False, True, True, False, False, False, False]


def test_a_home_card_keeps_weights_and_some_layers_and_streams_the_rest() -> None:
    """Llama-3.1-8B with its draft model at 128K on 24 GiB, as by hand: 16.1 GB of weights, 17.2 GB of KV."""
    chosen = best(24, PAIR, 131_072, ram_gib=64)
    layer_kv = (131_072 + 65) * LARGE.kv_bytes_per_token // 32

    assert chosen.mode == "offload"
    assert 1 <= chosen.layers_on_gpu <= 8
    assert chosen.bytes.weights == pytest.approx(16.1e9, rel=0.01)
    assert chosen.bytes.full_kv == chosen.layers_on_gpu * layer_kv
    assert chosen.streamed.full_kv == (32 - chosen.layers_on_gpu) * layer_kv
    assert chosen.bytes.total + layer_kv > 24 * GIB  # one more would not fit
    assert f"{chosen.layers_on_gpu} of 32 layers" in chosen.reason


def test_weights_that_do_not_fit_are_streamed_before_the_card_is_given_up() -> None:
    chosen = best(12, PAIR, 32_768, ram_gib=64)
    assert (chosen.mode, chosen.layers_on_gpu) == ("offload", 0)
    assert chosen.streamed.weights > 10 * GIB
    assert best(2, PAIR, 32_768, ram_gib=64).mode == "cpu"


def test_without_memory_to_stream_from_there_is_no_offload() -> None:
    """18 GB of KV cache do not fit 8 GiB of memory, which the card does not make up for."""
    with pytest.raises(OutOfMemory) as refused:
        best(24, PAIR, 131_072, ram_gib=8)
    assert refused.value.needed_bytes > refused.value.free_bytes == 8 * GIB
    assert refused.value.what == "keeping the KV cache of 131,072 tokens in main memory"


def test_the_parts_are_those_of_the_total() -> None:
    chosen = best(80, PAIR, 131_072)
    parts = chosen.bytes
    assert (parts.cuda_context, parts.margin) == (CUDA_CONTEXT_BYTES, MARGIN_BYTES)
    assert parts.total == sum(
        (
            parts.weights, parts.full_kv, parts.retrieval_kv, parts.draft, parts.buffers, parts.activations,
            parts.cuda_context, parts.margin,
        )
    )  # fmt: skip
    plain = plan(machine(256, 80), PAIR, 131_072, Wishes(speculation=Speculation(enabled=False)))
    assert plain.bytes.retrieval_kv == 0 < parts.retrieval_kv


def test_predictions_follow_bandwidth_and_arithmetic() -> None:
    """Plain decoding on the card reads weights and KV once a token; offloaded, the bus carries what is not there."""
    on_card, offloaded = best(80, Pair(LARGE.spec), 131_072), best(24, Pair(LARGE.spec), 131_072)
    read = 2 * LARGE.spec.n_parameters + 131_072 * LARGE.kv_bytes_per_token

    assert 1 / on_card.predicted.plain_tokens_per_second == pytest.approx(read / 0.8e12 + 32 * 1e-4)
    assert 1 / offloaded.predicted.plain_tokens_per_second == pytest.approx(offloaded.streamed.full_kv / 25e9)
    assert offloaded.predicted.tokens_per_second > 2 * offloaded.predicted.plain_tokens_per_second
    assert on_card.predicted.tokens_per_second > offloaded.predicted.tokens_per_second


def test_predictions_for_a_processor_are_near_what_was_measured() -> None:
    """Two cores read 8,192 tokens of the starter in 9.3 s; a token over them took some 20 to 30 ms."""
    pair = ENTRIES["starter"].pair_with(None)
    predicted = plan(machine(24, bfloat16=True, cores=2), pair, 8192, Wishes()).predicted

    assert predicted.prefill_seconds == pytest.approx(9.3, rel=0.25)
    assert 0.012 < 1 / predicted.plain_tokens_per_second < 0.036
    slow, exact = (plan(machine(24, cores=2), pair, 8192, Wishes(dtype=dtype)) for dtype in ("auto", "float32"))
    assert slow.bytes.weights == exact.bytes.weights / 2 + pair.packed_bytes  # the four-bit form, which is not exact
    assert exact.predicted.prefill_seconds == slow.predicted.prefill_seconds > 3 * predicted.prefill_seconds


def test_what_was_asked_for_is_obeyed_or_refused() -> None:
    assert plan(machine(24, 48), Pair(SPEC), 8192, Wishes(device="cpu")).mode == "cpu"
    assert plan(machine(24, 48), Pair(SPEC), 8192, Wishes(mode="cpu")).mode == "cpu"
    assert plan(machine(64, 48), PAIR, 8192, Wishes(mode="offload")).mode == "offload"
    for wishes, size in ((Wishes(device="cuda"), 3), (Wishes(mode="gpu"), 12), (Wishes(mode="offload"), 3)):
        with pytest.raises(NoSuchDevice):
            plan(machine(), Pair(SPEC), 8192, wishes)
        with pytest.raises(OutOfMemory) as refused:
            plan(machine(64, size), PAIR, 8192, wishes)
        assert refused.value.needed_bytes > refused.value.free_bytes == size * GIB
    assert refused.value.what == "the card, with weights and the KV cache of 8,192 tokens in main memory,"
    assert plan(machine(64, 12), PAIR, 8192, Wishes(mode="offload")).name == "offload, with weights"


def test_a_mode_and_a_device_that_contradict_each_other_are_refused() -> None:
    for device, mode in (("cpu", "gpu"), ("cpu", "offload"), ("cuda", "cpu")):
        with pytest.raises(InvalidSetting):
            Wishes(device=device, mode=mode)  # type: ignore[arg-type]  # mypy cannot pair them up


def test_an_apple_gpu_is_known_and_not_used() -> None:
    apple = replace(machine(), gpus=(replace(card(48), name="Apple GPU", compute_capability=None, kind="mps"),))
    assert plan(apple, Pair(SPEC), 8192, Wishes()).mode == "cpu"
    with pytest.raises(NoSuchDevice) as refused:
        plan(apple, Pair(SPEC), 8192, Wishes(device="cuda"))
    assert "Apple GPU" in refused.value.found


def test_what_fits_nowhere_is_refused_with_numbers() -> None:
    with pytest.raises(OutOfMemory) as refused:
        plan(machine(8), Pair(LARGE.spec), 131_072, Wishes())
    assert refused.value.free_bytes == 8 * GIB


def test_a_context_is_halved_until_it_fits() -> None:
    assert plan_longest(machine(26, bfloat16=True), Pair(LARGE.spec), 131_072, Wishes()).context == 65_536


def test_ways_come_best_first_and_each_says_what_it_lacks() -> None:
    found = ways(machine(64, 24, bfloat16=True), PAIR, 131_072, Wishes())
    assert [way.mode for way in found] == ["gpu", "offload", "offload", "cpu", "cpu"]
    assert [way.is_on_disk for way in found] == [False, False, False, False, True]
    assert [way.fits for way in found] == [False, True, True, True, True]
    assert found[0].missing_bytes == found[0].bytes.total - 24 * GIB


def test_kv_bytes_are_those_of_the_architecture() -> None:
    """Llama-3.1-8B: 2 x 32 layers x 8 heads x 128 x 2 bytes."""
    spec: Spec = LARGE.spec
    assert spec.kv_bytes_per_token(2) == 131_072
    assert spec.n_parameters == pytest.approx(8.03e9, rel=0.01)


def test_a_refusal_says_which_context_would_fit() -> None:
    """Which then does fit, and twice as much does not, not on the disk either."""
    with pytest.raises(OutOfMemory) as refused:
        plan(machine(26, bfloat16=True, disk_gib=16), Pair(LARGE.spec), 131_072, Wishes())
    assert refused.value.fitting_context == 65_536
    assert plan(machine(26, bfloat16=True), Pair(LARGE.spec), 65_536, Wishes()).fits
    with pytest.raises(OutOfMemory) as hopeless:
        plan(machine(8, bfloat16=True), Pair(LARGE.spec), 131_072, Wishes())
    assert hopeless.value.fitting_context is None


def test_streamed_weights_are_explained_by_what_does_not_fit_with_them() -> None:
    """Also where the weights alone would fit."""
    chosen = best(21.6, PAIR, 131_072, ram_gib=64)
    assert chosen.streamed.weights > 0
    offloaded = ways(machine(64, 21.6, bfloat16=True), PAIR, 131_072, Wishes())[1]
    assert f"with what must lie beside them, need {gib(offloaded.bytes.total)}" in chosen.reason


def test_a_kv_cache_that_memory_does_not_hold_lies_on_the_disk() -> None:
    """Of 128K tokens of Llama-3.1-8B, 17.2 GB, two layers are in memory; a processor is asked as before."""
    chosen = plan(machine(26, bfloat16=True), Pair(LARGE.spec), 131_072, Wishes())
    in_memory = ways(machine(64, bfloat16=True), Pair(LARGE.spec), 131_072, Wishes())[0]
    kv = (131_072 + 65) * LARGE.kv_bytes_per_token

    assert (chosen.mode, chosen.is_on_disk, in_memory.is_on_disk) == ("cpu", True, False)
    assert not chosen.is_like(in_memory)
    assert chosen.device == torch.device("cpu")
    assert (chosen.bytes.full_kv, chosen.bytes.buffers, chosen.streamed.full_kv) == (0, kv * 2 // 32, kv)
    assert chosen.bytes.total <= 26 * GIB < in_memory.bytes.total
    for number in (
        "26.0 GiB",
        "100.0 GiB",
        gib(kv),
        gib(in_memory.bytes.total),
        gib(chosen.bytes.total),
        "1 GB a second",
    ):
        assert number in chosen.reason
    assert 1 / chosen.predicted.plain_tokens_per_second == pytest.approx(kv / 1e9, rel=0.01)
    assert chosen.predicted.tokens_per_second > 2 * chosen.predicted.plain_tokens_per_second
    assert chosen.predicted.prefill_seconds >= in_memory.predicted.prefill_seconds


def test_the_disk_is_for_who_asks_for_so_many_tokens() -> None:
    """A default context is one that memory holds; where memory holds what was asked for, the disk is left alone."""
    assert not plan_longest(machine(26, bfloat16=True), Pair(LARGE.spec), 131_072, Wishes()).is_on_disk
    with pytest.raises(OutOfMemory):
        plan_longest(machine(16.7, bfloat16=True), Pair(LARGE.spec), 131_072, Wishes())
    assert plan(machine(26, bfloat16=True), Pair(LARGE.spec), 65_536, Wishes()).is_on_disk is False
    assert plan(machine(64, 24, bfloat16=True), PAIR, 131_072, Wishes()).mode == "offload"
    assert plan(machine(26, bfloat16=True), Pair(LARGE.spec), 131_072, Wishes(mode="cpu")).is_on_disk


def test_a_disk_too_full_or_memory_too_small_for_two_layers_is_no_way() -> None:
    kv = (131_072 + 65) * LARGE.kv_bytes_per_token
    enough = (kv + MARGIN_BYTES) / GIB
    for ram, disk in ((26, enough - 0.1), (16, 1000)):
        with pytest.raises(OutOfMemory):
            plan(machine(ram, bfloat16=True, disk_gib=disk), Pair(LARGE.spec), 131_072, Wishes())
    chosen = plan(machine(26, bfloat16=True, disk_gib=enough + 0.1), Pair(LARGE.spec), 131_072, Wishes())
    assert chosen.is_on_disk
