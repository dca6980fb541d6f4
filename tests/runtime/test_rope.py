"""Every kind of RoPE against transformers, from configs in its present form and in files of the old one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, LlamaForCausalLM

from runtime.kv.full import FullStore
from runtime.kv.streaming import StreamingStore
from runtime.models.load import read_facts
from runtime.models.rope import build_ropes, longest_context, planned_length, rotate, stretch
from runtime.models.sources import Source
from runtime.models.spec import read_spec
from tests.runtime.tiny import Kind, change_config, decoder_of, random_ids, save_tiny, tiny_config, tiny_decoder

TOLERANCE = 1e-4
TRAINED = 64
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": TRAINED}
YARN = {"factor": 4.0, "original_max_position_embeddings": TRAINED}
LONG = {
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
    "original_max_position_embeddings": TRAINED,
}
GEMMA_LINEAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "default, another base": {"rope_type": "default", "rope_theta": 500_000.0},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", **YARN},
    "yarn, all numbers": {"rope_type": "yarn", **YARN, "attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn without truncation": {"rope_type": "yarn", **YARN, "truncate": False},
    "llama3": {"rope_type": "llama3", **LLAMA3},
}


def assert_equals_transformers(decoder: Any, model: Any, n_tokens: int) -> None:
    spec, ids = decoder.spec, random_ids(n_tokens)
    store = FullStore(spec.n_layers, spec.n_kv_heads, spec.head_dim, decoder.dtype, decoder.device)
    with torch.inference_mode():
        expected = model(ids[None], use_cache=False).logits[0]
    torch.testing.assert_close(decoder.forward(ids, store, n_tokens), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS.keys())
def test_logits_equal_transformers_with_every_kind(kind: Kind, parameters: dict[str, Any]) -> None:
    """Through `rope_parameters`, over more tokens than the original context."""
    parameters = {"rope_theta": 10_000.0, **parameters}
    decoder, model = tiny_decoder(kind, max_position_embeddings=4 * TRAINED, rope_parameters=parameters)

    assert_equals_transformers(decoder, model, 200)


def test_the_kinds_differ() -> None:
    """What the test above compares is not the same for every kind: no two have the same angles."""
    tables = []
    for parameters in PARAMETERS.values():
        config = tiny_config(
            "llama", max_position_embeddings=4 * TRAINED, rope_parameters={"rope_theta": 10_000.0, **parameters}
        )
        (rope,) = build_ropes(config, 4 * TRAINED, 4 * TRAINED, torch.device("cpu"))
        tables.append(rope.at(range(100), torch.float32)[0])

    assert all(not torch.allclose(a, b) for i, a in enumerate(tables) for b in tables[:i])


@pytest.mark.parametrize(
    ("scaling", "kind"),
    [
        ({"type": "linear", "factor": 4.0}, "linear"),
        ({"rope_type": "linear", "factor": 4.0}, "linear"),
        ({"type": "yarn", **YARN}, "yarn"),
        ({"rope_type": "llama3", **LLAMA3}, "llama3"),
        (None, "default"),
    ],
)
def test_config_files_of_the_old_form_are_read(tmp_path: Path, scaling: dict[str, Any] | None, kind: str) -> None:
    """`rope_scaling` and `rope_theta` beside each other, as most published models have them."""
    save_tiny(tmp_path, "llama", max_position_embeddings=4 * TRAINED)
    change_config(tmp_path, rope_parameters=None, rope_scaling=scaling, rope_theta=20_000.0)
    config = AutoConfig.from_pretrained(tmp_path)
    model = LlamaForCausalLM.from_pretrained(tmp_path).eval()

    assert config.rope_parameters["rope_type"] == kind
    assert config.rope_parameters["rope_theta"] == 20_000.0
    assert_equals_transformers(decoder_of(model), model, 130)


def test_yarn_llama_2_is_read_as_published(tmp_path: Path) -> None:
    """Its config of 2023: YaRN as `type`, `finetuned`, and code of its own, which is not run."""
    save_tiny(tmp_path, "llama", max_position_embeddings=4 * TRAINED)
    code = {"AutoConfig": "configuration_llama.LlamaConfig", "AutoModelForCausalLM": "modeling.LlamaForCausalLM"}
    scaling = {"type": "yarn", **YARN, "finetuned": True}
    change_config(tmp_path, rope_parameters=None, rope_scaling=scaling, rope_theta=10_000.0, auto_map=code)
    facts = read_facts(Source("folder", "yarn", tmp_path), tmp_path)
    model = LlamaForCausalLM.from_pretrained(tmp_path).eval()

    assert facts.config.rope_parameters["rope_type"] == "yarn"
    assert facts.spec.trained_context == 4 * TRAINED
    assert_equals_transformers(decoder_of(model), model, 200)


def test_a_config_without_any_rope_has_the_architecture_s_own_base(tmp_path: Path) -> None:
    """Llama 2's first files say nothing; transformers takes 10,000."""
    save_tiny(tmp_path, "llama")
    change_config(tmp_path, rope_parameters=None)
    model = LlamaForCausalLM.from_pretrained(tmp_path).eval()

    assert_equals_transformers(decoder_of(model), model, 60)


