"""Weights of every file format against transformers, and files that are not what they should be."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as dequantize_by_gguf
from gguf.quants import quantize
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from runtime.errors import EngineError, ModelDamaged, UnsupportedModel
from runtime.kv.full import FullStore
from runtime.models.decoder import Decoder
from runtime.models.dequantize import BLOCKS, PLAIN, dequantize
from runtime.models.gguf_config import KINDS, config_values
from runtime.models.gguf_header import read_header
from runtime.models.load import Model, load_model, read_facts
from runtime.models.sources import Source
from runtime.models.spec import SUPPORTED
from tests.runtime.tiny import N_TOKENS, Kind, random_ids, save_tiny, tiny_config, tiny_model
from tests.runtime.tiny_gguf import llama3_divisors, write_gguf

TOLERANCE = 1e-4
Q = GGMLQuantizationType
GEMMA_LAYERS = ["sliding_attention"] * 5 + ["full_attention"]
CPU = torch.device("cpu")


def load(path: Path, dtype: torch.dtype = torch.float32) -> Model:
    source = Source("folder" if path.is_dir() else "gguf", path.name, path)
    facts = read_facts(source, path.parent / "cache")
    return load_model(source, facts, dtype, CPU, lambda _: None)


def logits_of(decoder: Decoder, ids: Tensor) -> Tensor:
    spec = decoder.spec
    store = FullStore(spec.n_layers, spec.n_kv_heads, spec.head_dim, decoder.dtype, decoder.device)
    return decoder.forward(ids, store, n_logits=len(ids))


def expected(model: Any, ids: Tensor, n_vocab: int = N_TOKENS) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(ids[None], use_cache=False).logits[0, :, :n_vocab]
    return logits


def assert_equals(path: Path, model: Any, n_tokens: int = 50) -> None:
    ids = random_ids(n_tokens)
    torch.testing.assert_close(logits_of(load(path).decoder, ids), expected(model, ids), atol=TOLERANCE, rtol=0)


# --- safetensors


@pytest.mark.parametrize("shard", ["5GB", "100KB"])
def test_a_folder_gives_transformers_logits(tmp_path: Path, shard: str) -> None:
    """One file, or several with an index; the rows that pad the vocabulary are cut."""
    model = save_tiny(tmp_path / "m", "qwen2", shard=shard)

    assert (tmp_path / "m" / "model.safetensors.index.json").exists() == (shard == "100KB")
    assert_equals(tmp_path / "m", model)


def test_weights_of_one_file_under_another_name_are_found(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "m", "llama")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "model-00001-of-00001.safetensors")

    assert_equals(tmp_path / "m", model)


def test_weights_are_converted_to_the_dtype_asked_for(tmp_path: Path) -> None:
    """A bfloat16 checkpoint runs in float32 with exactly its numbers."""
    model = save_tiny(tmp_path / "m", "llama", tie_word_embeddings=True).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "m")

    assert load(tmp_path / "m", torch.bfloat16).decoder.dtype == torch.bfloat16
    assert_equals(tmp_path / "m", LlamaForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32).eval())


def test_tied_embeddings_are_held_once(tmp_path: Path) -> None:
    """The head is a view of the embeddings, not a second copy."""
    save_tiny(tmp_path / "m", "llama", tie_word_embeddings=True)
    weights = load(tmp_path / "m").decoder._weights

    assert weights.head.weight.data_ptr() == weights.embeddings.data_ptr()
    assert len(weights.head.weight) == N_TOKENS < len(weights.embeddings)


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


WRONG: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "a missing projection": (
        lambda t: t.pop("model.layers.1.self_attn.k_proj.weight"),
        "model.layers.1.self_attn.k_proj.weight is missing",
    ),
    "a missing norm": (lambda t: t.pop("model.norm.weight"), "model.norm.weight is missing"),
    "a missing head": (lambda t: t.pop("lm_head.weight"), "lm_head.weight is missing"),
    "a missing bias": (
        lambda t: t.pop("model.layers.2.self_attn.v_proj.bias"),
        "model.layers.2.self_attn.v_proj.bias is missing",
    ),
    "a misshapen projection": (
        lambda t: t.update({"model.layers.0.mlp.down_proj.weight": torch.zeros(64, 95)}),
        r"down_proj.weight has the shape \(64, 95\), not \(64, 96\)",
    ),
    "a misshapen norm": (
        lambda t: t.update({"model.layers.0.input_layernorm.weight": torch.zeros(63)}),
        r"input_layernorm.weight has the shape \(63,\), not \(64,\)",
    ),
    "a misshapen bias": (
        lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(1)}),
        r"q_proj.bias has the shape \(1,\)",
    ),
    "embeddings of another vocabulary": (
        lambda t: t.update({"model.embed_tokens.weight": torch.zeros(9, 64)}),
        r"embed_tokens.weight has the shape \(9, 64\)",
    ),
}


@pytest.mark.parametrize(("change", "reason"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_tensor_is_named(tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], reason: str) -> None:
    """The error says which tensor, what it is and what it should be."""
    save_tiny(tmp_path / "m", "qwen2")
    change_tensors(tmp_path / "m", change)

    with pytest.raises(ModelDamaged, match=reason) as error:
        load(tmp_path / "m")
    assert error.value.path == str(tmp_path / "m")


@pytest.mark.parametrize("n_bytes", [0, 5, 8, 200, 3000, -1])
def test_a_cut_off_safetensors_file_is_damaged(tmp_path: Path, n_bytes: int) -> None:
    """Wherever it ends: in its length, its header or its numbers."""
    save_tiny(tmp_path / "m", "llama")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:n_bytes])

    with pytest.raises(ModelDamaged, match=r"model\.safetensors cannot be read"):
        load(tmp_path / "m")


def test_what_is_no_safetensors_file_is_damaged(tmp_path: Path) -> None:
    save_tiny(tmp_path / "m", "llama")
    (tmp_path / "m" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n" * 3)

    with pytest.raises(ModelDamaged, match=r"model\.safetensors cannot be read"):
        load(tmp_path / "m")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path / "m", "llama", shard="100KB")
    shard = sorted((tmp_path / "m").glob("*.safetensors"))[1]
    shard.unlink()

    with pytest.raises(ModelDamaged, match=shard.name):
        load(tmp_path / "m")


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../secret"}}'])
def test_an_index_that_is_none_is_damaged(tmp_path: Path, index: str) -> None:
    """Also one that names files outside the folder: nothing else on this disk is opened."""
    save_tiny(tmp_path / "m", "llama", shard="100KB")
    (tmp_path / "m" / "model.safetensors.index.json").write_text(index)

    with pytest.raises(ModelDamaged, match=r"model\.safetensors\.index\.json"):
        load(tmp_path / "m")


# --- GGUF


def requantised(model: Any, quantization: GGMLQuantizationType) -> Any:
    """The model with each matrix as `gguf` itself makes it of the quantised one."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                stored = quantize(parameter.numpy(), quantization)
                parameter.copy_(torch.from_numpy(dequantize_by_gguf(stored, quantization).copy()))
    return model


