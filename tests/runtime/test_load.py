"""From files to a model: config, tokenizer and end ids, and the conversion that is kept of a GGUF file."""

import contextlib
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from transformers import AutoTokenizer

from runtime.errors import ModelDamaged, UnsupportedModel
from runtime.events import Progress
from runtime.kv.full import FullStore
from runtime.models import converted
from runtime.models.load import load_model, read_facts
from runtime.models.sources import Source
from tests.runtime.tiny import (
    KINDS,
    N_TOKENS,
    WRAPPERS,
    Kind,
    change_config,
    random_ids,
    save_tiny,
    save_tiny_wrapped,
    tiny_backend,
    tiny_model,
)
from tests.runtime.tiny_gguf import write_gguf

TEXT = "the thing and 12 on\n\n34  the <|im_end|> é漢🙂 in\t the"


def folder_at(path: Path) -> Source:
    return Source("folder", str(path), path)


def gguf_at(path: Path) -> Source:
    return Source("gguf", str(path), path)


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_model("llama", num_hidden_layers=1, vocab_size=N_TOKENS))
    return path


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to reach another machine, or to look one up, fails the test."""

    def refuse(*arguments: Any) -> None:
        raise AssertionError(f"the network was asked for {arguments}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_read_without_the_network(tmp_path: Path, kind: Kind) -> None:
    """Config, tokenizer and weights of every architecture; progress counts layers."""
    save_tiny(tmp_path, kind)
    facts = read_facts(folder_at(tmp_path), tmp_path / "cache")
    seen: list[Progress] = []
    model = load_model(folder_at(tmp_path), facts, torch.float32, torch.device("cpu"), seen.append)

    assert facts.spec.architecture == kind
    assert facts.tokenizer.encode(TEXT) == tiny_backend().encode(
        TEXT, split_special_tokens=True, add_special_tokens=False
    )
    assert model.tokenizer.eos_ids == {2}
    assert [(step.stage, step.done, step.total) for step in seen] == [("load", i, 3) for i in range(4)]


@pytest.mark.parametrize("prefixes", ["as transformers saves it", "as it is in memory"])
@pytest.mark.parametrize("kind", WRAPPERS)
def test_the_text_model_of_one_that_sees_is_read(tmp_path: Path, kind: Kind, prefixes: str) -> None:
    """Gemma 3 from 4B on, Mistral Small and Ministral 3 have a vision tower; without images the logits are theirs."""
    model = save_tiny_wrapped(tmp_path, kind)
    if prefixes == "as it is in memory":
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()},
                  tmp_path / "model.safetensors", {"format": "pt"})  # fmt: skip
    facts = read_facts(folder_at(tmp_path), tmp_path / "cache")
    decoder = load_model(folder_at(tmp_path), facts, torch.float32, torch.device("cpu"), lambda _: None).decoder
    spec, ids = facts.spec, random_ids(70)
    store = FullStore(spec.n_layers, spec.n_kv_heads, spec.head_dim, decoder.dtype, decoder.device)
    with torch.inference_mode():
        expected = model(input_ids=ids[None], use_cache=False).logits[0, :, :N_TOKENS]

    assert spec.architecture == kind
    assert facts.tokenizer.eos_ids == {2}
    torch.testing.assert_close(decoder.forward(ids, store, 70), expected, atol=1e-4, rtol=0)


def test_a_quantised_model_that_sees_is_refused_by_name(tmp_path: Path) -> None:
    """Ministral 3 is published in fp8, which its outer config says."""
    save_tiny_wrapped(tmp_path, "ministral3")
    change_config(tmp_path, quantization_config={"quant_method": "fp8"})

    with pytest.raises(UnsupportedModel, match="ministral3 with quantised safetensors"):
        read_facts(folder_at(tmp_path), tmp_path / "cache")


@pytest.mark.usefixtures("no_network")
def test_a_gguf_file_is_read_without_the_network(gguf: Path, tmp_path: Path) -> None:
    facts = read_facts(gguf_at(gguf), tmp_path / "cache")

    assert facts.tokenizer.decode(facts.tokenizer.encode(TEXT)) == TEXT


def test_several_end_ids_are_known(tmp_path: Path) -> None:
    """Of config.json, generation_config.json and the tokenizer together."""
    save_tiny(tmp_path, "llama")
    change_config(tmp_path, eos_token_id=[7, 8])
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [8, 9]}')

    assert read_facts(folder_at(tmp_path), tmp_path / "cache").tokenizer.eos_ids == {2, 7, 8, 9}


@pytest.mark.parametrize("ends", ["5", "null", "[]"])
def test_one_end_id_or_none_is_fine(tmp_path: Path, ends: str) -> None:
    save_tiny(tmp_path, "llama")
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {ends}}}')

    assert read_facts(folder_at(tmp_path), tmp_path / "cache").tokenizer.eos_ids == {2} | (
        {5} if ends == "5" else set()
    )


def test_end_of_turn_ids_of_a_gguf_file_are_known(tmp_path: Path) -> None:
    """Llama 3 ends a turn by another token than a text."""
    path = tmp_path / "m.gguf"
    write_gguf(path, tiny_model("llama", num_hidden_layers=1), extra={"tokenizer.ggml.eot_token_id": 1})

    assert read_facts(gguf_at(path), tmp_path / "cache").tokenizer.eos_ids == {1, 2}


def test_what_the_template_ends_a_turn_with_ends_an_answer(tmp_path: Path) -> None:
    """Also where the config names only the end of a text."""
    save_tiny(tmp_path, "llama")
    change_config(tmp_path, eos_token_id=0)
    (tmp_path / "generation_config.json").unlink()
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token": "<|endoftext|>"}))

    assert read_facts(folder_at(tmp_path), tmp_path / "cache").tokenizer.eos_ids == {0, 2}


OTHERS = [
    "gpt2", "llama4", "mixtral", "mistral4", "qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5", "gemma2", "gemma3n",
    "gemma4", "granitemoe", "granitemoehybrid", "granite_swa", "phimoe", "jamba", "no-such-model",
]  # fmt: skip


@pytest.mark.parametrize("model_type", OTHERS)
def test_an_unsupported_architecture_is_refused_by_name(tmp_path: Path, model_type: str) -> None:
    """Hybrids, experts and others, known to transformers or not, with the list of what is supported, each once."""
    save_tiny(tmp_path, "llama")
    change_config(tmp_path, model_type=model_type)

    with pytest.raises(UnsupportedModel) as error:
        read_facts(folder_at(tmp_path), tmp_path / "cache")
    assert error.value.name == model_type
    assert error.value.supported.count("Gemma 3") == error.value.supported.count("Qwen3") == 1


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"hidden_act": "gelu"}, "activation gelu"),
        ({"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}, "proportional"),
        ({"partial_rotary_factor": 0.5}, "a part of each head"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"sliding_window": -1}, "a window of -1 tokens"),
    ],
)
def test_an_unsupported_feature_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    save_tiny(tmp_path, "llama")
    change_config(tmp_path, **changes)

    with pytest.raises(UnsupportedModel, match=name):
        read_facts(folder_at(tmp_path), tmp_path / "cache")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", ""),
        ("config.json", "[1]"),
        ("config.json", '{"model_type": "llama", "hidden_size": "wide"}'),
        ("config.json", '{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 0}'),
        ("config.json", '{"model_type": "llama", "rope_scaling": {"rope_type": "yarn"}}'),
        ("generation_config.json", "{"),
        ("tokenizer.json", "{"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "{"),
    ],
)
def test_a_damaged_file_of_a_folder_is_never_a_raw_error(tmp_path: Path, file: str, text: str) -> None:
    save_tiny(tmp_path, "llama")
    (tmp_path / file).write_text(text)

    with pytest.raises(ModelDamaged):
        read_facts(folder_at(tmp_path), tmp_path / "cache")


def test_a_folder_without_a_tokenizer_is_damaged(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()

    with pytest.raises(ModelDamaged, match="tokenizer"):
        read_facts(folder_at(tmp_path), tmp_path / "cache")


def test_a_sentencepiece_model_alone_is_enough(tmp_path: Path) -> None:
    """As Llama 2 is published: no tokenizer.json. Ids and text are those of the sentencepiece library."""
    save_tiny(tmp_path, "llama", vocab_size=400)
    for name in ("tokenizer.json", "chat_template.jinja"):
        (tmp_path / name).unlink()
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    with (tmp_path / "tokenizer.model").open("wb") as file:
        SentencePieceTrainer.train(
            sentence_iterator=iter(["the quick brown fox jumps over the lazy dog and the thing"] * 50),
            model_writer=file,
            vocab_size=320,
            model_type="bpe",
            byte_fallback=True,
            hard_vocab_limit=False,
            remove_extra_whitespaces=False,
            normalization_rule_name="identity",
            minloglevel=2,
        )
    reference = SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    tokenizer = read_facts(folder_at(tmp_path), tmp_path / "cache").tokenizer

    assert reference.encode("the fox", out_type=str) == ["▁the", "▁fox"]
    for text in ("the fox", " the  dog\n\n é漢", "<s>the</s>", "\nthe", "a"):
        assert tokenizer.encode(text) == reference.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_code_that_a_model_brings_is_not_run(tmp_path: Path) -> None:
    """Whatever its files ask for."""
    save_tiny(tmp_path, "llama")
    marker = tmp_path / "was_run"
    (tmp_path / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: pass\n")
    change_config(tmp_path, auto_map={"AutoConfig": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]})
    settings = tmp_path / "tokenizer_config.json"
    changed = json.loads(settings.read_text()) | {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    settings.write_text(json.dumps(changed))

    with contextlib.suppress(ModelDamaged):  # refusing is as good
        read_facts(folder_at(tmp_path), tmp_path / "cache")
    assert not marker.exists()


# --- the conversion of a GGUF file


def kept_under(cache: Path) -> Path:
    (folder,) = (cache / "converted").iterdir()
    return folder


def test_a_conversion_is_kept_and_used(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time the file's tokenizer is not converted, and everything is the same."""
    first = read_facts(gguf_at(gguf), tmp_path / "cache")
    monkeypatch.setattr(converted, "read_header", None)
    second = read_facts(gguf_at(gguf), tmp_path / "cache")

    assert second.spec == first.spec
    assert second.config.rope_parameters == first.config.rope_parameters
    assert second.tokenizer.vocabulary == first.tokenizer.vocabulary
    assert second.tokenizer.encode(TEXT) == first.tokenizer.encode(TEXT)
    assert second.tokenizer.chat_frame("Be brief.") == first.tokenizer.chat_frame("Be brief.")
    assert second.tokenizer.eos_ids == first.tokenizer.eos_ids
    assert second.tokenizer.control_ids == first.tokenizer.control_ids


