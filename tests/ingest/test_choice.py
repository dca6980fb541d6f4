"""Two engines' texts of one page: which is taken."""

import pytest

from ingest.readers.choice import agreement, is_doubtful, prefers_second, shape_of

GOOD = "Lines consisting solely of spaces are kept as they are, and so is the rest of it."


@pytest.mark.parametrize(
    ("first", "second", "takes_second"),
    [
        (GOOD, GOOD.replace(" ", ""), False),
        (GOOD.replace(" ", ""), GOOD, True),
        (" ".join(GOOD.replace(" ", "")), GOOD, True),
        (GOOD, " ".join(GOOD.replace(" ", "")), False),
        ("Item Qty 234 Price", "Item Qty 2 3 4 Price", True),
        ("c\nolumn1 c\nolumn2 c\nolumn3", "column1 column2 column3", True),
        (GOOD, "", False),
        ("", GOOD, True),
        (GOOD, GOOD + " And a line more.", False),
        ("\ue020".join(GOOD.split()), GOOD, True),
        (GOOD, "ॎॻ͖ͷςετ\uf8ff\uf8fe\x03\x04", False),
        ("םולש םלוע ךרד", "שלום עולם דרך", True),
        ("שלום עולם דרך", "םולש םלוע ךרד", False),
    ],
)
def test_the_better_text_is_taken(first: str, second: str, takes_second: bool) -> None:
    assert prefers_second(first, second) is takes_second


@pytest.mark.parametrize(
    "text", [GOOD, "日本語の文章には語の間に空白がありません。" * 3, "I saw a cat. " * 9, "ภาษาไทยไม่มีช่องว่าง" * 3]
)
def test_ordinary_text_needs_no_second_opinion(text: str) -> None:
    assert not is_doubtful(shape_of(text), 0.0)


@pytest.mark.parametrize(
    "text", [GOOD.replace(" ", ""), " ".join(GOOD.replace(" ", "")), "bell \ufffd", "مرحبا", "\uf0b1"]
)
def test_odd_text_gets_a_second_opinion(text: str) -> None:
    assert is_doubtful(shape_of(text), 0.0)


def test_many_unknown_glyphs_get_a_second_opinion() -> None:
    assert is_doubtful(shape_of(GOOD), 0.05)


def test_agreement_is_of_letters_whatever_their_order_and_spacing() -> None:
    assert agreement("ab cd", "dcba") == 1.0
    assert agreement("abcd", "abxy") == 0.5
    assert agreement("", "") == 0.0
