"""Flags: merged by kind, and each a sentence."""

import re
from pathlib import Path

import pytest

from ingest.document import Flag
from ingest.flags import LeftOut, describe, merge, skipped


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        (
            Flag("no_text", (3, 4, 5, 9)),
            "There is no text on pages 3-5, 9, only pictures or drawings (a scan, as a rule).",
        ),
        (Flag("page_failed", (2,), "it takes too long"), "Page 2 could not be read: it takes too long."),
        (Flag("undecodable", (), "a/b.pdf p. 3"), "The fonts on a/b.pdf p. 3 do not say what some letters are."),
        (Flag("skipped", (), "a.py: binary"), "Left out: a.py: binary."),
        (Flag("unheard_of", (), "x {y}"), "unheard_of: x {y}."),
    ],
)
def test_a_flag_is_described_in_a_sentence(flag: Flag, sentence: str) -> None:
    assert describe(flag) == sentence


def test_every_flag_that_is_raised_has_a_sentence() -> None:
    source = "".join(path.read_text("utf-8") for path in Path(describe.__code__.co_filename).parent.rglob("*.py"))
    codes = set(re.findall(r'Flag\("(\w+)"', source))
    assert len(codes) > 10
    for code in codes:
        assert not describe(Flag(code)).startswith(code)


def test_flags_of_one_kind_are_one_flag_with_all_pages() -> None:
    assert merge([Flag("no_text", (5,)), Flag("x", (1,), "a"), Flag("no_text", (3,)), Flag("x", (2,), "a")]) == (
        Flag("no_text", (3, 5)),
        Flag("x", (1, 2), "a"),
    )


def test_long_lists_say_how_many_more() -> None:
    (flag,) = skipped(LeftOut(f"{number}.bin", "binary", "1 byte" if number == 0 else "") for number in range(2000))
    assert flag.detail.startswith("0.bin (1 byte); 1.bin; ")
    assert flag.detail.endswith("7.bin; and 1,992 more: binary")
