"""`fullread plan`, as people and as programs read it."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from app.arguments import ShowPlan
from app.planning import show_plan
from app.problems import explain
from app.settings import Settings
from runtime.catalogue import load_catalogue
from runtime.errors import InvalidSetting, ModelNotFound, OutOfMemory, TooFewGpus
from runtime.hardware_file import read_hardware, written
from tests.runtime.machines import GIB, machine
from tests.runtime.tiny import save_tiny

ENTRIES = load_catalogue()
LARGE, DRAFT = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home machine in a file: 64 GiB, and 24 GiB on the card."""
    path = tmp_path / "machine.toml"
    path.write_text(written(machine(64, 24, bfloat16=True, cores=16)), "utf-8")
    return path


def planned(settings: Settings, as_json: bool = False) -> str:
    out = io.StringIO()
    assert show_plan(ShowPlan(as_json, prints_hardware=False), settings, out) == 0
    return out.getvalue()


def record(home: Path, **options: object) -> dict:
    return json.loads(planned(Settings(hardware=home, **options), as_json=True))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_every_model_of_the_catalogue_is_planned_offline(home, entry):
    """Nothing is there of it but its line in the catalogue."""
    found = record(home, model=entry.id, context=8192)
    assert found["mode"] == "gpu"
    assert sum(found["bytes"].values()) <= found["free_bytes"] == 24 * GIB
    assert found["predicted"]["prefill_seconds"] > 0
    assert f"{entry.id} with 8,192 tokens: on the GPU (gpu)." in planned(
        Settings(hardware=home, model=entry.id, context=8192)
    )


def test_programs_read_what_the_issue_names(home):
    found = record(home, model=LARGE, draft_model=DRAFT, context=131_072)
    assert {"mode", "reason", "layers_on_gpu", "bytes", "predicted"} <= set(found)
    assert (found["mode"], 0 < found["layers_on_gpu"] < 32) == ("offload", True)
    assert set(found["bytes"]) == {
        "weights", "full_kv", "retrieval_kv", "draft", "buffers", "activations", "cuda_context", "margin"
    }  # fmt: skip
    assert {"prefill_seconds", "tokens_per_second"} <= set(found["predicted"])
    assert found["streamed_bytes"]["full_kv"] + found["bytes"]["full_kv"] == 131_137 * 131_072
    assert (found["next_better"]["mode"], found["next_better"]["fits"]) == ("gpu", False)
    assert found["next_worse"]["streamed_bytes"]["weights"] > 0


def test_people_read_the_plan_its_reason_and_its_neighbours(home):
    text = planned(Settings(hardware=home, model=LARGE, draft_model=DRAFT, context=131_072))
    assert text.startswith(f"{LARGE} with 131,072 tokens: on the GPU, its KV cache in main memory (offload).\n")
    assert "24.0 GiB free where everything on it needs" in text
    assert "of 32 layers stays there" in text
    assert "Predicted, not measured: " in text
    assert "Next better: on the GPU (gpu), for which 12.7 GiB on the card are lacking: it needs 36.7 GiB." in text
    assert "Next worse: on the GPU, weights and KV cache in main memory (offload). Predicted, not measured" in text


def test_a_card_that_is_too_small_for_the_weights_streams_them(tmp_path):
    small = tmp_path / "small.toml"
    small.write_text(written(machine(64, 12, bfloat16=True)), "utf-8")
    options = {"model": LARGE, "context": 32_768}
    found, text = record(small, **options), planned(Settings(hardware=small, **options))
    assert (found["mode"], found["streamed_bytes"]["weights"] > 10 * GIB) == ("offload", True)
    assert text.startswith(f"{LARGE} with 32,768 tokens: on the GPU, weights and KV cache in main memory (offload).\n")
    assert "In main memory, and streamed to the card:\n  weights" in text


def test_a_mode_is_obeyed_or_refused_with_numbers(home):
    assert record(home, model=LARGE, context=131_072, mode="cpu")["mode"] == "cpu"
    assert record(home, model=LARGE, context=8192, mode="offload")["mode"] == "offload"
    with pytest.raises(OutOfMemory) as refused:
        record(home, model=LARGE, context=131_072, mode="gpu")
    assert "--context 32768, which fits" in str(explain(refused.value))
    sentence = explain(refused.value).sentence
    assert "on the GPU needs 34.4 GiB of memory; 24.0 GiB are free" in sentence


def test_without_a_context_the_longest_that_fits_is_planned(home, tmp_path):
    assert {record(home, model=name)["context"] for name in (LARGE, "starter", "Qwen/Qwen3-8B")} == {131_072}
    small = tmp_path / "small.toml"
    small.write_text(written(machine(26, bfloat16=True)), "utf-8")
    assert record(small, model=LARGE)["context"] == 65_536