@pytest.mark.parametrize("n_tokens", [40, TRAINED, TRAINED * 3 // 2, 2 * TRAINED])
def test_dynamic_scaling_stretches_by_the_length(n_tokens: int) -> None:
    """Up to the trained length it does nothing; at a step of the stretch it is transformers' for that length."""
    parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    decoder, model = tiny_decoder(
        "llama", n_tokens=n_tokens, max_position_embeddings=TRAINED, rope_parameters=parameters
    )

    assert_equals_transformers(decoder, model, n_tokens)
    assert read_spec(model.config).trained_context == TRAINED
    assert longest_context(model.config, TRAINED) == 2 * TRAINED


@pytest.mark.parametrize(("n_tokens", "factor"), [(TRAINED + 1, 1.5), (96, 1.5), (97, 2.0), (256, 4.0)])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_prompt_beyond_the_trained_context_turns_yarn_on(kind: Kind, n_tokens: int, factor: float) -> None:
    """With the smallest factor in steps of a half, and exactly as transformers computes it."""
    decoder, model = tiny_decoder(kind, n_tokens=n_tokens, max_position_embeddings=TRAINED)
    yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": TRAINED, "rope_theta": 10_000.0}
    _, stretched = tiny_decoder(kind, max_position_embeddings=TRAINED, rope_parameters=yarn)

    assert stretch(n_tokens, model.config, TRAINED) == factor
    assert_equals_transformers(decoder, stretched, n_tokens)


def test_within_the_trained_context_nothing_is_stretched() -> None:
    """The rotary embedding of a short prompt is the model's own."""
    decoder, model = tiny_decoder("llama", n_tokens=TRAINED, max_position_embeddings=TRAINED)

    assert stretch(TRAINED, model.config, TRAINED) == 1
    assert_equals_transformers(decoder, model, TRAINED)


@pytest.mark.parametrize("name", ["linear", "yarn", "llama3"])
def test_a_model_with_a_scaling_of_its_own_is_not_stretched(name: str) -> None:
    config = tiny_config("llama", rope_parameters={"rope_theta": 10_000.0, **PARAMETERS[name]})
    trained = read_spec(config).trained_context

    assert stretch(100_000, config, trained) == 1
    assert longest_context(config, trained) == trained


@pytest.mark.parametrize(
    ("kind", "changes", "trained", "longest"),
    [
        ("llama", {}, 512, 8192),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}}, 2048, 2048),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn", **YARN}}, 512, 512),
        ("qwen2", {"max_position_embeddings": 64, "rope_parameters": {"rope_type": "yarn", **YARN}}, 256, 256),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3", **LLAMA3}}, 512, 512),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "longrope", **LONG}}, 512, 512),
        ("mistral", {"sliding_window": 100}, 512, 512),
        ("mistral", {"sliding_window": None}, 512, 8192),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 100}, 512, 8192),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 100}, 512, 512),
        ("gemma3_text", {}, 512, 512),
        ("gemma3_text", {"rope_parameters": GEMMA_LINEAR}, 512, 512),
        ("ministral3", {}, 512, 512),
    ],
)
def test_the_context_is_what_the_model_was_made_for(
    kind: Kind, changes: dict[str, Any], trained: int, longest: int
) -> None:
    """Stretched by the model's own scaling; a model with sliding layers is not stretched further."""
    config = tiny_config(kind, **changes)

    assert read_spec(config).trained_context == trained
    assert longest_context(config, trained) == longest


@pytest.mark.parametrize("n_tokens", [TRAINED, TRAINED + 1, 150])
@pytest.mark.parametrize("factor", [1.0, 0.75])
def test_longrope_has_other_frequencies_beyond_its_original_length(n_tokens: int, factor: float) -> None:
    """On both sides of the switch, Phi-3's logits are transformers', with RoPE on a part of each head as well."""
    n_pairs = int(16 * factor) // 2
    long = {name: factors[:n_pairs] for name, factors in LONG.items() if isinstance(factors, list)}
    parameters = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": factor, **long}
    changes = {"original_max_position_embeddings": TRAINED, "rope_parameters": parameters}
    decoder, model = tiny_decoder("phi3", n_tokens=n_tokens, **changes)

    assert_equals_transformers(decoder, model, n_tokens)


