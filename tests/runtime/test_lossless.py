"""The check that people run: it passes a right decoder and finds out wrong ones."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runtime import lossless
from runtime.choices import Choices
from runtime.config import EngineConfig, Sampling, Speculation
from runtime.drafter import Draft
from runtime.engine import Engine, assemble
from runtime.errors import InvalidSetting
from runtime.lossless import Report, chance_bound, check
from runtime.sampling import probabilities
from runtime.verify import Verdict
from tests.runtime.tiny import save_tiny

ROUNDS = 1500
SAMPLED = Sampling(1.0, top_p=0.95)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("model")
    save_tiny(folder / "model", "llama", num_hidden_layers=2)
    config = EngineConfig(folder, str(folder / "model"), None, lossless.CONTEXT, "cpu", "float32", 1)
    built = assemble(config, lambda _: None)
    yield built
    built.close()


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lossless, "ROUNDS", ROUNDS)
    monkeypatch.setattr(lossless, "ANSWER_TOKENS", 24)
    monkeypatch.setattr(lossless, "SAMPLED_TOP_K", 64)  # random weights agree on the first few less than real ones


def report_of(engine: Engine, sampling: Sampling = SAMPLED, n_prompts: int = 1) -> Report:
    return check(engine, Speculation(), sampling, n_prompts, lambda _: None)


@pytest.mark.parametrize(
    "sampling",
    [SAMPLED, Sampling(0.0), Sampling(1.0, top_p=0.95, presence_penalty=0.5, frequency_penalty=0.5)],
    ids=["sampled", "greedy", "penalties"],
)
def test_a_right_decoder_passes(engine: Engine, sampling: Sampling) -> None:
    """In float32 nothing differs; and both levels really drafted, were accepted and were rejected."""
    report = report_of(engine, sampling)
    assert (report.ok, report.greedy_equal, report.near_ties, report.wrong) == (True, True, (), ())
    for sampled in report.sampled:
        assert sampled.distance < sampled.bound < 1.01 * chance_bound(ROUNDS, 9, lossless.DELTA)
        full, retrieval = sampled.levels
        assert (full.name, retrieval.name) == ("full", "retrieval")
        assert 0 < full.accepted < full.proposed == 2 * ROUNDS
        assert 0 < retrieval.accepted < retrieval.proposed


def accept_always(draft: Draft, probs: torch.Tensor, choices: Choices) -> Verdict:
    return Verdict(len(draft.tokens), choices.draw(probs[-1]), "bonus")


def test_accepting_always_is_found_out_both_ways(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.speculation.verify", accept_always)
    report = report_of(engine)
    assert not report.ok
    assert not report.greedy_equal
    assert report.wrong
    assert report.worst.distance > report.worst.bound


def test_redrawing_from_p_is_found_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes no greedy answer, so the draws alone tell: from a retrieval cache that is often wrong, and many."""
    monkeypatch.setattr(lossless, "SMALL", replace(lossless.SMALL, budget=32))
    monkeypatch.setattr(lossless, "ROUNDS", 8000)
    monkeypatch.setattr("runtime.verify.residual", lambda p, q: p)
    report = report_of(engine)
    assert report.wrong == ()
    assert not report.ok


def test_filtering_twice_is_found_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the levels that draft and verify; the distribution compared with is plain decoding's."""
    sampling = Sampling(1.0, top_p=0.7)
    score = lossless._RememberingScorer.score

    def twice(self, tokens, draft=()):
        return probabilities(score(self, tokens, draft).log(), sampling)

    monkeypatch.setattr(lossless._RememberingScorer, "score", twice)
    assert not report_of(engine, sampling).ok


def test_a_pass_that_computes_something_else_is_granted_no_rounding(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass of several tokens whose logits are off is a fault and not rounding."""
    score = lossless._RememberingScorer.score

    def off(self, tokens, draft=()):
        score(self, tokens, draft)
        self.logits = self.logits + torch.linspace(0, 8, self.logits.shape[1])
        return probabilities(self.logits, SAMPLED)

    monkeypatch.setattr(lossless._RememberingScorer, "score", off)
    report = report_of(engine)
    assert report.worst.bound == chance_bound(ROUNDS, 9, lossless.DELTA)
    assert not report.ok


def test_the_bound_is_the_stated_one() -> None:
    """P(TV >= t) <= 2^k exp(-2 N t^2), which style.md puts at 0.023 for 20,000 draws of 9 outcomes and 1e-6."""
    assert chance_bound(20_000, 9, 1e-6) == pytest.approx(0.0224, abs=1e-4)
    assert 2**9 * torch.tensor(-2 * 500 * chance_bound(500, 9, 0.01) ** 2).exp() == pytest.approx(0.01, rel=1e-4)


def test_more_prompts_than_there_is_text_for_are_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lossless, "standard_library_source", lambda n: "a few words " * 200)
    with pytest.raises(InvalidSetting, match="at most"):
        report_of(engine, n_prompts=50)


def test_what_differs_in_bfloat16_is_listed(tmp_path: Path) -> None:
    """Whichever way rounding goes: where answers are not equal, at least one near-tie is named for it."""
    save_tiny(tmp_path / "model", "llama", num_hidden_layers=2)
    config = EngineConfig(tmp_path, str(tmp_path / "model"), None, lossless.CONTEXT, "cpu", "bfloat16", 1)
    engine = assemble(config, lambda _: None)
    try:
        report = report_of(engine, n_prompts=3)
    finally:
        engine.close()
    assert (report.ok, report.wrong) == (True, ())
    assert bool(report.near_ties) != report.greedy_equal
