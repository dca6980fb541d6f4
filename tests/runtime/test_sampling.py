"""The chain from logits to probabilities, case by case and against transformers' warpers."""

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from runtime.config import Sampling
from runtime.errors import InvalidSetting
from runtime.sampling import probabilities


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
    ],
)
def test_equals_transformers(sampling: Sampling, vocab: int) -> None:
    """Flat and peaked rows, so that the mass lies in few and in many tokens."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, vocab, generator=generator) * torch.tensor([[0.01], [0.5], [1], [2], [5], [10]])
    history = torch.randint(vocab, (6, 30), generator=generator)
    chain = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    chain.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chain.append(TopKLogitsWarper(sampling.top_k))
    chain.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        chain.append(MinPLogitsWarper(sampling.min_p))
    expected = chain(history, logits.clone()).softmax(-1)
    torch.testing.assert_close(probabilities(logits, sampling, list(history)), expected, atol=1e-6, rtol=1e-5)


def test_the_penalty_depends_on_each_rows_own_history() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0]]).repeat(2, 1)
    rows = probabilities(
        logits, Sampling(1.0, top_p=1.0, repetition_penalty=2.0), [torch.tensor([0]), torch.tensor([0, 0, 1])]
    )
    expected = torch.tensor([[1.0, -2.0, 1.0], [1.0, -4.0, 1.0]]).softmax(-1)
    torch.testing.assert_close(rows, expected)
    assert logits[0, 0] == 2.0, "the logits given are not changed"


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
    ],
)
def test_a_senseless_setting_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting):
        Sampling(**wrong)