@pytest.mark.parametrize("quantization", [Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1])
def test_a_gguf_file_gives_transformers_logits(tmp_path: Path, quantization: GGMLQuantizationType) -> None:
    """For every quantisation that can be written here; llama.cpp's order of query and key rows is undone."""
    model = tiny_model("llama", vocab_size=N_TOKENS)
    write_gguf(tmp_path / "m.gguf", model, quantization)

    assert_equals(tmp_path / "m.gguf", requantised(model, quantization))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
        ("llama", {"head_dim": 32}),
        ("llama", {"attention_bias": True}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 32}),
        ("ministral3", {}),
        ("smollm3", {"num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1]}),
        ("smollm3", {"no_rope_layers": [1, 1, 1], "tie_word_embeddings": True}),
        ("granite", {}),
        ("granite", {"attention_bias": True, "tie_word_embeddings": True}),
        ("phi3", {}),
        ("phi3", {"sliding_window": 20, "tie_word_embeddings": True}),
        ("gemma3_text", {"num_hidden_layers": 7, "layer_types": [*GEMMA_LAYERS, "sliding_attention"]}),
        ("gemma3_text", {"layer_types": ["sliding_attention"] * 3, "query_pre_attn_scalar": 32, "head_dim": 32}),
    ],
)
def test_every_architecture_is_read_from_gguf(tmp_path: Path, kind: Kind, changes: dict[str, Any]) -> None:
    """Tied heads, biases, norms of queries and keys, heads of their own size; Mistral calls itself llama there."""
    if kind == "gemma3_text":
        changes = {"query_pre_attn_scalar": 16, **changes}
    model = tiny_model(kind, vocab_size=N_TOKENS, **changes)
    write_gguf(tmp_path / "m.gguf", model, Q.Q8_0)

    assert_equals(tmp_path / "m.gguf", requantised(model, Q.Q8_0), n_tokens=90)