def test_a_kv_cache_on_the_disk_is_planned_for_who_asks_for_so_much(home, tmp_path):
    small = tmp_path / "small.toml"
    small.write_text(written(machine(26, bfloat16=True)), "utf-8")
    options = {"model": LARGE, "context": 131_072}
    found = record(small, **options)
    assert (found["mode"], found["kv_on_disk"]) == ("cpu", True)
    assert (found["next_better"]["kv_on_disk"], found["next_better"]["fits"]) == (False, False)
    text = planned(Settings(hardware=small, **options))
    assert text.startswith(f"{LARGE} with 131,072 tokens: on the processor, its KV cache on the disk (cpu).\n")
    assert "On the disk, and read layer by layer:\n  full KV cache                16.0 GiB\n" in text
    assert "16.0 GiB of 100.0 GiB free" in text
    full = tmp_path / "full.toml"
    full.write_text(written(machine(64, bfloat16=True, disk_gib=10)), "utf-8")
    assert "(cpu), for which 7.0 GiB of disk are lacking for a KV cache of 16.0 GiB." in planned(
        Settings(hardware=full, **options)
    )


def test_a_model_on_this_disk_is_planned_by_its_own_config(home, tmp_path):
    save_tiny(tmp_path / "model", "llama")
    found = record(home, model=str(tmp_path / "model"), draft_model=str(tmp_path / "model"))
    assert (found["mode"], found["context"]) == ("gpu", 8192)
    assert found["bytes"]["draft"] > found["bytes"]["weights"] > 0
    with pytest.raises(InvalidSetting):
        record(home, model=str(tmp_path / "model"), context=8193)


def test_a_model_that_is_nowhere_is_not_fetched(home):
    with pytest.raises(ModelNotFound):
        record(home, model="no/such-model")


def test_the_machine_is_printed_in_the_form_that_is_read(home, tmp_path):
    out = io.StringIO()
    assert show_plan(ShowPlan(as_json=False, prints_hardware=True), Settings(hardware=home), out) == 0
    copy = tmp_path / "copy.toml"
    copy.write_text(out.getvalue(), "utf-8")
    assert read_hardware(copy) == read_hardware(home)


@pytest.fixture
def two_cards(tmp_path: Path) -> Path:
    """Two 24 GiB cards."""
    path = tmp_path / "two-4090.toml"
    here = machine(128, 24, bfloat16=True, cores=16)
    path.write_text(written(replace(here, gpus=here.gpus * 2)), "utf-8")
    return path


def test_two_cards_hold_what_one_cannot(home, two_cards):
    """8B at 64K: 8.6 GB of KV and 16 GB of weights, of which embeddings and head, 2.1 GB, are counted whole."""
    options = {"model": LARGE, "context": 65_536}
    assert record(home, **options)["mode"] == "offload"
    found = record(two_cards, gpus=2, **options)
    assert (found["mode"], found["gpus"]) == ("gpu", 2)
    assert found["bytes"]["full_kv"] == (65_536 + 65) * 131_072 // 2
    assert found["reason"].startswith("2 GPUs share the heads")
    text = planned(Settings(hardware=two_cards, gpus=2, **options))
    assert "\nOn the fullest card:\n" in text


def test_two_cards_that_hold_too_little_stream_each_its_heads(two_cards):
    here = read_hardware(two_cards)
    small = tuple(replace(gpu, free_bytes=18 * GIB) for gpu in here.gpus)
    two_cards.write_text(written(replace(here, gpus=small)), "utf-8")
    found = record(two_cards, gpus=2, model=LARGE, context=131_072, draft_model=DRAFT)
    assert found["mode"] == "offload"
    assert found["streamed_bytes"]["full_kv"] + found["bytes"]["full_kv"] == 131_137 * 131_072 // 2
    assert found["ram_free_bytes"] == 64 * GIB


def test_more_cards_than_there_are_or_than_kv_heads_are_refused_with_numbers(home, two_cards):
    with pytest.raises(TooFewGpus) as refused:
        record(home, gpus=2, model=LARGE)
    assert explain(refused.value).sentence == "2 GPUs were asked for, and this machine has 1 that can be used."
    three = replace(read_hardware(two_cards), gpus=read_hardware(two_cards).gpus * 2)
    two_cards.write_text(written(three), "utf-8")
    with pytest.raises(InvalidSetting) as few:
        record(two_cards, gpus=4, model="starter")
    assert "at most 3, one for each KV head" in explain(few.value).way_out
