"""The catalogue of models, and what of it fits a machine."""

from pathlib import Path

import pytest
import torch

from runtime.catalogue import Entry, fit, load_catalogue
from runtime.config import Wishes
from runtime.memory import LONGEST_CONTEXT
from runtime.models.gguf_header import read_header
from runtime.models.spec import SUPPORTED
from runtime.models.tensor_file import GgufFile
from runtime.models.weights import WeightReader
from tests.runtime.machines import GIB, machine

ENTRIES = {entry.id: entry for entry in load_catalogue()}
LARGE = ENTRIES["meta-llama/Llama-3.1-8B-Instruct"]


def test_entries_are_told_apart_by_their_ids() -> None:
    """And the starter comes first."""
    assert len(ENTRIES) == len(load_catalogue())
    assert next(iter(ENTRIES)) == "starter"


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_an_entry_holds_together(entry: Entry) -> None:
    """Its shapes come to the parameters published; heads share KV heads evenly; what is not supported says why."""
    assert entry.spec.n_parameters == pytest.approx(entry.parameters, rel=0.01)
    assert entry.spec.n_heads % entry.spec.n_kv_heads == 0
    assert entry.spec.architecture in SUPPORTED
    assert entry.is_supported or entry.note


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES.values() if entry.draft], ids=lambda entry: entry.id)
def test_a_draft_is_a_smaller_entry_of_the_same_architecture(entry: Entry) -> None:
    draft = ENTRIES[str(entry.draft)]

    assert draft.role == "draft"
    assert draft.parameters < entry.parameters / 3
    assert draft.spec.architecture == entry.spec.architecture


def test_what_an_entry_can_read_is_no_more_than_a_plan_counts_on_or_yarn_gives() -> None:
    """Models with a scaling of their own, which are not stretched, were made for all that a plan counts on."""
    scaled = [entry for entry in ENTRIES.values() if entry.id.startswith(("meta-llama", "ibm-", "NousResearch"))]

    assert all(entry.context >= LONGEST_CONTEXT for entry in scaled)
    assert ENTRIES["starter"].longest_context == LONGEST_CONTEXT


def test_every_draft_drafts_for_some_entry() -> None:
    drafts = {entry.id for entry in ENTRIES.values() if entry.role == "draft"}

    assert drafts == {entry.draft for entry in ENTRIES.values() if entry.draft}


@pytest.mark.parametrize(
    ("name", "kv_bytes", "weights_gb"),
    [
        ("NousResearch/Yarn-Llama-2-7b-128k", 524_288, 13.5),
        ("JackFram/llama-68m", 6_144, 0.14),
        ("meta-llama/Llama-3.1-8B-Instruct", 131_072, 16.1),
        ("meta-llama/Llama-3.2-1B-Instruct", 32_768, 2.5),
        ("Qwen/Qwen2.5-7B-Instruct", 57_344, 15.2),
        ("Qwen/Qwen2.5-0.5B-Instruct", 12_288, 1.0),
        ("Qwen/Qwen3-4B-Instruct-2507", 147_456, 8.0),
        ("Qwen/Qwen3-8B", 147_456, 16.4),
        ("Qwen/Qwen3-0.6B", 114_688, 1.2),
        ("HuggingFaceTB/SmolLM3-3B", 73_728, 6.2),
        ("ibm-granite/granite-3.3-8b-instruct", 163_840, 16.3),
    ],
)
def test_sizes_are_those_published(name: str, kv_bytes: int, weights_gb: float) -> None:
    assert ENTRIES[name].kv_bytes_per_token == kv_bytes
    assert ENTRIES[name].weight_bytes / 1e9 == pytest.approx(weights_gb, abs=0.05)


def test_what_fits_is_told_with_its_numbers() -> None:
    """The longest of the context, its half, its quarter, and so on, beside the draft model."""
    whole, half = (fit(LARGE, ENTRIES, machine(ram_gib, bfloat16=True), Wishes()) for ram_gib in (40, 31))

    assert (whole.mode, whole.context) == ("cpu", 131_072)
    assert (half.mode, half.context) == ("cpu", 65_536)
    chunk_means = LARGE.kv_bytes_per_token // 2 // 8  # keys alone, one for eight tokens
    assert whole.needed_bytes - half.needed_bytes == 65_536 * (LARGE.kv_bytes_per_token + chunk_means)
    assert whole.needed_bytes > LARGE.weight_bytes + ENTRIES[str(LARGE.draft)].weight_bytes
    assert whole.free_bytes == 40 * GIB


def test_a_gpu_that_holds_everything_is_named() -> None:
    found = fit(LARGE, ENTRIES, machine(8, gpu_gib=80), Wishes())

    assert (found.mode, found.context, found.free_bytes) == ("gpu", 131_072, 80 * GIB)


def test_what_does_not_fit_says_what_the_shortest_would_need() -> None:
    found = fit(LARGE, ENTRIES, machine(8, bfloat16=True), Wishes())

    assert (found.mode, found.context, found.free_bytes) == (None, None, 8 * GIB)
    least = LARGE.weight_bytes + ENTRIES[str(LARGE.draft)].weight_bytes + GIB + 4096 * LARGE.kv_bytes_per_token
    assert least < found.needed_bytes < 1.1 * least


def test_what_the_starter_takes_in_groups_is_what_its_file_says(starter_path: Path) -> None:
    """The number in the catalogue, from the file's header."""
    starter = ENTRIES["starter"]
    file = GgufFile(read_header(starter_path), starter.spec)
    reader = WeightReader(file, starter.spec, torch.bfloat16, torch.device("cpu"))

    assert starter.packed_bytes == reader.packed_bytes(starter.spec.vocab_size)