def test_every_gguf_architecture_is_a_supported_model_type() -> None:
    assert set(KINDS.values()) < set(SUPPORTED)


@pytest.mark.parametrize("n_tokens", [64, 65, 100])
def test_longrope_of_a_gguf_file_is_taken_over(tmp_path: Path, n_tokens: int) -> None:
    """Phi-3's two lists of factors are tensors there; logits on both sides of the switch."""
    lists = {"short_factor": np.linspace(1, 2, 6), "long_factor": np.linspace(1, 8, 6)}
    parameters = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
    parameters |= {name: values.astype(np.float32).tolist() for name, values in lists.items()}
    model = tiny_model("phi3", vocab_size=N_TOKENS, original_max_position_embeddings=64, rope_parameters=parameters)
    factors = {f"rope_factors_{name}.weight": lists[f"{name}_factor"].astype(np.float32) for name in ("short", "long")}
    scaling = {"phi3.rope.scaling.attn_factor": (1 + math.log(512 / 64) / math.log(64)) ** 0.5}
    write_gguf(tmp_path / "m.gguf", model, extra=scaling, tensors=factors)
    loaded, ids = load(tmp_path / "m.gguf"), random_ids(n_tokens)
    decoder = loaded.decoder.with_rope(loaded.rope(n_tokens))

    torch.testing.assert_close(logits_of(decoder, ids), expected(model, ids), atol=TOLERANCE, rtol=0)


def test_projections_of_phi_3_may_lie_apart_in_a_gguf_file(tmp_path: Path) -> None:
    """Older files have queries, keys and values as three tensors."""
    model = tiny_model("phi3", vocab_size=N_TOKENS)
    apart = {}
    for layer in range(3):
        fused = model.model.layers[layer].self_attn.qkv_proj.weight.detach().split([64, 32, 32])
        apart |= {f"blk.{layer}.attn_{name}.weight": part.numpy() for name, part in zip("qkv", fused, strict=True)}
    write_gguf(tmp_path / "m.gguf", model, tensors=apart, without="attn_qkv")

    assert_equals(tmp_path / "m.gguf", model)


def test_granite_without_rope_is_read_from_gguf(tmp_path: Path) -> None:
    """Granite 4's small models have no positions; the file says it by a switch of another name."""
    write_gguf(tmp_path / "m.gguf", tiny_model("granite"), extra={"granite.rope.scaling.finetuned": False})

    assert load(tmp_path / "m.gguf").spec.unrotated_layers == {0, 1, 2}


