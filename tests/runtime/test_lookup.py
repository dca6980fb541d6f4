"""Drafting from the sequence itself."""

import itertools
import random

import pytest

from runtime.drafters.grams import KEPT_LATER, KEPT_PLACES, Grams
from runtime.drafters.lookup import LookupDrafter


def grow(drafter: LookupDrafter, tokens: list[int], new: list[int]) -> None:
    """As a round does: the accepted tokens are kept, the newest is still unseen."""
    drafter.trim(len(tokens) + len(new) - 1)
    tokens.extend(new)
    drafter.commit()


def test_it_proposes_what_followed_the_match() -> None:
    drafter = LookupDrafter([1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3, 4, 5])
    draft = drafter.propose([1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3, 4, 5], 2)
    assert draft.tokens == (6, 7)
    assert draft.probs is None


def test_without_a_match_it_proposes_nothing() -> None:
    tokens = list(range(20))
    assert LookupDrafter(tokens).propose(tokens, 5).tokens == ()
    assert LookupDrafter([1]).propose([1], 5).tokens == ()


def test_a_longer_match_drafts_more() -> None:
    run = list(range(100, 130))
    for matched, drafted in ((3, 2), (8, 7)):
        tokens = [*run, 7, *run[:matched]]
        assert LookupDrafter(tokens).propose(tokens, 16).tokens == tuple(run[matched : matched + drafted])


def test_the_longest_match_wins_over_the_newest() -> None:
    prompt = [9, 8, 1, 2, 3, 50, 60, 0, 1, 2, 3, 70, 80, 9, 8, 1, 2, 3]
    assert LookupDrafter(prompt).propose(prompt, 1).tokens == (50,)


def test_never_more_than_gamma() -> None:
    prompt = [*range(50), *range(20)]
    drafter = LookupDrafter(prompt)
    assert [len(drafter.propose(prompt, gamma).tokens) for gamma in (0, 1, 5)] == [0, 1, 5]


def test_the_answer_itself_is_looked_up() -> None:
    drafter, tokens = LookupDrafter([0]), [0]
    for new in ([11, 12], [13], [14, 15, 11, 12], [13]):
        grow(drafter, tokens, new)
    assert drafter.propose(tokens, 2).tokens == (14, 15)


def test_rejected_drafts_are_never_looked_up() -> None:
    """What was only proposed (the sequence grows and shrinks while a middle level drafts) leaves no trace."""
    drafter, tokens = LookupDrafter([1, 2, 3]), [1, 2, 3]
    tokens += [4, 5, 6, 7]
    drafter.propose(tokens, 3)
    del tokens[3:]
    grow(drafter, tokens, [8, 9])
    grow(drafter, tokens, [1, 2, 3])
    assert drafter.propose(tokens, 3).tokens == (8, 9)


def test_growing_token_by_token_equals_indexing_at_once() -> None:
    generator = random.Random(0)
    whole = [generator.randrange(4) for _ in range(300)]
    drafter, tokens = LookupDrafter(whole[:1]), whole[:1]
    for token in whole[1:]:
        grow(drafter, tokens, [token])
    tokens.append(0)
    at_once = LookupDrafter(whole)
    at_once.trim(len(whole))
    assert drafter.propose(tokens, 8) == at_once.propose(tokens, 8)


def test_a_copy_doubles_its_drafts_up_to_gamma() -> None:
    """A hundred tokens repeated are drafted in a few long runs."""
    passage = list(range(1000, 1200))
    tokens = [*passage, 7, 8, *passage[:3]]
    drafter, drafted = LookupDrafter(tokens), []
    while len(tokens) < 302:
        draft = drafter.propose(tokens, 64).tokens
        right = passage[len(tokens) - 202 :][: len(draft) + 1]
        assert list(draft) == right[:-1]
        drafted.append(len(draft))
        grow(drafter, tokens, right)
    assert drafted == [2, 5, 11, 23, 64]


def test_a_match_that_reaches_the_end_goes_on_with_itself() -> None:
    tokens = [1, *[5, 6, 7] * 12]
    assert LookupDrafter(tokens).propose(tokens, 7).tokens == (5, 6, 7, 5, 6, 7, 5)


def test_short_matches_are_left_to_others() -> None:
    run = list(range(100, 130))
    for matched, drafted in ((7, 0), (8, 7)):
        tokens = [*run, 7, *run[:matched]]
        assert len(LookupDrafter(tokens, 8, Grams(tokens)).propose(tokens, 16).tokens) == drafted


@pytest.mark.parametrize("size", [1, 2, 3])
def test_grams_are_found_wherever_they_stand(size: int) -> None:
    """Against a plain search, for a sequence of which a part came at once and the rest in pieces."""
    generator = random.Random(size)
    whole = [generator.randrange(3) for _ in range(150)]
    grams = Grams(whole[:60], size)
    for length in (61, 64, 90, 150):
        grams.grow(whole[:length], length)
    for gram in itertools.product(range(3), repeat=size):
        places = [end for end in range(size, 150) if tuple(whole[end - size : end]) == gram]
        assert grams.places_after(gram).tolist()[-KEPT_LATER:] == places[-KEPT_LATER:]


def test_a_long_prompt_costs_a_few_megabytes_and_a_common_gram_little() -> None:
    """131,072 ids of a vocabulary of 262,144, half of them the same."""
    generator = random.Random(0)
    prompt = [262_143 if i % 4 < 2 else generator.randrange(262_144) for i in range(131_072)]
    grams = Grams(prompt)
    assert grams.n_bytes < 4e6
    assert len(Grams([5] * 131_072).places_after([5, 5, 5])) <= KEPT_PLACES
    assert 1000 in grams.places_after(prompt[997:1000])
