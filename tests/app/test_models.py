"""`fullread models`, as people and as programs read it."""

import io
import json
from dataclasses import replace

import pytest

from app import arguments
from app.models import list_models
from app.settings import Settings
from runtime.errors import NoSuchDevice
from tests.runtime.machines import GIB, machine


@pytest.fixture
def hardware(monkeypatch):
    """A machine with 24 GiB free and no GPU."""
    found = machine(24, bfloat16=True)
    monkeypatch.setattr("app.models.known_hardware", lambda *_: found)
    return found


def listed(settings: Settings, as_json: bool = False) -> str:
    out = io.StringIO()
    assert list_models(settings, as_json, out) == 0
    return out.getvalue()


def test_the_command_is_read():
    assert arguments.parse(["models", "--json", "--device", "cpu"], "1") == (arguments.Models(True), {"device": "cpu"})
    assert arguments.parse(["models"], "1") == (arguments.Models(False), {})


def test_people_read_what_fits_and_what_it_takes(hardware):
    """The machine first; then each model with its draft, licence and a verdict with both numbers."""
    first, *models = listed(Settings()).split("\n\n")
    texts = {text.splitlines()[0]: text for text in models}

    assert first == "This machine: 24.0 GiB of memory free, no CUDA GPU."
    assert "fits on the processor with 8,192 tokens: 1.6 GiB of 24.0 GiB" in texts["starter"]
    llama = texts["meta-llama/Llama-3.1-8B-Instruct"]
    assert "16.1 GB in bfloat16; made for 131,072 tokens; Llama 3.1 licence, to be accepted on its page first" in llama
    assert "drafted for by meta-llama/Llama-3.2-1B-Instruct" in llama
    assert "not supported yet" in texts["mistralai/Ministral-3-8B-Instruct-2512"]
    assert "fits" not in texts["mistralai/Ministral-3-8B-Instruct-2512"]
    assert "Qwen/Qwen3-0.6B" not in texts


def test_what_does_not_fit_says_so(hardware, monkeypatch):
    monkeypatch.setattr("app.models.known_hardware", lambda *_: replace(hardware, ram_free_bytes=2 * GIB))

    assert "Qwen/Qwen3-8B\n" in listed(Settings())
    assert "does not fit: even short texts need 17.9 GiB of 2.0 GiB" in listed(Settings())


def test_programs_read_records(hardware):
    """One for each model, drafts among them, with sizes in bytes."""
    records = {record["id"]: record for record in json.loads(listed(Settings(), as_json=True))}

    assert records["starter"] == {
        "id": "starter",
        "role": "target",
        "draft": None,
        "architecture": "llama",
        "parameters": 134_500_000,
        "weight_bytes": 269_000_000,
        "kv_bytes_per_token": 23_040,
        "context": 8192,
        "licence": "Apache-2.0",
        "gated": False,
        "supported": True,
        "note": "SmolLM2-135M-Instruct, to see that everything works.",
        "fits": True,
        "mode": "cpu",
        "fitting_context": 8192,
        "needed_bytes": records["starter"]["needed_bytes"],
        "free_bytes": 24 * GIB,
    }
    assert records["Qwen/Qwen3-8B"]["draft"] == "Qwen/Qwen3-0.6B"
    assert records["Qwen/Qwen3-0.6B"]["role"] == "draft"


def test_the_device_asked_for_counts(hardware):
    with pytest.raises(NoSuchDevice):
        listed(Settings(device="cuda"))