def test_gemma_3_27b_scales_scores_by_its_hidden_size(tmp_path: Path) -> None:
    """Which its file does not say: llama.cpp knows it by its 62 layers."""
    write_gguf(tmp_path / "m.gguf", tiny_model("gemma3_text", head_dim=32), extra={"gemma3.block_count": 62})
    values = config_values(read_header(tmp_path / "m.gguf"))

    assert values["query_pre_attn_scalar"] == 64 / 4
    assert values["layer_types"][4:7] == ["sliding_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "phi3", "gemma3_text"])
def test_a_gguf_file_is_read_as_transformers_reads_it(tmp_path: Path, kind: Kind) -> None:
    """Transformers' own reading of the same file, its order of rows included, gives the same logits."""
    changes = {"layer_types": ["sliding_attention"] * 3, "query_pre_attn_scalar": 16} if kind == "gemma3_text" else {}
    model = tiny_model(kind, vocab_size=N_TOKENS, **changes)
    write_gguf(tmp_path / "m.gguf", model, Q.Q4_1)
    theirs = tiny_model(kind, seed=1, vocab_size=N_TOKENS, **changes)
    tensors = load_gguf_checkpoint(str(tmp_path / "m.gguf"), return_tensors=True, model_to_load=theirs)["tensors"]
    theirs.load_state_dict(tensors)

    assert_equals(tmp_path / "m.gguf", theirs)


def test_rows_of_a_gguf_head_beyond_its_tokens_are_cut(tmp_path: Path) -> None:
    model = tiny_model("qwen2")
    write_gguf(tmp_path / "m.gguf", model)

    assert model.config.vocab_size > N_TOKENS
    assert_equals(tmp_path / "m.gguf", model)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("metadata", "parameters"),
    [
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 2.0}, {"rope_type": "default"}),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 64,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_rope_scaling_of_a_gguf_file_is_taken_over(
    tmp_path: Path, metadata: dict[str, Any], parameters: dict[str, Any]
) -> None:
    """Which transformers leaves out: logits are those of a model configured with the scaling."""
    changes = {"vocab_size": N_TOKENS, "max_position_embeddings": 256}
    write_gguf(tmp_path / "m.gguf", tiny_model("llama", **changes), extra=metadata)
    scaled = tiny_model("llama", **changes, rope_parameters={"rope_theta": 10_000.0, **parameters})

    assert_equals(tmp_path / "m.gguf", scaled, n_tokens=150)


def test_llama_3_scaling_of_a_gguf_file_is_taken_over(tmp_path: Path) -> None:
    """It is there as a divisor for each frequency, and such a model is not stretched further."""
    changes = {"vocab_size": N_TOKENS, "max_position_embeddings": 256}
    divisors = llama3_divisors(tiny_config("llama"), LLAMA3)
    write_gguf(tmp_path / "m.gguf", tiny_model("llama", **changes), tensors={"rope_freqs.weight": divisors})
    parameters = {"rope_type": "llama3", "rope_theta": 10_000.0, **LLAMA3}
    scaled = tiny_model("llama", **changes, rope_parameters=parameters)

    assert set(divisors.tolist()) > {1.0, 8.0}
    assert_equals(tmp_path / "m.gguf", scaled, n_tokens=150)
    assert load(tmp_path / "m.gguf").spec.trained_context == 256


def is_read_by_gguf(quantization: GGMLQuantizationType) -> bool:
    try:
        dequantize_by_gguf(np.zeros((1, GGML_QUANT_SIZES[quantization][1]), np.uint8), quantization)
    except NotImplementedError:
        return False
    return True


READABLE = [kind for kind in Q if kind not in PLAIN and is_read_by_gguf(kind)]


def test_the_kinds_people_download_are_readable() -> None:
    assert {kind.name for kind in READABLE} >= {
        "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS", "IQ2_XS", "IQ2_S",
        "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0",
    }  # fmt: skip


