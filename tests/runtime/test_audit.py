"""Teacher forcing: greedy answers in bfloat16 and with quantised weights are plain decoding's up to near-ties."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType

from runtime.audit import NEAR_TIE, Deviation, deviations
from runtime.config import Request, Sampling
from runtime.kv.full import FullStore
from runtime.models.load import Model, load_model, read_facts
from runtime.models.sources import locate
from runtime.prefill import prefill
from runtime.session import Session
from tests.runtime.sessions import GREEDY, HIERARCHY, ask, draft_always, prompt, tiny
from tests.runtime.tiny import N_TOKENS, tiny_model
from tests.runtime.tiny_gguf import write_gguf

PENALISED = Sampling(0, repetition_penalty=1.2, frequency_penalty=0.5)


@pytest.fixture(autouse=True)
def _drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, has_retrieval=True)


def empty_store(model: Model) -> FullStore:
    spec = model.spec
    return FullStore(spec.n_layers, spec.n_kv_heads, spec.head_dim, model.decoder.dtype, model.decoder.device)


def audited(model: Model, ids: list[int], answer: list[int], sampling: Sampling = GREEDY) -> list[Deviation]:
    """Deviations by a store of its own, which is as before in the end."""
    store = empty_store(model)
    list(prefill(model.decoder, store, ids[:-1], threading.Event()))
    found = list(deviations(model.decoder, store, ids, answer, sampling))
    assert store.length == store.committed == len(ids) - 1
    return found


def fast_answer(model: Model, ids: list[int], sampling: Sampling = GREEDY) -> list[int]:
    end = ask(Session(model, None, replace(HIERARCHY, budget=140), 512), ids, Request(sampling, max_tokens=60))
    full = end.stats.levels[0]
    assert full.proposed > full.accepted > 20, "drafts really stand in it"
    return list(end.token_ids)


def quantised(folder: Path, dtype: torch.dtype, quantization: GGMLQuantizationType) -> Model:
    write_gguf(folder / "m.gguf", tiny_model("llama", vocab_size=N_TOKENS), quantization)
    source = locate(str(folder / "m.gguf"), folder, False, lambda _: None)
    facts = read_facts(source, folder / "cache")
    return load_model(source, facts, dtype, torch.device("cpu"), lambda _: None)


@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["greedy", "with penalties"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_in_bfloat16_every_token_is_the_best_or_nearly_so(seed: int, sampling: Sampling) -> None:
    model, ids = tiny(dtype=torch.bfloat16), prompt(120, seed)
    found = audited(model, ids, fast_answer(model, ids, sampling), sampling)
    assert all(0 <= each.gap <= NEAR_TIE[torch.bfloat16] for each in found), found


@pytest.mark.parametrize("quantization", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_with_quantised_weights_too(dtype: torch.dtype, quantization: GGMLQuantizationType, tmp_path: Path) -> None:
    model, ids = quantised(tmp_path, dtype, quantization), prompt(120)
    found = audited(model, ids, fast_answer(model, ids))
    assert all(0 <= each.gap <= NEAR_TIE[dtype] for each in found), found
    assert dtype == torch.bfloat16 or found == []


def test_in_float32_there_is_no_deviation() -> None:
    model, ids = tiny(), prompt(120)
    assert audited(model, ids, fast_answer(model, ids, PENALISED), PENALISED) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_token_is_found_out(dtype: torch.dtype) -> None:
    """Negative control: a token twice as far behind as a near-tie is told with its place and its gap."""
    model, ids = tiny(dtype=dtype), prompt(120)
    answer = fast_answer(model, ids)
    logits = model.decoder.forward(torch.tensor([*ids, *answer[:7]]), empty_store(model))[0]
    far_behind = logits.max() - logits > 2 * NEAR_TIE[dtype]
    wrong = int(logits.where(far_behind, -torch.inf).argmax())
    (found,) = (each for each in audited(model, ids, [*answer[:7], wrong]) if each.position == 7)
    assert (found.token, found.best) == (wrong, int(logits.argmax()))
    assert found.gap == pytest.approx(float(logits.max() - logits[wrong]), abs=NEAR_TIE[dtype])
    assert found.gap > NEAR_TIE[dtype]


def test_forgotten_penalties_are_found_out() -> None:
    """Negative control: an answer without penalties is none with them."""
    model, ids = tiny(), prompt(120)
    assert max(each.gap for each in audited(model, ids, fast_answer(model, ids), PENALISED)) > 0.1
