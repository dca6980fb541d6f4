"""Ids to text as they come: whatever the pieces, together they are the whole, and stop strings end it at one place."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.detokenize import StopStrings, StreamDecoder
from runtime.tokenizer import Tokenizer
from tests.runtime.tiny import N_TOKENS, tiny_backend
from tests.runtime.vocabularies import llama_2, unigram

TINY = Tokenizer(tiny_backend())
SENTENCEPIECE = [Tokenizer(llama_2(is_legacy=False)), Tokenizer(llama_2(is_legacy=True)), Tokenizer(unigram())]
any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


def streamed(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The deltas of ids pushed one at a time, and what is flushed."""
    decoder = StreamDecoder(tokenizer.decode)
    return [*(decoder.push(index) for index in ids), decoder.flush()]


@given(st.lists(st.integers(0, N_TOKENS - 1), max_size=60))
@settings(deadline=None, max_examples=200)
def test_deltas_of_any_ids_are_the_text_of_all(ids: list[int]) -> None:
    """Also of bytes that are no characters, and with control tokens among them."""
    assert "".join(streamed(TINY, ids)) == TINY.decode(ids)


@given(any_text)
@settings(deadline=None, max_examples=150)
def test_no_delta_holds_half_a_character(text: str) -> None:
    """Every character comes whole, when its last byte comes."""
    deltas = streamed(TINY, TINY.encode(text))

    assert "".join(deltas) == text
    assert deltas[-1] == "" or text.endswith("\ufffd")
    assert "\ufffd" in text or not any("\ufffd" in delta for delta in deltas)


@given(st.text(st.sampled_from("ab the\n漢é🙂."), max_size=30))
@settings(deadline=None, max_examples=150)
def test_spaces_between_sentencepiece_words_are_kept(text: str) -> None:
    """A decoder that takes the first space away does so once, at the front."""
    for tokenizer in SENTENCEPIECE:
        ids = tokenizer.encode(text)
        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("tokenizer", SENTENCEPIECE)
def test_a_token_without_text_takes_no_space_away(tokenizer: Tokenizer) -> None:
    """A control token in the middle of an answer is nothing to start decoding from."""
    ids = [*tokenizer.encode("the"), min(tokenizer.eos_ids), *tokenizer.encode("the")]

    assert "".join(streamed(tokenizer, ids)) == "the the"


def test_bytes_that_make_no_character_come_at_the_end() -> None:
    """Held back while they could become one, then shown as what they are."""
    ids = TINY.encode("a漢")[:-1]
    decoder = StreamDecoder(TINY.decode)

    assert [decoder.push(index) for index in ids] == ["a", "", ""]
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


def test_nothing_pushed_is_nothing() -> None:
    assert StreamDecoder(TINY.decode).flush() == ""


# --- stop strings


def stopped(stop: Sequence[str], deltas: Sequence[str]) -> tuple[str, bool]:
    """The text that is let through, and whether a stop string was reached."""
    strings = StopStrings(stop)
    text = ""
    for delta in deltas:
        text += strings.push(delta)
        if strings.is_reached:
            return text, True
    return text + strings.flush(), False


def defined(stop: Sequence[str], text: str) -> tuple[str, bool]:
    """The definition: read letter by letter until the text read ends with a stop string, then cut the longest."""
    for end in range(1, len(text) + 1):
        starts = [end - len(word) for word in stop if text[:end].endswith(word)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    st.lists(st.text("abc", max_size=6), max_size=8),
)
@settings(deadline=None, max_examples=400)
def test_any_split_of_the_text_stops_at_the_same_place(stop: list[str], deltas: list[str]) -> None:
    """Over few letters, so that stop strings overlap, begin and contain each other."""
    assert stopped(stop, deltas) == defined(stop, "".join(deltas))


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(st.text("ab", max_size=5), max_size=8))
@settings(deadline=None, max_examples=200)
def test_what_was_let_through_is_never_taken_back(stop: list[str], deltas: list[str]) -> None:
    """Each delta that comes out is part of the answer for good."""
    strings = StopStrings(stop)
    whole = defined(stop, "".join(deltas))[0]
    shown = ""
    for delta in deltas:
        if strings.is_reached:
            break
        shown += strings.push(delta)
        assert whole.startswith(shown)


@pytest.mark.parametrize(
    ("stop", "text", "expected"),
    [
        (("END",), "the END of", "the "),
        (("\n\n",), "one\ntwo\n\nthree", "one\ntwo"),
        (("b", "abc"), "xabc", "xa"),
        (("bc", "abc"), "xabc", "x"),
        (("aab",), "aaab", "a"),
        ((), "all of it", "all of it"),
    ],
)
def test_stop_strings_by_hand(stop: tuple[str, ...], text: str, expected: str) -> None:
    assert stopped(stop, [text])[0] == expected
    assert stopped(stop, list(text))[0] == expected


def test_what_may_become_a_stop_string_is_held_back_no_longer_than_it_may() -> None:
    strings = StopStrings(("STOP",))

    assert [strings.push(delta) for delta in ("aS", "T", "x", "ST")] == ["a", "", "STx", ""]
    assert strings.flush() == "ST"
