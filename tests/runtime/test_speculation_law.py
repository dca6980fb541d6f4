"""Claim A: over all random paths, the whole decoder emits exactly the target's distribution."""

from collections.abc import Callable, Hashable
from dataclasses import replace

import pytest
import torch

from runtime import speculation, verify
from runtime.config import Sampling
from runtime.drafters.model import ModelDrafter
from runtime.drafters.speculative import SpeculativeDrafter
from runtime.pacing import FixedPacing, Pacing
from runtime.sampling import History, SeenTokens
from tests.runtime.replay import (
    AS_IT_IS,
    MIDDLE,
    PROMPT,
    TARGET,
    ChangingPacing,
    Compose,
    ReplayedChoices,
    TableScorer,
    changing,
    distance,
    lookup,
    nothing,
    output_law,
    over,
    paced,
    sequence_law,
    small,
)

EXACT = 1e-12


def decoded(
    compose: Compose, pacing: Callable[[], Pacing], length: int, sampling: Sampling = AS_IT_IS
) -> Callable[[ReplayedChoices], Hashable]:
    def decode(choices: ReplayedChoices) -> Hashable:
        tokens = list(PROMPT)
        scorer, drafter = TableScorer(TARGET, sampling), compose(choices, sampling)
        for _ in speculation.decode(scorer, drafter, tokens, pacing(), choices):
            if len(tokens) >= len(PROMPT) + length:
                return tuple(tokens[len(PROMPT) : len(PROMPT) + length])
        raise AssertionError("rounds never end by themselves")

    return decode


def gamma_is(gamma: int) -> Callable[[], Pacing]:
    return lambda: FixedPacing(gamma)


def gamma_changes() -> Pacing:
    return ChangingPacing(0, 2, 1)


@pytest.mark.parametrize(
    ("compose", "pacing", "length"),
    [
        pytest.param(nothing, gamma_is(0), 3, id="plain"),
        pytest.param(small, gamma_is(1), 3, id="model, gamma 1"),
        pytest.param(small, gamma_is(3), 2, id="model, gamma 3"),
        pytest.param(lookup, gamma_is(2), 4, id="lookup, gamma 2"),
        pytest.param(over(nothing, 0), gamma_is(2), 2, id="middle alone, gamma 2"),
        pytest.param(over(small, 1), gamma_is(1), 2, id="middle over model, 1 and 1"),
        pytest.param(over(small, 1), gamma_is(2), 2, id="middle over model, 2 and 1"),
        pytest.param(over(small, 2), gamma_is(2), 2, id="middle over model, 2 and 2"),
        pytest.param(over(lookup, 2), gamma_is(2), 3, id="middle over lookup, 2 and 2"),
        pytest.param(paced, gamma_is(2), 3, id="as an answer is drafted for"),
        pytest.param(over(small, 1), gamma_changes, 3, id="gamma changes"),
        pytest.param(changing, gamma_is(2), 2, id="inner gamma changes"),
        pytest.param(changing, gamma_changes, 3, id="both change"),
    ],
)
def test_every_composition_emits_the_targets_law(compose: Compose, pacing: Callable[[], Pacing], length: int) -> None:
    law = output_law(decoded(compose, pacing, length))
    assert distance(law, sequence_law(TARGET, length)) < EXACT


COUNTING = [
    Sampling(1.0, top_p=1.0, repetition_penalty=1.7),
    Sampling(1.0, top_p=1.0, repetition_penalty=0.6),
    Sampling(1.0, top_p=1.0, presence_penalty=1.5),
    Sampling(1.0, top_p=1.0, frequency_penalty=0.9),
    Sampling(1.0, top_p=1.0, frequency_penalty=-0.7, presence_penalty=0.4),
    Sampling(1.0, top_p=1.0, logit_bias=((0, 1.5), (2, -1.0))),
    Sampling(1.0, top_p=1.0, min_p=0.3, presence_penalty=1.0),
    Sampling(0.7, top_k=2, frequency_penalty=1.2, repetition_penalty=1.1),
    Sampling(1.3, 0, 0.8, 0.1, 1.2, None, 0.5, 0.5, ((1, 0.7),)),
    Sampling(0.0, presence_penalty=1.0, frequency_penalty=0.5, logit_bias=((1, 0.5),)),
]


@pytest.mark.parametrize("sampling", COUNTING)
@pytest.mark.parametrize(
    ("compose", "length"),
    [
        pytest.param(nothing, 3, id="plain"),
        pytest.param(over(small, 1), 2, id="middle over model"),
        pytest.param(over(lookup, 2), 2, id="middle over lookup"),
        pytest.param(paced, 4, id="as an answer is drafted for"),
    ],
)
def test_what_depends_on_the_tokens_so_far_keeps_the_law(compose: Compose, length: int, sampling: Sampling) -> None:
    """Through the real chain: penalties count position by position, inside drafts at both levels as well."""
    law = output_law(decoded(compose, gamma_is(2), length, sampling))
    assert distance(law, sequence_law(TARGET, length, sampling)) < EXACT


def test_both_levels_may_change_their_gamma_under_penalties() -> None:
    sampling = COUNTING[8]
    law = output_law(decoded(changing, gamma_changes, 3, sampling))
    assert distance(law, sequence_law(TARGET, 3, sampling)) < EXACT


@pytest.mark.parametrize("wrong", ["one history for the whole draft", "the prompt counted", "the draft forgotten"])
def test_a_wrong_history_is_found_out(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """Negative control: penalties that look at other tokens than those before the position have another law."""
    before = SeenTokens.before

    def stale(self: SeenTokens, tokens: list[int], draft: list[int], n_settled: int, logits: torch.Tensor) -> History:
        if wrong == "the draft forgotten":
            tokens = tokens[: len(PROMPT)]
            return before(self, tokens, [0] * len(draft), min(n_settled, len(tokens)), logits)
        history = before(self, tokens, draft, n_settled, logits)
        assert history.counts is not None
        return replace(history, counts=history.counts[:1].expand_as(history.counts))

    if wrong == "the prompt counted":
        monkeypatch.setattr(TableScorer.__init__, "__defaults__", (AS_IT_IS, 0))
    else:
        monkeypatch.setattr(SeenTokens, "before", stale)
    sampling = Sampling(1.0, top_p=1.0, presence_penalty=1.5)
    law = output_law(decoded(over(small, 1), gamma_is(2), 2, sampling))
    assert distance(law, sequence_law(TARGET, 2, sampling)) > 0.01


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
    law = output_law(decoded(over(small, 1), gamma_is(2), 2))
    assert distance(law, sequence_law(TARGET, 2)) > 0.01


def test_what_a_round_reports_is_what_it_drew_from() -> None:
    """`Round.probs[i]` is the distribution of `Round.tokens[i]` given the tokens before it."""

    def decode(choices: ReplayedChoices) -> Hashable:
        tokens = list(PROMPT)
        drafter = SpeculativeDrafter("middle", TableScorer(MIDDLE), small(choices, AS_IT_IS), 1, choices)
        draft = drafter.propose(tokens, 2)
        assert tokens == list(PROMPT), "a drafter leaves the sequence as it was"
        before = [PROMPT[-1], *draft.tokens]
        torch.testing.assert_close(draft.probs, MIDDLE[before[: len(draft.tokens)]])
        return draft.tokens

    law = output_law(decode)
    assert distance(law, sequence_law(MIDDLE, 2)) < EXACT