@pytest.mark.parametrize("quantization", READABLE)
def test_dequantising_equals_the_gguf_package_bit_for_bit(quantization: GGMLQuantizationType) -> None:
    """For any bytes at all; where the code is ours, over more blocks than are made at once."""
    n_blocks = 400 if quantization in BLOCKS else 7
    block_bytes = GGML_QUANT_SIZES[quantization][1]
    stored = np.random.default_rng(0).integers(0, 256, (3, n_blocks * block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected_numbers = torch.from_numpy(dequantize_by_gguf(stored, quantization).copy())
        numbers = torch.empty_like(expected_numbers)
        dequantize(stored, quantization, numbers)

    assert torch.equal(numbers.nan_to_num(), expected_numbers.nan_to_num())


@pytest.mark.parametrize("quantization", [kind for kind in Q if kind not in (*READABLE, *PLAIN)])
def test_what_cannot_be_dequantised_is_refused_by_name(quantization: GGMLQuantizationType) -> None:
    """Rather than read wrongly."""
    stored = np.zeros((1, GGML_QUANT_SIZES[quantization][1]), np.uint8)

    with pytest.raises(UnsupportedModel, match=quantization.name):
        dequantize(stored, quantization, torch.empty(1, GGML_QUANT_SIZES[quantization][0]))


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown architecture": ("bert", {}, "^bert$"),
    "experts": ("llama", {"llama.expert_count": 8}, "llama with experts"),
    "layers that differ": ("llama", {"llama.attention.head_count_kv": [2, 2, 1]}, "differ in attention.head_count_kv"),
    "half rotated heads": ("llama", {"llama.rope.dimension_count": 8}, "rope.dimension_count 8 where heads are 16"),
    "another scaling": (
        "llama",
        {"llama.rope.scaling.type": "su", "llama.rope.scaling.factor": 2.0},
        "RoPE scaling su",
    ),
    "longrope without its factors": ("phi3", {"phi3.rope.scaling.type": "longrope"}, "RoPE scaling longrope"),
    "capped logits": ("gemma3", {"gemma3.final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    "a hybrid": ("granitehybrid", {}, "^granitehybrid$"),
    "Gemma 3n": ("gemma3n", {}, "^gemma3n$"),
}


@pytest.mark.parametrize(("architecture", "extra", "name"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, architecture: str, extra: dict[str, Any], name: str
) -> None:
    """With the list of what is supported."""
    kind: Kind = {"phi3": "phi3", "gemma3": "gemma3_text"}.get(architecture, "llama")
    write_gguf(tmp_path / "m.gguf", tiny_model(kind, vocab_size=N_TOKENS), architecture=architecture, extra=extra)

    with pytest.raises(UnsupportedModel) as error:
        load(tmp_path / "m.gguf")
    assert re.search(name, error.value.name)
    assert "Mistral" in error.value.supported


def test_one_number_for_each_layer_is_one_number(tmp_path: Path) -> None:
    """Newer files list the KV heads layer by layer, all the same."""
    model = tiny_model("llama", vocab_size=N_TOKENS)
    write_gguf(tmp_path / "m.gguf", model, extra={"llama.attention.head_count_kv": [2, 2, 2]})

    assert_equals(tmp_path / "m.gguf", model)


@pytest.mark.parametrize(
    ("extra", "tensors", "reason"),
    [
        ({"llama.attention.head_count": 0}, {}, "it has 0 heads of 64 numbers"),
        ({"llama.attention.key_length": 0}, {}, "it has 4 heads of 0 numbers"),
        ({}, {"rope_freqs.weight": np.ones(7, np.float32)}, r"rope_freqs.weight is \(7,\) in F32, not \(8,\) in F32"),
        ({}, {"rope_freqs.weight": np.ones(8, np.float16)}, r"rope_freqs.weight is \(8,\) in F16"),
    ],
)
def test_numbers_that_cannot_be_are_damage(
    tmp_path: Path, extra: dict[str, Any], tensors: dict[str, Any], reason: str
) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_model("llama", vocab_size=N_TOKENS), extra=extra, tensors=tensors)

    with pytest.raises(ModelDamaged, match=reason):
        load(tmp_path / "m.gguf")


@pytest.mark.parametrize("pattern", [2, [True, False, True]])
def test_a_pattern_of_sliding_layers_is_taken_over(tmp_path: Path, pattern: Any) -> None:
    """As a number, each manieth layer of which sees all, or layer by layer."""
    write_gguf(
        tmp_path / "m.gguf",
        tiny_model("gemma3_text"),
        extra={"gemma3.attention.sliding_window_pattern": pattern},
    )

    assert load(tmp_path / "m.gguf").spec.sliding_layers == {0, 2}


@pytest.mark.parametrize("key", ["context_length", "block_count", "attention.head_count", "feed_forward_length"])
def test_a_missing_number_is_named(tmp_path: Path, key: str) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_model("llama", vocab_size=N_TOKENS), extra={f"llama.{key}": None})

    with pytest.raises(ModelDamaged, match=f"it does not say llama.{key}"):
        load(tmp_path / "m.gguf")


def test_a_layer_too_many_is_a_missing_tensor(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_model("llama", vocab_size=N_TOKENS), extra={"llama.block_count": 4})

    with pytest.raises(ModelDamaged, match=r"model\.layers\.3\..* is missing"):
        load(tmp_path / "m.gguf")


def test_an_absurd_size_is_a_wrong_shape(tmp_path: Path) -> None:
    """Nothing is set aside for a tensor before its shape is known to be right."""
    extra = {"llama.feed_forward_length": 2**31}
    write_gguf(tmp_path / "m.gguf", tiny_model("llama", vocab_size=N_TOKENS), extra=extra)

    with pytest.raises(ModelDamaged, match=r"gate_proj.weight has the shape \(96, 64\), not \(2147483648, 64\)"):
        load(tmp_path / "m.gguf")


def test_a_cut_off_gguf_file_is_damaged_wherever_it_ends(tmp_path: Path) -> None:
    """In its header, among its tensors' names, or in the last tensor's last byte."""
    write_gguf(tmp_path / "whole.gguf", tiny_model("llama", vocab_size=N_TOKENS), Q.Q8_0)
    whole = (tmp_path / "whole.gguf").read_bytes()
    last = max(tensor.start + tensor.n_bytes for tensor in read_header(tmp_path / "whole.gguf").tensors.values())
    for n_bytes in [0, 3, 4, 7, 8, 20, 24, *range(25, 16_000, 331), last // 2, last - 1]:
        (tmp_path / "cut.gguf").write_bytes(whole[:n_bytes])
        with pytest.raises(ModelDamaged):
            read_header(tmp_path / "cut.gguf")


@pytest.mark.parametrize("kind", ["llama", "phi3", "gemma3_text"])
def test_flipped_bytes_in_the_front_of_a_gguf_file_are_never_a_raw_error(tmp_path: Path, kind: Kind) -> None:
    """Whatever they do to names, counts and types: it is an `EngineError`, or the model still loads."""
    changes = {"layer_types": ["sliding_attention"]} if kind == "gemma3_text" else {}
    model = tiny_model(kind, num_hidden_layers=1, vocab_size=N_TOKENS, **changes)
    write_gguf(tmp_path / "whole.gguf", model, Q.Q8_0)
    whole = bytearray((tmp_path / "whole.gguf").read_bytes())
    front = min(tensor.start for tensor in read_header(tmp_path / "whole.gguf").tensors.values())
    generator = np.random.default_rng(0)
    n_refused = 0
    for number in range(60):
        changed = whole.copy()
        for place in generator.integers(0, front, 3):
            changed[place] = generator.integers(0, 256)
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(changed)
        try:
            load(path)
        except EngineError:
            n_refused += 1
    assert n_refused > 10


@pytest.mark.slow
def test_the_starter_gives_transformers_logits(starter_path: Path, tmp_path: Path) -> None:
    """Over 200 tokens, in float32, from transformers' own reading of the file."""
    name = str(starter_path)
    theirs = LlamaForCausalLM(LlamaConfig(**load_gguf_checkpoint(name)["config"])).eval()
    theirs.load_state_dict(
        load_gguf_checkpoint(name, return_tensors=True, model_to_load=theirs)["tensors"], strict=False
    )
    theirs.tie_weights()
    source = Source("starter", "starter", starter_path)
    facts = read_facts(source, tmp_path)
    ours = load_model(source, facts, torch.float32, CPU, lambda _: None)
    text = json.dumps({"prompt": "The quick brown fox jumps over 13 lazy dogs. " * 30})
    ids = torch.tensor(facts.tokenizer.encode(text)[:200])

    torch.testing.assert_close(
        logits_of(ours.decoder, ids), expected(theirs, ids, facts.tokenizer.n_tokens), atol=2e-3, rtol=0
    )
