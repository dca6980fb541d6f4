"""Claim B: drawn tokens have the stated law. Statistical, seeded, with controls that must fail.

For N draws over k outcomes P(TV >= t) <= 2^k exp(-2 N t^2): with N = 20,000 and k <= 9, t = 0.023 raises a false alarm
less than once in a million runs.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from runtime import verify
from runtime.choices import SeededChoices
from runtime.config import Sampling
from runtime.drafter import Draft
from runtime.pacing import FixedPacing
from runtime.sampling import probabilities
from runtime.speculation import decode
from tests.runtime.replay import PROMPT, TARGET, VOCAB, Compose, TableScorer, over, paced, sequence_law, small

N = 20_000
ALARM = 0.023
LOGITS = torch.tensor([[2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.0, -2.0, -3.0]])


def law_of(draw: Callable[[], int], size: int) -> torch.Tensor:
    counts = Counter(draw() for _ in range(N))
    return torch.tensor([counts[i] / N for i in range(size)])


def variation(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).abs().sum() / 2)


@pytest.mark.parametrize("sampling", [Sampling(1.0, top_p=1.0), Sampling(0.7, 5, 0.9), Sampling(0.6, top_p=0.9)])
def test_draws_follow_the_chain(sampling: Sampling) -> None:
    probs = probabilities(LOGITS, sampling)[0]
    choices = SeededChoices(1)
    assert variation(law_of(lambda: choices.draw(probs), 9), probs) < ALARM


def test_the_largest_number_and_the_smallest_draw_what_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """At either end of the unit interval, for totals that are rounded: never a token without probability."""
    for scale in (1.0, 0.1, 1 / 3, 1e-30, 0.7):
        probs = torch.tensor([0.0, 0.0, 0.3, 0.1, 0.6, 0.0, 1e-20, 0.0]) * scale
        for number, token in ((0.0, 2), (1 - 2**-53, 4)):
            choices = SeededChoices(0)
            monkeypatch.setattr(choices, "_uniform", lambda number=number: number)
            assert choices.draw(probs) == choices.pick(probs).item() == token


def test_nothing_is_drawn_from_nothing() -> None:
    with pytest.raises(ValueError, match="no token"):
        SeededChoices(0).draw(torch.zeros(5))


def test_a_filter_applied_twice_is_found_out() -> None:
    """Negative control: top-p on what top-p left cuts more."""
    sampling = Sampling(1.0, top_p=0.8)
    probs = probabilities(LOGITS, sampling)[0]
    twice = probabilities(probs[None].log(), sampling)[0]
    choices = SeededChoices(1)
    assert variation(law_of(lambda: choices.draw(twice), 9), probs) > ALARM


DEPENDENT = Sampling(1.0, top_p=0.73, presence_penalty=0.6, frequency_penalty=0.4)
"""Filters, and penalties that depend on what the answer has said, inside drafts as well."""


def answers_law(compose: Compose, seed: int) -> torch.Tensor:
    """The first two tokens of the whole two-level decoder, gamma 2, as numbers below 9."""
    choices = SeededChoices(seed)

    def draw() -> int:
        tokens = list(PROMPT)
        scorer, drafter = TableScorer(TARGET, DEPENDENT), compose(choices, DEPENDENT)
        for _ in decode(scorer, drafter, tokens, FixedPacing(2), choices):
            if len(tokens) >= len(PROMPT) + 2:
                break
        first, second = tokens[len(PROMPT) : len(PROMPT) + 2]
        return VOCAB * first + second

    return law_of(draw, VOCAB**2)


def expected_law() -> torch.Tensor:
    law = sequence_law(TARGET, 2, DEPENDENT)
    return torch.tensor([law.get((i // VOCAB, i % VOCAB), 0.0) for i in range(VOCAB**2)])


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each distinct pass is computed once, since only the draws are put to the test here."""
    score, passes = TableScorer.score, {}

    def remember(self: TableScorer, tokens: list[int], draft: tuple[int, ...] = ()) -> torch.Tensor:
        key = self.name, tuple(tokens), tuple(draft)
        if key not in passes:
            passes[key] = score(self, tokens, draft)
        self.store.tokens = [*tokens, *draft]
        return passes[key]

    monkeypatch.setattr(TableScorer, "score", remember)


@pytest.mark.slow
@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("compose", [over(small, 1), paced], ids=["middle over model", "as an answer is drafted for"])
def test_two_levels_draw_from_the_target(compose: Compose) -> None:
    assert variation(answers_law(compose, seed=7), expected_law()) < ALARM


def accept_always(draft: Draft, probs: torch.Tensor, choices: SeededChoices) -> verify.Verdict:
    return verify.Verdict(len(draft.tokens), choices.draw(probs[-1]), "bonus")


@pytest.mark.slow
@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("wrong", ["accept always", "redraw from p", "filter applied twice"])
def test_a_wrong_rule_exceeds_the_bound(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """Negative controls of the bound used above."""
    if wrong == "accept always":
        monkeypatch.setattr("runtime.speculation.verify", accept_always)
    elif wrong == "redraw from p":
        monkeypatch.setattr(verify, "residual", lambda p, q: p)
    else:
        filters = replace(DEPENDENT, presence_penalty=0.0, frequency_penalty=0.0)
        monkeypatch.setattr(
            "runtime.scorer.probabilities", lambda *given: probabilities(probabilities(*given).log(), filters)
        )
    assert variation(answers_law(over(small, 1), seed=7), expected_law()) > ALARM


def test_a_seed_fixes_the_tokens_and_leaves_the_global_generator_alone() -> None:
    probs = probabilities(LOGITS, Sampling(1.0))[0]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = SeededChoices(3), SeededChoices(3)
    assert [first.draw(probs) for _ in range(50)] == [second.draw(probs) for _ in range(50)]
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_each_source_differs() -> None:
    probs = torch.full((1000,), 0.001)
    first, second = SeededChoices(), SeededChoices()
    assert [first.draw(probs) for _ in range(8)] != [second.draw(probs) for _ in range(8)]


def test_a_token_without_probability_is_never_drawn() -> None:
    probs = torch.zeros(1000)
    probs[[3, 500]] = torch.tensor([1e-30, 1.0])
    choices = SeededChoices(1)
    assert {choices.draw(probs) for _ in range(2000)} <= {3, 500}


def test_coins_are_certain_at_the_ends() -> None:
    choices = SeededChoices(1)
    assert all(choices.coin(1.0) and not choices.coin(0.0) for _ in range(1000))
