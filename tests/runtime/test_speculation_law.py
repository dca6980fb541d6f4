"""Claim A: over all random paths, the whole decoder emits exactly the target's distribution."""

from collections.abc import Callable, Hashable, Sequence

import pytest
import torch

from runtime import speculation, verify
from runtime.answer import Answer
from runtime.config import Request
from runtime.drafter import Drafter, NoDrafter
from runtime.drafters.lookup import LookupDrafter
from runtime.drafters.model import ModelDrafter
from runtime.drafters.paced import FirstDrafter, PacedDrafter
from runtime.drafters.speculative import SpeculativeDrafter
from runtime.pacing import AdaptivePacing, Costs, FixedPacing, Pacing
from tests.runtime.replay import MIDDLE, SMALL, TARGET, ReplayedChoices, TableScorer, distance, output_law, sequence_law

EXACT = 1e-12
Compose = Callable[[ReplayedChoices], Drafter]


def nothing(choices: ReplayedChoices) -> Drafter:
    return NoDrafter()


def small(choices: ReplayedChoices) -> Drafter:
    return ModelDrafter(TableScorer(SMALL), choices)


def lookup(choices: ReplayedChoices) -> Drafter:
    return LookupDrafter(PROMPT, shortest=1)


def over(bottom: Compose, inner_gamma: int) -> Compose:
    return lambda choices: SpeculativeDrafter("middle", TableScorer(MIDDLE), bottom(choices), inner_gamma, choices)


def paced(choices: ReplayedChoices) -> Drafter:
    """As an answer is drafted for: each drafter under adaptive pacing, lookup where the middle level is off."""
    middle = over(lookup, 1)(choices)
    return FirstDrafter(
        PacedDrafter(middle, AdaptivePacing(2, Costs(0.3, 0.1), 0.6)),
        PacedDrafter(lookup(choices), AdaptivePacing(2, Costs(0.0, 0.1), 0.5)),
    )


PROMPT = [2, 1, 0, 2, 0]


class ChangingPacing:
    """Drafts 0, 2, 1, 0, 2, 1, ... tokens."""

    def __init__(self) -> None:
        self._round = 0

    def gamma(self) -> int:
        return (0, 2, 1)[self._round % 3]

    def record(self, proposed: int, accepted: int) -> None:
        self._round += 1


def decoded(compose: Compose, pacing: Callable[[], Pacing], length: int) -> Callable[[ReplayedChoices], Hashable]:
    def decode(choices: ReplayedChoices) -> Hashable:
        tokens = list(PROMPT)
        for _ in speculation.decode(TableScorer(TARGET), compose(choices), tokens, pacing(), choices):
            if len(tokens) >= len(PROMPT) + length:
                return tuple(tokens[len(PROMPT) : len(PROMPT) + length])
        raise AssertionError("rounds never end by themselves")

    return decode


@pytest.mark.parametrize(
    ("compose", "gamma", "length"),
    [
        pytest.param(nothing, 0, 3, id="plain"),
        pytest.param(small, 1, 3, id="model, gamma 1"),
        pytest.param(small, 3, 2, id="model, gamma 3"),
        pytest.param(lookup, 2, 4, id="lookup, gamma 2"),
        pytest.param(over(nothing, 0), 2, 2, id="middle alone, gamma 2"),
        pytest.param(over(small, 1), 1, 2, id="middle over model, 1 and 1"),
        pytest.param(over(small, 1), 2, 2, id="middle over model, 2 and 1"),
        pytest.param(over(small, 2), 2, 2, id="middle over model, 2 and 2"),
        pytest.param(paced, 2, 3, id="as an answer is drafted for"),
        pytest.param(over(lookup, 2), 2, 3, id="middle over lookup, 2 and 2"),
    ],
)
def test_every_composition_emits_the_targets_law(compose: Compose, gamma: int, length: int) -> None:
    law = output_law(decoded(compose, lambda: FixedPacing(gamma), length))
    assert distance(law, sequence_law(TARGET, PROMPT[-1], length)) < EXACT


def test_a_changing_gamma_keeps_the_law() -> None:
    law = output_law(decoded(over(small, 1), ChangingPacing, 3))
    assert distance(law, sequence_law(TARGET, PROMPT[-1], 3)) < EXACT


def test_a_draft_from_the_target_itself_is_always_accepted() -> None:
    """p = q: every round emits gamma + 1 tokens, on every path."""

    def decode(choices: ReplayedChoices) -> Hashable:
        drafter = ModelDrafter(TableScorer(TARGET), choices)
        result = speculation.speculate(TableScorer(TARGET), drafter, list(PROMPT), 2, choices)
        return len(result.tokens)

    assert output_law(decode) == pytest.approx({3: 1.0})


@pytest.mark.parametrize("wrong", ["redraw from p", "accept always", "residual the wrong way round"])
def test_a_wrong_rule_is_found_out(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """Negative control: the enumeration tells rules apart that are nearly right."""
    if wrong == "redraw from p":
        monkeypatch.setattr(verify, "residual", lambda p, q: p)
    elif wrong == "accept always":
        monkeypatch.setattr(ReplayedChoices, "coin", lambda self, chance: True)
    else:
        rest = verify.residual
        monkeypatch.setattr(verify, "residual", lambda p, q: rest(q, p))
    law = output_law(decoded(over(small, 1), lambda: FixedPacing(2), 2))
    assert distance(law, sequence_law(TARGET, PROMPT[-1], 2)) > 0.01


def letters(ids: Sequence[int]) -> str:
    """Text of three tokens: a, b and the end of a turn."""
    return "".join("ab"[i] for i in ids if i != 2)


@pytest.mark.parametrize("stop", [(), ("ab",), ("b", "aa")])
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_answers_end_alike_with_and_without_drafts(stop: tuple[str, ...], max_tokens: int) -> None:
    """An end-of-turn id, a stop string or the token limit may lie inside a draft."""

    def answered(compose: Compose, gamma: int):
        def decode(choices: ReplayedChoices) -> Hashable:
            answer = Answer(letters, frozenset((2,)), Request(max_tokens=max_tokens, stop=stop))
            scorer = TableScorer(TARGET)
            for result in speculation.decode(scorer, compose(choices), [1], FixedPacing(gamma), choices):
                answer.take(result.tokens)
                if answer.reason is not None:
                    return tuple(answer.ids), answer.text, answer.reason
            raise AssertionError("rounds never end by themselves")

        return decode

    plain = output_law(answered(nothing, 0))
    assert distance(output_law(answered(over(small, 1), 2)), plain) < EXACT
    assert sum(plain.values()) == pytest.approx(1)
    for (ids, text, reason), _ in plain.items():
        assert len(ids) <= max_tokens
        assert not any(word in text for word in stop)
        assert reason == "length" or ids[-1] == 2 or stop


def test_what_a_round_reports_is_what_it_drew_from() -> None:
    """`Round.probs[i]` is the distribution of `Round.tokens[i]` given the tokens before it."""

    def decode(choices: ReplayedChoices) -> Hashable:
        tokens = list(PROMPT)
        drafter = SpeculativeDrafter("middle", TableScorer(MIDDLE), small(choices), 1, choices)
        draft = drafter.propose(tokens, 2)
        assert tokens == PROMPT, "a drafter leaves the sequence as it was"
        before = [PROMPT[-1], *draft.tokens]
        assert torch.equal(draft.probs, MIDDLE[before[: len(draft.tokens)]])
        return draft.tokens

    law = output_law(decode)
    assert distance(law, sequence_law(MIDDLE, PROMPT[-1], 2)) < EXACT
