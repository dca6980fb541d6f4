"""Page lists as people write them."""

import pytest

from ingest.errors import NoSuchPages
from ingest.selection import parse_pages, show_pages


@pytest.mark.parametrize(
    ("text", "pages"),
    [
        ("3", (3,)),
        ("1-3", (1, 2, 3)),
        (" 9 , 1 - 2 ", (1, 2, 9)),
        ("8-", (8, 9, 10)),
        ("-2", (1, 2)),
        ("2,2,1-2", (1, 2)),
        ("4–5", (4, 5)),
        ("10", (10,)),
    ],
)
def test_pages_are_chosen_once_and_in_order(text: str, pages: tuple[int, ...]) -> None:
    assert parse_pages(text, 10, "book.pdf") == pages


@pytest.mark.parametrize("text", ["", ",", "-", "0", "11", "1-11", "3-1", "one", "1;2", "1-2-3", "²", "99999999999"])
def test_anything_else_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(NoSuchPages) as caught:
        parse_pages(text, 10, "book.pdf")
    assert (caught.value.name, caught.value.asked, caught.value.n_pages) == ("book.pdf", text, 10)


@pytest.mark.parametrize(
    ("pages", "shown"), [((), ""), ((4,), "4"), ((1, 2, 3, 7), "1-3, 7"), ((9, 3, 4, 3), "3-4, 9")]
)
def test_pages_are_shown_as_ranges(pages: tuple[int, ...], shown: str) -> None:
    assert show_pages(pages) == shown