@pytest.mark.parametrize("file", ["conversion.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_a_broken_conversion_is_made_anew(gguf: Path, tmp_path: Path, file: str, damage: str) -> None:
    """And put in place of the broken one."""
    cache = tmp_path / "cache"
    first = read_facts(gguf_at(gguf), cache)
    broken = kept_under(cache) / file
    whole = broken.read_bytes()
    if damage == "missing":
        broken.unlink()
    else:
        broken.write_bytes(whole[: len(whole) // 2 if damage == "cut" else 0])

    again = read_facts(gguf_at(gguf), cache)

    assert again.tokenizer.encode(TEXT) == first.tokenizer.encode(TEXT)
    assert again.tokenizer.chat_frame("") == first.tokenizer.chat_frame("")
    assert broken.read_bytes() == whole


def test_an_interrupted_conversion_leaves_nothing_that_counts(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while it is written: next time it is made from the start."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read_facts(gguf_at(gguf), tmp_path / "cache")

    assert list((tmp_path / "cache" / "converted").iterdir()) == []
    read_facts(gguf_at(gguf), tmp_path / "cache")
    assert (kept_under(tmp_path / "cache") / "tokenizer.json").exists()


def test_a_changed_file_is_converted_again(gguf: Path, tmp_path: Path) -> None:
    """One of the same name and size, written later, is another file."""
    read_facts(gguf_at(gguf), tmp_path / "cache")
    os.utime(gguf, ns=(1, 1))
    read_facts(gguf_at(gguf), tmp_path / "cache")

    assert len(list((tmp_path / "cache" / "converted").iterdir())) == 2


def test_a_cache_that_cannot_be_written_only_takes_longer(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder would be")

    assert read_facts(gguf_at(gguf), tmp_path / "cache").tokenizer.n_tokens == N_TOKENS


@pytest.mark.parametrize(
    "extra",
    [
        {"tokenizer.ggml.model": "no-such-kind"},
        {"tokenizer.ggml.tokens": None},
        {"tokenizer.ggml.merges": ["qq zz"]},
        {"tokenizer.ggml.eos_token_id": 100_000},
    ],
)
def test_a_gguf_tokenizer_that_cannot_be_read_is_damaged(tmp_path: Path, extra: dict[str, Any]) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, tiny_model("llama", num_hidden_layers=1, vocab_size=N_TOKENS), extra=extra)

    with pytest.raises(ModelDamaged, match="tokenizer"):
        read_facts(gguf_at(path), tmp_path / "cache")


def test_a_gguf_file_that_went_away_is_damaged(gguf: Path, tmp_path: Path) -> None:
    gguf.unlink()

    with pytest.raises(ModelDamaged):
        read_facts(gguf_at(gguf), tmp_path / "cache")


def test_a_gguf_template_is_taken_over(gguf: Path, tmp_path: Path) -> None:
    frame = read_facts(gguf_at(gguf), tmp_path / "cache").tokenizer.chat_frame("Be brief.")

    assert frame.opening[0] == 1
    assert frame.assistant_to_user[0] == 2


def test_smollm_splits_digits_from_the_white_space_before_them(tmp_path: Path) -> None:
    """As its own tokenizer does: a run of line ends before a number is one token there."""
    path = tmp_path / "m.gguf"
    write_gguf(path, tiny_model("llama", num_hidden_layers=1), extra={"tokenizer.ggml.pre": "smollm"})
    splits = read_facts(gguf_at(path), tmp_path / "cache").tokenizer._bare.pre_tokenizer.pre_tokenize_str("a\n\n12")

    assert [text for text, _ in splits] == ["a", "ĊĊ", "1", "2"]


def test_the_head_is_cut_to_the_tokenizer(tmp_path: Path) -> None:
    """Padding of the vocabulary can never be drawn."""
    save_tiny(tmp_path, "llama")
    facts = read_facts(folder_at(tmp_path), tmp_path / "cache")
    model = load_model(folder_at(tmp_path), facts, torch.float32, torch.device("cpu"), lambda _: None)

    assert facts.spec.vocab_size > facts.tokenizer.n_tokens == N_TOKENS
    assert len(model.decoder._weights.head.weight) == N_TOKENS


def test_a_token_the_model_does_not_know_is_never_drawn(tmp_path: Path) -> None:
    """Where the tokenizer has more tokens than the model rows: they may stand in a prompt, and have no probability."""
    save_tiny(tmp_path, "llama", vocab_size=N_TOKENS - 2)
    facts = read_facts(folder_at(tmp_path), tmp_path / "cache")
    decoder = load_model(folder_at(tmp_path), facts, torch.float32, torch.device("cpu"), lambda _: None).decoder
    store = FullStore(3, 2, 16, decoder.dtype, decoder.device)
    probs = decoder.forward(torch.tensor([5, N_TOKENS - 1]), store, 2).softmax(-1)

    assert probs.shape == (2, N_TOKENS)
    assert (probs[:, -2:] == 0).all()
    assert (probs[:, :-2] > 0).all()


@pytest.mark.slow
def test_the_starter_s_conversion_is_what_transformers_makes_of_it(starter_path: Path, tmp_path: Path) -> None:
    """Ids of prose, code and other scripts, but for the digits after white space that it splits wrongly."""
    ours = read_facts(gguf_at(starter_path), tmp_path).tokenizer
    theirs = AutoTokenizer.from_pretrained(starter_path.parent, gguf_file=starter_path.name)
    texts = [Path(__file__).read_text("utf-8").replace("12", "").replace("34", ""), "naïve façade 漢字 Привет 🙂"]
    generator = np.random.default_rng(0)
    texts.append("".join(map(chr, generator.integers(0x20, 0x2000, 2000))))

    for text in texts:
        text = "".join(letter for letter in text if not letter.isnumeric())
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False, split_special_tokens=True)
    shutil.rmtree(tmp_path / "converted")
