"""What a plan counts against what is really allocated, on tiny models."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Q
from torch import Tensor

from runtime.config import LONGEST_DRAFT, Speculation
from runtime.footprint import Pair, draft_bytes, full_kv_bytes, retrieval_bytes, weight_bytes
from runtime.kv.full import FullStore
from runtime.kv.queries import RecentQueries
from runtime.kv.retrieval import RetrievalStore
from runtime.kv.streaming import StreamingStore
from runtime.models import tensor_file
from runtime.models.gguf_header import read_header
from runtime.models.linear import Linear
from runtime.models.packed import PackedLinear
from runtime.models.spec import Spec, read_spec
from runtime.models.tensor_file import GgufFile
from runtime.models.weights import WeightReader
from tests.runtime.tiny import KINDS, N_TOKENS, HeldTensors, Kind, tiny_config, tiny_model
from tests.runtime.tiny_gguf import write_gguf

CPU = torch.device("cpu")
CONTEXT = 1000
SMALL = Speculation(budget=64, chunk_size=4, sinks=4, window=28)
GROUPED = Speculation(budget=64, chunk_size=4, sinks=4, window=28, draft_cache="retrieval")


def loaded(reader: WeightReader, spec: Spec, n_tokens: int) -> int:
    """Bytes of all of a model's weights, norms and biases among them, what is shared counted once."""
    whole = reader.whole(tuple(map(reader.layer, range(spec.n_layers))), n_tokens)
    parts = [getattr(layer, field.name) for layer in whole.layers for field in fields(layer)]
    is_shared = whole.head.weight.data_ptr() == whole.embeddings.data_ptr()
    head = whole.head.n_bytes - (whole.head.weight.nbytes if is_shared else 0)
    in_layers = sum(part.nbytes for part in parts if isinstance(part, Tensor))
    in_layers += sum(part.n_bytes for part in parts if isinstance(part, Linear))
    return whole.embeddings.nbytes + head + in_layers


def store(spec: Spec, dtype: torch.dtype) -> FullStore:
    """As a session makes room for a context, filled with zeros."""
    full = FullStore(spec.n_layers, spec.n_kv_heads, spec.head_dim, dtype, CPU)
    full.reserve(CONTEXT + LONGEST_DRAFT + 1)
    full.extend(CONTEXT)
    for layer in range(spec.n_layers):
        zeros = torch.zeros(spec.n_kv_heads, CONTEXT, spec.head_dim, dtype=dtype)
        full.write(layer, zeros, zeros)
    full.commit()
    return full


@pytest.mark.parametrize("kind", KINDS)
def test_kv_stores_take_what_was_counted(kind: Kind) -> None:
    """Full, retrieval with all its chunk means, and StreamingLLM cache, of every family and in two formats."""
    spec = read_spec(tiny_config(kind))
    for dtype in (torch.float32, torch.bfloat16):
        full = store(spec, dtype)
        retrieval = RetrievalStore(full, RecentQueries(), 64, 4, 1.0, windows=spec.windows)
        retrieval.select(())
        assert full_kv_bytes(spec, CONTEXT, dtype) == full.n_bytes
        assert retrieval_bytes(spec, CONTEXT, SMALL, dtype) == pytest.approx(retrieval.n_bytes, rel=0.01)


