"""The chain from logits to probabilities, case by case and against transformers' warpers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from runtime.config import Sampling
from runtime.errors import InvalidSetting
from runtime.sampling import History, SeenTokens, adjusted, probabilities


def chance(*probs: float) -> Tensor:
    return torch.tensor([probs]).log()


@pytest.mark.parametrize(
    ("sampling", "logits", "expected"),
    [
        pytest.param(Sampling(1.0, top_p=1.0), chance(0.5, 0.3, 0.2), (0.5, 0.3, 0.2), id="nothing on"),
        pytest.param(Sampling(0.0), chance(0.4, 0.4, 0.2), (1.0, 0.0, 0.0), id="greedy takes the first of equals"),
        pytest.param(Sampling(0.5, top_p=1.0), chance(0.6, 0.2, 0.2), (9 / 11, 1 / 11, 1 / 11), id="temperature"),
        pytest.param(Sampling(1.0, 2, 1.0), chance(0.5, 0.3, 0.2), (0.625, 0.375, 0.0), id="top-k"),
        pytest.param(Sampling(1.0, 99, 1.0), chance(0.5, 0.3, 0.2), (0.5, 0.3, 0.2), id="top-k beyond the vocabulary"),
        pytest.param(Sampling(1.0, top_p=0.7), chance(0.5, 0.3, 0.2), (0.625, 0.375, 0.0), id="top-p"),
        pytest.param(Sampling(1.0, top_p=0.01), chance(0.5, 0.3, 0.2), (1.0, 0.0, 0.0), id="top-p keeps one"),
        pytest.param(Sampling(1.0, top_p=1.0, min_p=0.5), chance(0.5, 0.3, 0.2), (0.625, 0.375, 0.0), id="min-p"),
        pytest.param(Sampling(1.0, 2, 0.6), chance(0.5, 0.3, 0.2), (1.0, 0.0, 0.0), id="top-p of what top-k left"),
    ],
)
def test_cases(sampling: Sampling, logits: Tensor, expected: tuple[float, ...]) -> None:
    assert probabilities(logits, sampling)[0].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("vocab", [50, 5000])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.6, top_p=0.9),
        Sampling(1.3, 40, 0.95),
        Sampling(1.0, top_p=0.999),
        Sampling(2.0, top_p=0.5, min_p=0.1),
        Sampling(0.8, 20, 0.9, 0.05, 1.3),
        Sampling(1.0, top_p=0.95, repetition_penalty=0.7),
        Sampling(1.0, top_p=0.95, logit_bias=((3, 4.0), (7, -100.0))),
        Sampling(0.8, 20, 0.9, 0.05, 1.3, logit_bias=((0, -2.0), (11, 5.5))),
    ],
)
def test_equals_transformers(sampling: Sampling, vocab: int) -> None:
    """Flat and peaked rows, so that the mass lies in few and in many tokens."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, vocab, generator=generator) * torch.tensor([[0.01], [0.5], [1], [2], [5], [10]])
    history = torch.randint(vocab, (6, 30), generator=generator)
    chain = LogitsProcessorList()
    if sampling.logit_bias:
        chain.append(SequenceBiasLogitsProcessor({(token,): bias for token, bias in sampling.logit_bias}))
    if sampling.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    chain.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chain.append(TopKLogitsWarper(sampling.top_k))
    chain.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        chain.append(MinPLogitsWarper(sampling.min_p))
    expected = chain(history, logits.clone()).softmax(-1)
    seen = torch.zeros(6, vocab, dtype=torch.bool).scatter_(1, history, True)
    torch.testing.assert_close(probabilities(logits, sampling, History(seen)), expected, atol=1e-6, rtol=1e-5)


