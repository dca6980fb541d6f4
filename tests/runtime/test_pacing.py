"""Drafting as much as pays, by counts, sizes and what passes cost."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from runtime.config import Speculation
from runtime.drafter import Draft
from runtime.drafters.paced import FirstDrafter, PacedDrafter
from runtime.hierarchy import gains_by_retrieval, level_costs
from runtime.models.spec import Spec
from runtime.pacing import RETRY_AFTER, AdaptivePacing, Costs, FixedPacing, PassCosts

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

    def gains(spec: Spec, n_tokens: int) -> bool:
        model = SimpleNamespace(spec=spec, passes=None)
        return gains_by_retrieval(level_costs(model, None, speculation, n_tokens))

    for spec in (STARTER, EIGHT_B):
        assert not gains(spec, 500)
        assert not gains(spec, 2048)
    assert gains(STARTER, 65_536)
    assert gains(EIGHT_B, 262_144)


# A pass takes 10 ms and 1 ms more for each further token, 2 microseconds for each cached one.
PASSES = PassCosts(4, 1, (256, 4096), (1, 2, 8), (0.0105, 0.0115, 0.0175), (0.0182, 0.0192, 0.0252))


@pytest.mark.parametrize(
    ("n_tokens", "n_held", "seconds"),
    [(1, 256, 0.0105), (2, 4096, 0.0192), (5, 256, 0.0145), (1, 2176, 0.01435), (16, 256, 0.0255), (1, 0, 0.0105)],
)
def test_passes_between_and_beyond_what_was_measured(n_tokens: int, n_held: int, seconds: float) -> None:
    """On straight lines; an empty cache is no cheaper than a short one."""
    assert PASSES.seconds(n_tokens, n_held) == pytest.approx(seconds)


def test_measured_passes_decide_what_pays() -> None:
    """Over 16,384 tokens a plain step takes 42.8 ms, a retrieval pass 12: as much as a quarter; over 1,024 as much."""
    model, speculation = SimpleNamespace(spec=STARTER, passes=PASSES), Speculation(budget=1024)
    costs = level_costs(model, model, speculation, 16_384)
    assert costs.retrieval.draft == pytest.approx(0.01204 / 0.04284, rel=1e-3)
    assert costs.model.draft == pytest.approx(0.0105 / 0.04284, rel=1e-3)
    assert costs.lookup.verify(4) == pytest.approx(0.04684 / 0.04284, rel=1e-3)
    assert gains_by_retrieval(costs)
    assert not gains_by_retrieval(level_costs(model, None, speculation, 1024))


def test_a_pass_that_verifies_more_than_was_measured_goes_on_alike() -> None:
    costs = Costs(0.0, 0.1, (1.0, 1.05, 1.5))
    assert [costs.verify(n) for n in (0, 1, 2, 4)] == pytest.approx([1.0, 1.05, 1.5, 1.7])
    assert costs.best_gamma(4, 0.99) == 4


def test_beside_a_slow_bus_drafts_cost_next_to_nothing() -> None:
    """A pass takes as long as copying does until it computes longer: here from 31 drafted tokens on."""
    costs = Costs(0.1, 0.1, (1.0, 1.1)).beside_bus(4.0, 64)
    assert [costs.verify(n) for n in (0, 6, 30, 40)] == pytest.approx([1.0, 1.0, 1.0, 1.25])
    assert costs.draft == pytest.approx(0.025)
    assert costs.speed_up(16, 0.9) == pytest.approx((1 - 0.9**17) / 0.1 / (1 + 16 * 0.025))
    assert [costs.best_gamma(64, rate) for rate in (0.0, 0.8, 0.9, 1.0)] == [0, 10, 18, 64]


def test_a_bus_faster_than_the_pass_changes_nothing() -> None:
    """And where nothing crosses one, costs stay the very same."""
    assert CHEAP.beside_bus(0.0, 64) is CHEAP
    fast = CHEAP.beside_bus(0.9, 64)
    assert [fast.speed_up(n, 0.8) for n in range(65)] == pytest.approx([CHEAP.speed_up(n, 0.8) for n in range(65)])


def test_how_much_is_drafted_at_most_follows_from_where_the_cache_lies() -> None:
    """Unless it was said. Without a bus costs are those of before."""
    model, speculation = SimpleNamespace(spec=STARTER, passes=PASSES), Speculation(budget=1024)
    here = level_costs(model, None, speculation, 16_384)
    beside = level_costs(model, None, speculation, 16_384, bus_seconds=0.2)
    plain = PASSES.seconds(1, 16_384)

    assert (here.most, beside.most) == (6, 64)
    assert level_costs(model, None, replace(speculation, gamma=3), 16_384, bus_seconds=0.2).most == 3
    assert beside.retrieval.draft == pytest.approx(here.retrieval.draft * plain / 0.2)
    assert beside.lookup.verify(64) == pytest.approx(1.0)
    assert here.lookup.verify(64) > 2
    assert beside.retrieval.best_gamma(beside.most, 0.9) > here.retrieval.best_gamma(here.most, 0.9)


@pytest.mark.parametrize("passes", [None, PASSES])
def test_layers_that_slide_gain_nothing_by_retrieval(passes: PassCosts | None) -> None:
    """They read their window in either pass: a model of them alone has no use for it, one with few others less."""
    speculation = Speculation(budget=1024)
    every = replace(EIGHT_B, window=4096, sliding_layers=frozenset(range(32)))
    model = SimpleNamespace(spec=every, passes=passes)

    assert not gains_by_retrieval(level_costs(model, None, speculation, 262_144))


def test_few_layers_that_see_all_gain_less_by_retrieval() -> None:
    most = replace(EIGHT_B, window=1024, sliding_layers=frozenset(range(26)))
    models = [SimpleNamespace(spec=spec, passes=None) for spec in (EIGHT_B, most)]
    all_see_all, few_do = (level_costs(model, None, Speculation(), 262_144).retrieval.draft for model in models)

    assert all_see_all < few_do < 1


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
