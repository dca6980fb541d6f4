"""Drafting as much as pays, by counts and sizes alone."""

import pytest

from runtime.config import Speculation
from runtime.drafter import Draft
from runtime.drafters.paced import FirstDrafter, PacedDrafter
from runtime.hierarchy import gains_by_retrieval
from runtime.models.spec import Spec
from runtime.pacing import RETRY_AFTER, AdaptivePacing, Costs, FixedPacing

CHEAP, DEAR = Costs(0.1, 0.02), Costs(0.9, 0.1)
STARTER = Spec("llama", 30, 9, 3, 64, 576, 1536, 49_152, 1e-5, True, False, 8192)
EIGHT_B = Spec("llama", 32, 32, 8, 128, 4096, 14_336, 128_256, 1e-5, False, False, 131_072)


def test_the_predicted_speed_up_is_emitted_over_cost() -> None:
    assert Costs(0.0, 0.0).speed_up(3, 1.0) == 4.0
    assert Costs(0.5, 0.5).speed_up(3, 1.0) == 1.0
    assert Costs(0.25, 0.0).speed_up(2, 0.5) == pytest.approx(1.75 / 1.5)
    assert DEAR.speed_up(0, 0.3) == 1.0


@pytest.mark.parametrize(
    ("costs", "acceptance", "gamma"), [(CHEAP, 0.95, 8), (CHEAP, 0.3, 1), (CHEAP, 0.05, 0), (DEAR, 0.9, 0)]
)
def test_gamma_is_what_pays_best(costs: Costs, acceptance: float, gamma: int) -> None:
    assert costs.best_gamma(8, acceptance) == gamma


def test_losing_switches_drafting_off_and_it_is_tried_again() -> None:
    pacing = AdaptivePacing(6, CHEAP, 0.9)
    assert pacing.gamma() >= 4
    for _ in range(40):
        pacing.record(pacing.gamma(), 0)
        if pacing.gamma() == 0:
            break
    assert pacing.gamma() == 0
    for _ in range(RETRY_AFTER):
        assert pacing.gamma() == 0
        pacing.record(0, 0)
    assert pacing.gamma() == 2
    for _ in range(12):
        pacing.record(pacing.gamma() or 2, pacing.gamma() or 2)
    assert pacing.gamma() >= 4


def test_tokens_behind_a_rejection_do_not_count_against_acceptance() -> None:
    """Of 6 drafted and 1 accepted two were tested."""
    pacing = AdaptivePacing(6, CHEAP, 0.5)
    for _ in range(100):
        pacing.record(6, 1)
    assert pacing.acceptance == pytest.approx(0.5, abs=0.01)


def test_nothing_is_worthwhile_where_a_draft_costs_a_step() -> None:
    assert AdaptivePacing(8, Costs(1.0, 0.1), 0.99).gamma() == 0


def test_a_retrieval_level_pays_for_long_prompts_alone() -> None:
    """Both passes read all weights, so the cache must outweigh them."""
    speculation = Speculation(budget=1024)
    for spec in (STARTER, EIGHT_B):
        assert not gains_by_retrieval(spec, 500, speculation)
        assert not gains_by_retrieval(spec, 2048, speculation)
    assert gains_by_retrieval(STARTER, 65_536, speculation)
    assert gains_by_retrieval(EIGHT_B, 262_144, speculation)


class Scripted:
    """Proposes the same tokens always."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens
        self.trimmed: list[int] = []

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        return Draft(self.tokens[:gamma])

    def trim(self, length: int) -> None:
        self.trimmed.append(length)

    def commit(self) -> None:
        pass

    def levels(self) -> tuple[()]:
        return ()


class Noted(FixedPacing):
    def __init__(self, gamma: int) -> None:
        super().__init__(gamma)
        self.seen: list[tuple[int, int]] = []

    def record(self, proposed: int, accepted: int) -> None:
        self.seen.append((proposed, accepted))


def test_a_paced_drafter_learns_from_what_is_kept() -> None:
    pacing = Noted(3)
    drafter = PacedDrafter(Scripted(5, 6, 7, 8), pacing)
    assert drafter.propose([1, 2], 8).tokens == (5, 6, 7)
    drafter.trim(4)
    assert drafter.propose([1, 2, 5, 6, 9], 2).tokens == (5, 6)
    drafter.trim(5)
    drafter.trim(5)
    assert pacing.seen == [(3, 2), (2, 0), (0, 0)]


def test_the_second_drafts_where_the_first_has_nothing() -> None:
    first, second = Scripted(), Scripted(4)
    drafter = FirstDrafter(first, second)
    assert drafter.propose([1], 3).tokens == (4,)
    drafter.trim(1)
    assert first.trimmed == second.trimmed == [1]
    assert FirstDrafter(Scripted(8), second).propose([1], 3).tokens == (8,)
    assert FirstDrafter(first, first).propose([1], 3).tokens == ()
