"""Where a model runs, from facts alone."""

import pytest
import torch

from runtime.errors import NoSuchDevice, OutOfMemory
from runtime.hardware import Hardware, detect
from runtime.memory import plan
from runtime.models.spec import read_spec
from tests.runtime.tiny import tiny_config

GIB = 2**30
SPEC = read_spec(tiny_config("llama"))
LARGE = read_spec(
    tiny_config(
        "llama",
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128_256,
        max_position_embeddings=131_072,
    )
)


def machine(ram_gib: float = 24, gpu_gib: float | None = None, bfloat16: bool = False) -> Hardware:
    has_gpu = gpu_gib is not None
    return Hardware(
        cores=2,
        ram_bytes=int(ram_gib * GIB),
        ram_free_bytes=int(ram_gib * GIB),
        gpu_name="A card" if has_gpu else None,
        gpu_free_bytes=int((gpu_gib or 0) * GIB),
        gpu_has_bfloat16=has_gpu,
        cpu_has_bfloat16=bfloat16,
    )


def test_without_a_gpu_the_cpu_is_used_and_says_so() -> None:
    chosen = plan(machine(), SPEC, 0, 8192, "auto", "auto")
    assert (chosen.mode, chosen.device, chosen.dtype) == ("cpu", torch.device("cpu"), torch.float32)
    assert "no CUDA GPU" in chosen.reason


def test_the_number_format_follows_the_processor() -> None:
    assert plan(machine(bfloat16=True), SPEC, 0, 8192, "auto", "auto").dtype is torch.bfloat16
    assert plan(machine(bfloat16=True), SPEC, 0, 8192, "auto", "float32").dtype is torch.float32


def test_a_gpu_is_used_when_weights_and_kv_fit() -> None:
    """8B at 128K in bfloat16: 16.1 GB of weights and 17.2 GB of KV."""
    assert plan(machine(64, 48), LARGE, 0, 131_072, "auto", "auto").mode == "gpu"
    small_card = plan(machine(64, 24), LARGE, 0, 131_072, "auto", "bfloat16")
    assert small_card.mode == "cpu"
    assert "24.0 GiB free" in small_card.reason
    assert plan(machine(64, 24), LARGE, 0, 16_384, "auto", "auto").mode == "gpu"


def test_the_draft_model_counts() -> None:
    without = plan(machine(64, 18.0), LARGE, 0, 8192, "auto", "auto")
    assert (without.mode, plan(machine(64, 18.0), LARGE, 10**9, 8192, "auto", "auto").mode) == ("gpu", "cpu")


def test_what_was_asked_for_is_obeyed_or_refused() -> None:
    assert plan(machine(24, 48), SPEC, 0, 8192, "cpu", "auto").mode == "cpu"
    with pytest.raises(NoSuchDevice):
        plan(machine(), SPEC, 0, 8192, "cuda", "auto")
    with pytest.raises(OutOfMemory) as refused:
        plan(machine(64, 12), LARGE, 0, 8192, "cuda", "auto")
    assert refused.value.needed_bytes > refused.value.free_bytes == 12 * GIB


def test_what_fits_nowhere_is_refused_with_numbers() -> None:
    with pytest.raises(OutOfMemory) as refused:
        plan(machine(8), LARGE, 0, 131_072, "auto", "auto")
    assert refused.value.free_bytes == 8 * GIB


def test_kv_bytes_are_those_of_the_architecture() -> None:
    """Llama-3.1-8B: 2 x 32 layers x 8 heads x 128 x 2 bytes."""
    assert LARGE.kv_bytes_per_token(2) == 131_072
    assert LARGE.n_parameters == pytest.approx(8.03e9, rel=0.01)


def test_detection_finds_this_machine() -> None:
    found = detect()
    assert found.cores >= 1
    assert 0 < found.ram_free_bytes <= found.ram_bytes
    assert (found.gpu_name is None) != torch.cuda.is_available()
