"""Claim A for whole answers: an end of turn, a stop string and the token limit may lie inside a draft."""

from collections.abc import Callable, Hashable, Sequence

import pytest
import torch

from runtime import speculation
from runtime.answer import Answer
from runtime.config import Request, Sampling
from runtime.events import TokenLogprobs
from runtime.pacing import FixedPacing, Pacing
from tests.runtime.replay import (
    AS_IT_IS,
    PROMPT,
    TARGET,
    ChangingPacing,
    Compose,
    ReplayedChoices,
    TableScorer,
    chances,
    changing,
    distance,
    lookup,
    nothing,
    output_law,
    over,
    paced,
    small,
)

END = 2
PENALISED = Sampling(0.9, top_p=0.95, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3)


def letters(ids: Sequence[int]) -> str:
    """Text of three tokens: a, b and the end of a turn."""
    return "".join("ab"[i] for i in ids if i != END)


def fixed() -> Pacing:
    return FixedPacing(2)


def answered(
    compose: Compose, pacing: Callable[[], Pacing], request: Request, cuts: set[str] | None = None
) -> Callable[[ReplayedChoices], Hashable]:
    """Ids, text, reason and log-probabilities of an answer; `cuts` notes which ends had accepted drafts behind them."""

    def decode(choices: ReplayedChoices) -> Hashable:
        answer = Answer(letters, frozenset((END,)), request)
        scorer, drafter = TableScorer(TARGET, request.sampling), compose(choices, request.sampling)
        logprobs: list[TokenLogprobs] = []
        for result in speculation.decode(scorer, drafter, list(PROMPT), pacing(), choices):
            emission = answer.take(result.tokens, scorer.logits)
            assert len(emission.logprobs) == (0 if request.logprobs is None else len(emission.token_ids))
            logprobs += emission.logprobs
            if answer.reason is not None:
                if cuts is not None and len(emission.token_ids) <= result.verdict.accepted:
                    is_end = answer.ids[-1] == END
                    cuts.add("end of turn" if is_end else "stop" if answer.reason == "stop" else "limit")
                return tuple(answer.ids), answer.text, answer.reason, tuple(logprobs)
        raise AssertionError("rounds never end by themselves")

    return decode


def answer_law(request: Request) -> dict[Hashable, float]:
    """The law of ids, text and reason when tokens are drawn one by one and the text is searched after each."""
    law: dict[Hashable, float] = {}

    def go_on(ids: tuple[int, ...], weight: float) -> None:
        text = letters(ids)
        found = min((text.index(word) for word in request.stop if word in text), default=None)
        reason = None
        if ids and ids[-1] == END:
            reason = "stop"
        elif found is not None:
            reason, text = "stop", text[:found]
        elif len(ids) == request.max_tokens:
            reason = "length"
        if reason is not None:
            law[ids, text, reason, ()] = weight
            return
        for token, chance in enumerate(chances(TARGET, request.sampling, PROMPT, ids)):
            if chance > 0:
                go_on((*ids, token), weight * chance)

    go_on((), 1.0)
    return law


LEVELS = [
    pytest.param(nothing, fixed, id="plain"),
    pytest.param(over(small, 1), fixed, id="middle over model"),
    pytest.param(over(lookup, 2), fixed, id="middle over lookup"),
    pytest.param(paced, fixed, id="as an answer is drafted for"),
    pytest.param(changing, lambda: ChangingPacing(2, 0, 1), id="both gammas change"),
]


@pytest.mark.parametrize("stop", [(), ("ab",), ("b", "aa")])
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
@pytest.mark.parametrize(("compose", "pacing"), LEVELS)
def test_answers_end_as_they_would_token_by_token(
    compose: Compose, pacing: Callable[[], Pacing], max_tokens: int, stop: tuple[str, ...]
) -> None:
    request = Request(AS_IT_IS, max_tokens, stop)
    law = output_law(answered(compose, pacing, request))
    assert distance(law, answer_law(request)) < 1e-12


@pytest.mark.parametrize(("compose", "pacing"), LEVELS)
def test_answers_end_alike_under_penalties(compose: Compose, pacing: Callable[[], Pacing]) -> None:
    request = Request(PENALISED, 3, ("ba",))
    law = output_law(answered(compose, pacing, request))
    assert distance(law, answer_law(request)) < 1e-12


def test_each_kind_of_end_does_lie_inside_drafts() -> None:
    """What the tests above are about really happens in them: tokens were accepted beyond each kind of end."""
    cuts: set[str] = set()
    output_law(answered(over(small, 1), fixed, Request(AS_IT_IS, 2, ("b",)), cuts))
    assert cuts == {"end of turn", "stop", "limit"}


def test_dropping_too_much_at_the_end_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: an answer that loses the last token of a cut round has another law."""
    take = Answer.take
    monkeypatch.setattr(Answer, "take", lambda self, tokens, logits: take(self, tokens[:2], logits))
    request = Request(AS_IT_IS, 3, ("ab",))
    law = output_law(answered(over(small, 1), fixed, request))
    assert distance(law, answer_law(request)) > 0.01


@pytest.mark.parametrize("n_top", [0, 2, 9])
@pytest.mark.parametrize(("compose", "pacing"), LEVELS)
def test_every_token_has_the_targets_own_log_probability(
    compose: Compose, pacing: Callable[[], Pacing], n_top: int
) -> None:
    """On every path and at every kind of end: that of the model as it is, whatever the tokens were drawn with."""
    request = Request(PENALISED, 2, ("ab",), logprobs=n_top)
    law = output_law(answered(compose, pacing, request))
    for ids, _, _, logprobs in law:
        assert len(logprobs) == len(ids)
        for last, token, found in zip((PROMPT[-1], *ids), ids, logprobs, strict=False):
            row = TARGET[last].log()
            ranked = sorted(range(3), key=lambda i: -float(row[i]))[:n_top]
            assert found.logprob == pytest.approx(float(row[token]), abs=1e-6)
            assert [i for i, _ in found.top] == ranked
            assert [logprob for _, logprob in found.top] == pytest.approx(row[ranked].tolist(), abs=1e-6)


def test_without_being_asked_nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.answer.token_logprobs", lambda *_: 1 / 0)
    answer = Answer(letters, frozenset(), Request(max_tokens=2))
    assert answer.take([0, 1, 1], torch.zeros(3, 3)).logprobs == ()