@pytest.mark.parametrize("speculation", [SMALL, GROUPED], ids=["streaming", "retrieval"])
def test_a_draft_model_takes_its_weights_and_its_cache(speculation: Speculation) -> None:
    spec = read_spec(tiny_config("llama"))
    shape = (spec.n_layers, spec.n_kv_heads, spec.head_dim)
    held = StreamingStore(*shape, torch.float32, CPU, speculation.draft_sinks, speculation.window)
    means = 0
    if speculation.draft_cache == "retrieval":
        means = spec.n_layers * (CONTEXT // 32) * spec.n_kv_heads * spec.head_dim * 4

    expected = weight_bytes(spec, torch.float32) + held.n_bytes + means
    assert expected == draft_bytes(Pair(spec, spec), CONTEXT, speculation, torch.float32, packed=False)
    assert draft_bytes(Pair(spec), CONTEXT, speculation, torch.float32, packed=False) == 0


def test_without_a_retrieval_level_there_is_no_retrieval_cache() -> None:
    spec = read_spec(tiny_config("llama"))
    for off in (Speculation(enabled=False), Speculation(retrieval=False), Speculation(gamma=0)):
        assert retrieval_bytes(spec, CONTEXT, off, torch.float32) == 0


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_take_what_was_counted(kind: Kind, ties: bool) -> None:
    """Norms and biases, which are not counted, are less than one part in a hundred."""
    model = tiny_model(kind, hidden_size=128, intermediate_size=256, tie_word_embeddings=ties)
    spec = read_spec(model.config)
    reader = WeightReader(HeldTensors(model.state_dict()), spec, torch.float32, CPU)

    assert reader.packed_bytes(spec.vocab_size) == 0
    assert weight_bytes(spec, torch.float32) == pytest.approx(loaded(reader, spec, spec.vocab_size), rel=0.01)


def packed_reader(folder: Path, quantization: Q) -> tuple[WeightReader, Spec]:
    """Of a small GGUF file, whose query projection has its rows in another order."""
    model = tiny_model("llama", hidden_size=128, intermediate_size=256, vocab_size=N_TOKENS)
    write_gguf(folder / "m.gguf", model, quantization)
    spec = read_spec(model.config)
    return WeightReader(GgufFile(read_header(folder / "m.gguf"), spec), spec, torch.bfloat16, CPU, packs=True), spec


@pytest.mark.parametrize("quantization", [Q.Q4_0, Q.Q4_1, Q.Q8_0], ids=lambda each: each.name)
def test_four_bit_groups_are_counted_beside_the_dense_weights(tmp_path: Path, quantization: Q) -> None:
    """Within one part in a hundred; without them the count would be far off."""
    reader, spec = packed_reader(tmp_path, quantization)
    dense, held = weight_bytes(spec, torch.bfloat16), loaded(reader, spec, N_TOKENS)

    assert dense + reader.packed_bytes(N_TOKENS) == pytest.approx(held, rel=0.01)
    assert dense < 0.9 * held


def test_a_tensor_is_put_in_groups_some_rows_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, _ = packed_reader(tmp_path, Q.Q4_1)
    hidden = torch.randn(2, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    whole = reader.layer(0)
    monkeypatch.setattr(tensor_file, "GROUPED", 1000)
    in_parts = reader.layer(0)

    for name in ("qkv", "gate_up"):
        assert isinstance(getattr(in_parts, name), PackedLinear)
        assert torch.equal(getattr(in_parts, name)(hidden), getattr(whole, name)(hidden))


@pytest.mark.parametrize("other", [None, 2])
def test_projections_that_are_stored_differently_are_dense_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: int | None
) -> None:
    reader, _ = packed_reader(tmp_path, Q.Q4_1)
    before = reader.packed_bytes(N_TOKENS)
    digits = GgufFile.digits
    monkeypatch.setattr(GgufFile, "digits", lambda file, name: other if "v_proj" in name else digits(file, name))
    layer = reader.layer(0)

    assert type(layer.qkv) is Linear
    assert isinstance(layer.output, PackedLinear)
    assert reader.packed_bytes(N_TOKENS) < before


def test_a_vocabulary_beyond_the_embeddings_is_held_once_where_they_are_tied() -> None:
    model = tiny_model("llama", vocab_size=N_TOKENS, tie_word_embeddings=True)
    spec = read_spec(model.config)
    reader = WeightReader(HeldTensors(model.state_dict()), spec, torch.float32, CPU)

    assert loaded(reader, spec, N_TOKENS + 2) == pytest.approx(weight_bytes(spec, torch.float32), rel=0.03)