LOGITS = torch.tensor([[2.0, -2.0, 1.0, 0.0]])
"""Of four tokens; what stands before them is a prompt (0, 0) and an answer (1, 2, 1)."""


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        pytest.param({"repetition_penalty": 2.0}, (1.0, -4.0, 0.5, 0.0), id="repetition: prompt and answer"),
        pytest.param({"presence_penalty": 0.5}, (2.0, -2.5, 0.5, 0.0), id="presence: the answer alone, once"),
        pytest.param({"frequency_penalty": 0.5}, (2.0, -3.0, 0.5, 0.0), id="frequency: the answer alone, each time"),
        pytest.param({"frequency_penalty": -0.5}, (2.0, -1.0, 1.5, 0.0), id="below 0 encourages"),
        pytest.param({"presence_penalty": 1.0, "frequency_penalty": 0.5}, (2.0, -4.0, -0.5, 0.0), id="both add up"),
        pytest.param({"logit_bias": ((3, 2.5), (0, -1.0))}, (1.0, -2.0, 1.0, 2.5), id="bias"),
        pytest.param(
            {"logit_bias": ((1, 4.0),), "repetition_penalty": 2.0, "presence_penalty": 0.25},
            (1.0, 0.75, 0.25, 0.0),
            id="bias, then repetition, then presence",
        ),
    ],
)
def test_what_is_done_to_logits(sampling: dict[str, Any], expected: tuple[float, ...]) -> None:
    chosen = Sampling(**sampling)
    history = SeenTokens(chosen, 2).before([0, 0, 1, 2, 1], (), 4, LOGITS)
    assert adjusted(LOGITS, chosen, history)[0].tolist() == list(expected)
    assert LOGITS[0, 0] == 2.0, "the logits given are not changed"
    greedy = probabilities(LOGITS, replace(chosen, temperature=0), history)
    assert int(greedy.argmax()) == expected.index(max(expected))


def test_each_row_has_its_own_history() -> None:
    """A row's history is what comes before it: the draft up to there, and nothing of it beyond."""
    seen = SeenTokens(Sampling(repetition_penalty=2.0, frequency_penalty=1.0), 2)
    history = seen.before([0, 3, 1], [2, 2], 2, torch.zeros(3, 4))
    assert history.seen is not None
    assert history.counts is not None
    assert history.seen.int().tolist() == [[1, 1, 0, 1], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert history.counts.tolist() == [[0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 2, 0]]


@given(st.data())
def test_counting_goes_on_from_what_is_settled(data: st.DataObject) -> None:
    """However drafts come and go and whenever tokens settle, the history is that of a fresh count."""
    sampling = Sampling(repetition_penalty=2.0, frequency_penalty=1.0)
    ids = st.lists(st.integers(0, 3), max_size=4)
    prompt = data.draw(ids.filter(bool))
    seen, tokens, n_settled = SeenTokens(sampling, len(prompt)), list(prompt), 0
    for _ in range(data.draw(st.integers(1, 4))):
        tokens += data.draw(ids)
        n_settled = data.draw(st.integers(n_settled, len(tokens)))
        draft = data.draw(ids)
        history = seen.before(tokens, draft, n_settled, torch.zeros(len(draft) + 1, 4))
        assert history.seen is not None
        assert history.counts is not None
        for row in range(len(draft) + 1):
            before = [*tokens, *draft[:row]]
            assert history.seen[row].tolist() == [token in before for token in range(4)]
            assert history.counts[row].tolist() == [before[len(prompt) :].count(token) for token in range(4)]


def test_penalties_without_a_history_are_a_fault() -> None:
    with pytest.raises(ValueError, match="history"):
        probabilities(LOGITS, Sampling(presence_penalty=1.0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": 1.0},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 2.1},
        {"presence_penalty": float("nan")},
        {"frequency_penalty": -2.1},
        {"logit_bias": ((-1, 0.0),)},
        {"logit_bias": ((1, 101.0),)},
        {"logit_bias": ((1, float("nan")),)},
        {"logit_bias": ((1, 2.0), (1, 3.0))},
    ],
)
def test_a_senseless_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        Sampling(**wrong)
