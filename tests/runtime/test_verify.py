"""Claim A, one step: what is accepted and what replaces a rejection add up to p, in exact fractions."""

from fractions import Fraction

import pytest
import torch

from runtime.drafter import Draft
from runtime.verify import residual, verify
from tests.runtime.replay import ReplayedChoices, output_law

HALVES = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)
EIGHTHS = torch.tensor([0.125, 0.5, 0.25, 0.125], dtype=torch.float64)


@pytest.mark.parametrize(("p", "q"), [(HALVES, EIGHTHS), (EIGHTHS, HALVES), (HALVES, HALVES)])
def test_accepted_and_recovered_mass_is_p(p: torch.Tensor, q: torch.Tensor) -> None:
    """min(p, q) + (1 - sum of min(p, q)) * residual = p, with no rounding at all."""
    exact_p, exact_q = ([Fraction(x) for x in law.tolist()] for law in (p, q))
    kept = [min(a, b) for a, b in zip(exact_p, exact_q, strict=True)]
    rest = residual(p, q)
    total = sum(a - k for a, k in zip(exact_p, kept, strict=True))
    assert [k + total * Fraction(float(r)).limit_denominator(64) for k, r in zip(kept, rest, strict=True)] == exact_p


def test_disjoint_supports_never_accept() -> None:
    p = torch.tensor([0.0, 0.0, 0.5, 0.5], dtype=torch.float64)
    q = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64)
    law = output_law(lambda choices: verify(Draft((0,), q[None]), torch.stack([p, p]), choices).token)
    assert law == {2: 0.5, 3: 0.5}


def test_nothing_left_by_rounding_gives_p() -> None:
    """Where p and q agree everywhere there is no residual to normalise."""
    assert torch.equal(residual(HALVES, HALVES), HALVES)


def test_a_certain_proposal_is_kept_with_its_probability() -> None:
    """A lookup's q is a one-hot: accept with p(token), else draw from p without it."""
    law = output_law(lambda choices: verify(Draft((1,)), torch.stack([HALVES, EIGHTHS]), choices))
    first: dict[int, float] = {}
    for verdict, weight in law.items():
        token = 1 if verdict.accepted else verdict.token
        first[token] = first.get(token, 0) + weight
    assert first == pytest.approx({0: 0.5, 1: 0.25, 2: 0.25})


def test_an_impossible_token_is_never_accepted() -> None:
    law = output_law(lambda choices: verify(Draft((3,)), torch.stack([HALVES, HALVES]), choices).accepted)
    assert law == {0: 1.0}


def test_greedy_keeps_exactly_the_matching_prefix() -> None:
    one_hot = torch.eye(4)
    verdict = verify(Draft((2, 1, 3)), one_hot[[2, 1, 0, 0]], ReplayedChoices(()))
    assert (verdict.accepted, verdict.token, verdict.origin) == (2, 0, "recovered")


def test_without_a_draft_the_token_is_drawn_from_p() -> None:
    law = output_law(lambda choices: verify(Draft(), EIGHTHS[None], choices).token)
    assert law == dict(enumerate(EIGHTHS.tolist()))
