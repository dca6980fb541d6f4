"""Cleaning of text: what is mended, and what is left alone."""

import time

import pytest

from ingest.cleaning import HYPHEN, clean_page, fold_line_ends, join_hyphens, show_name, words_of


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("a\r\nb\rc\x0bd\x0ce\x85f\u2028g", "a\nb\nc\nd\ne\nf\ng"),
        ("o\0ffice", "office"),
        ("\ufb00 \ufb01 \ufb02 \ufb03 \ufb04 \ufb06", "ff fi fl ffi ffl st"),
        ("bullet \uf0b7", "bullet •"),
        ("bell \x07 delete \x7f half \ud800 none \uffff", "bell \ufffd delete \ufffd half \ufffd none \ufffd"),
        ("infor-\nmation", f"infor{HYPHEN}mation"),
        ("soft\xad\nware", f"soft{HYPHEN}ware"),
        ("price\xaddetermining", "price-determining"),
        ("1990-\n1995 and -\nx", "1990-\n1995 and -\nx"),
        ("trailing   \n\n", "trailing"),
        ("x² ½ ｗｉｄｅ ™ Å", "x² ½ ｗｉｄｅ ™ Å"),
        ("tab\tkept", "tab\tkept"),
    ],
)
def test_a_page_is_mended_where_it_is_certainly_at_fault(dirty: str, clean: str) -> None:
    assert clean_page(dirty) == clean


def test_a_file_keeps_its_lines() -> None:
    r"""Only "\n" ends a line, so a form feed or a Unicode separator does not move the lines after it."""
    assert fold_line_ends("a\r\nb\rc\x0bd\x0ce\u2028f\n") == "a\nb\nc\x0bd\x0ce\u2028f\n"


@pytest.mark.parametrize(
    ("broken", "elsewhere", "joined"),
    [
        ("infor|mation", "", "information"),
        ("infor|mation", "information", "information"),
        ("well|known", "", "well-known"),
        ("price|determining", "", "price-determining"),
        ("key|value", "a key, a value", "key-value"),
        ("key|board", "a key, a board, a keyboard", "keyboard"),
        ("on|line", "on-line", "on-line"),
        ("On|line", "On-Line", "On-line"),
        ("state-of-the|art", "", "state-of-the-art"),
        ("Smith|Jones", "", "Smith-Jones"),
        ("x|1", "", "x-1"),
        ("|", "", "-"),
        ("hyphe|na|tion", "", "hyphenation"),
    ],
)
def test_a_line_end_hyphen_is_decided_by_the_document(broken: str, elsewhere: str, joined: str) -> None:
    text = broken.replace("|", HYPHEN)
    assert join_hyphens(text, words_of(f"{elsewhere}\n{text}")) == joined


def test_broken_words_do_not_vouch_for_themselves() -> None:
    assert words_of(f"the infor{HYPHEN}mation of a well-known price") == {
        *("the", "of", "a", "well-known", "well", "known", "price"),
    }


def test_a_page_of_endless_letters_costs_no_more_than_its_length() -> None:
    started = time.monotonic()
    for text in ("a" * 300_000, "a-" * 150_000, "a'" * 150_000, HYPHEN * 30_000, f"ab{HYPHEN}" * 30_000):
        page = clean_page(text)
        join_hyphens(page, words_of(page))
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain name.py", "plain name.py"),
        ("é_漢字_🕰️.py", "é_漢字_🕰️.py"),
        ("new\nline\t.py", r"new\nline\t.py"),
        ("back\\slash", r"back\\slash"),
        ("rtl_\u202ecod.py", r"rtl_\u202ecod.py"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("bad_\udcff.py", r"bad_\xff.py"),
        ("tag\U000e0041", r"tag\U000e0041"),
    ],
)
def test_a_name_is_shown_so_that_it_cannot_pretend(name: str, shown: str) -> None:
    assert show_name(name) == shown


def test_shown_names_are_different_when_names_are() -> None:
    names = ["a\n", r"a\n", r"a\\n", "a\\\n"]
    assert len({show_name(name) for name in names}) == len(names)