@pytest.mark.parametrize(("window", "n_sliding"), [(None, 0), (511, 3), (512, 0), (262_144, 0)])
def test_a_window_as_long_as_the_context_is_none(window: int | None, n_sliding: int) -> None:
    """As Phi-3.5 and Phi-4-mini have one: their layers see all, and are drafted for like others."""
    spec = read_spec(tiny_config("phi3", sliding_window=window))

    assert (len(spec.sliding_layers), spec.windows[0]) == (n_sliding, window if n_sliding else None)


def test_a_short_sequence_is_planned_up_to_the_switch_of_longrope() -> None:
    """There its frequencies are those the model has for short texts; a longer one is planned for the whole context."""
    config = tiny_config("llama", rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, **LONG})

    assert [planned_length(n, config, 512) for n in (1, TRAINED, TRAINED + 1, 512)] == [TRAINED, TRAINED, 512, 512]
    assert [stretch(n, config, 512) for n in (1, TRAINED, TRAINED + 1, 512)] == [1, 1, 8, 8]
    assert planned_length(7, tiny_config("llama"), 512) == 512


def test_local_layers_have_a_rope_of_their_own() -> None:
    """In Gemma 3 the scaling of long contexts is that of the full layers alone."""
    decoder, model = tiny_decoder("gemma3_text", rope_parameters=GEMMA_LINEAR)

    assert decoder.spec.has_local_rope
    assert [decoder.spec.rope_of(layer) for layer in range(3)] == [1, 0, 1]
    assert_equals_transformers(decoder, model, 150)


@pytest.mark.parametrize("n_tokens", [TRAINED, TRAINED + 1, 300])
def test_queries_grow_with_their_position(n_tokens: int) -> None:
    """Ministral's temperature, up to the length where it begins and beyond, in one pass or token by token."""
    decoder, model = tiny_decoder("ministral3")
    spec, ids = decoder.spec, random_ids(n_tokens)
    with torch.inference_mode():
        expected = model(ids[None], use_cache=False).logits[0, -1:]
    store = FullStore(spec.n_layers, spec.n_kv_heads, spec.head_dim, decoder.dtype, decoder.device)
    decoder.forward(ids[:-1], store)

    assert_equals_transformers(decoder, model, n_tokens)
    torch.testing.assert_close(decoder.forward(ids[-1:], store), expected, atol=TOLERANCE, rtol=0)


def test_a_decoder_with_another_rope_keeps_its_weights() -> None:
    """`with_rope` gives what a decoder built with that rope gives."""
    short, model = tiny_decoder("llama", max_position_embeddings=TRAINED)
    stretched = decoder_of(model, n_tokens=2 * TRAINED)
    again = short.with_rope(build_ropes(model.config, TRAINED, 2 * TRAINED, torch.device("cpu")))
    ids, spec = random_ids(2 * TRAINED), short.spec
    logits = [
        decoder.forward(ids, FullStore(spec.n_layers, spec.n_kv_heads, spec.head_dim, torch.float32, ids.device))
        for decoder in (stretched, again)
    ]

    assert torch.equal(*logits)


def test_rotation_depends_on_distance_alone() -> None:
    """The product of a query and a key is the same wherever both stand, n tokens apart: streaming rests on it."""
    (rope,) = build_ropes(tiny_config("llama"), 512, 512, torch.device("cpu"))
    query, key = torch.randn(2, 1, 1, 16, generator=torch.Generator().manual_seed(0))

    def score(query_at: int, key_at: int) -> float:
        ours = rotate(query, *rope.at(range(query_at, query_at + 1), torch.float32))
        theirs = rotate(key, *rope.at(range(key_at, key_at + 1), torch.float32))
        return float((ours * theirs).sum())

    assert score(30, 10) == pytest.approx(score(420, 400), abs=1e-4)
    assert score(30, 10) != pytest.approx(score(30, 11), abs=1e-4)


def test_a_table_asked_for_again_is_the_same() -> None:
    """It grows with the positions asked for and changes with the dtype, never in its numbers."""
    (rope,) = build_ropes(tiny_config("llama"), 512, 512, torch.device("cpu"))
    first = [table.clone() for table in rope.at(range(5, 9), torch.float32)]
    rope.at(range(400), torch.float32)
    rope.at(range(3), torch.bfloat16)

    for table, before in zip(rope.at(range(5, 9), torch.float32), first, strict=True):
        assert torch.equal(table, before)


@pytest.mark.parametrize("sinks", [0, 4])
def test_a_streaming_cache_turns_with_its_window(sinks: int) -> None:
    """After eviction, positions are those within the window: the last is never beyond it."""
    store = StreamingStore(1, 1, 16, torch.float32, torch.device("cpu"), sinks, 8)
    for _ in range(30):
        store.extend(1)
        assert store.positions(1)[-1] <= sinks + 8
        store.commit()
