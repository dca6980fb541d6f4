"""Sources: evidence spans made into pages, lines, shares and quotes."""

import pytest

from app.prompts import Chosen, Wording
from app.sources import find_sources, quote_around
from ingest.document import Document, Page
from runtime.events import Span


@pytest.fixture
def laid_out(engine, manual, tree):
    """The prompt of both documents, what was chosen for it, and a search for words in it."""
    tokenizer = engine.tokenizer
    chosen = [
        Chosen(doc, doc.pages, tuple(tuple(tokenizer.encode(page.text)) for page in doc.pages))
        for doc in (manual, tree)
    ]
    prompt = Wording(tokenizer, bytes(32)).compose(chosen, [], "Why?")

    def at(words: str, weight: float) -> Span:
        start = bytes(token % 256 for token in prompt.ids).index(words.encode())
        return Span(start, start + len(words.encode()), weight)

    return prompt, chosen, at


def test_pages_are_ranked_by_the_sum_of_their_weights(engine, laid_out):
    """Two weak places on one page outweigh a stronger one elsewhere; shares sum to one."""
    prompt, chosen, at = laid_out
    evidence = [at("7 bar", 2.0), at("by hand", 2.0), at("about pumps", 3.0), at("print('on')", 1.0)]
    found = find_sources(prompt, chosen, evidence, engine.tokenizer)
    assert [(source.document, source.page, source.label) for source in found] == [
        ("manual.pdf", 4, "2"),
        ("manual.pdf", 1, "i"),
        ("project", 2, "src/pump.py:2"),
    ]
    assert [source.weight for source in found] == pytest.approx([0.5, 0.375, 0.125])


def test_files_are_cited_with_the_lines_of_the_strongest_place(engine, laid_out):
    """The label of a file names the lines, from 1, that the evidence lies on; blank edges do not count."""
    prompt, chosen, at = laid_out
    for words, lines in (
        ("import pump", "1"),
        ("def run():\n    pump.start()", "4-5"),
        ("\n\n\ndef run():\n", "4"),
        ("return 0\n", "6"),
    ):
        (source,) = find_sources(prompt, chosen, [at(words, 1.0)], engine.tokenizer)
        assert source.label == f"src/main.py:{lines}"


def test_single_words_close_together_are_one_passage(engine, laid_out):
    """Attention falls on single tokens; the heaviest run of them is what is cited, not the strongest one."""
    prompt, chosen, at = laid_out
    evidence = [at("import", 1.5), at("pump.start", 1.0), at("return", 1.0)]
    (source,) = find_sources(prompt, chosen, evidence, engine.tokenizer)
    assert (source.label, source.weight) == ("src/main.py:5-6", 1.0)


def test_a_span_over_two_pages_is_shared_by_its_tokens(engine, laid_out):
    """What lies between pages counts for neither."""
    prompt, chosen, _ = laid_out
    first, second = prompt.spans[0], prompt.spans[1]
    span = Span(first.end - 6, second.start + 2, 1.0)
    found = find_sources(prompt, chosen, [span], engine.tokenizer)
    assert [(source.page, source.weight) for source in found] == [
        (1, pytest.approx(0.75)),
        (2, pytest.approx(0.25)),
    ]


def test_weak_pages_are_dropped_and_five_are_kept(engine):
    """Below a twentieth of the strongest a page is noise; a sixth page is one too many."""
    pages = tuple(Page(number, str(number), f"page {number}") for number in range(1, 9))
    chosen = [
        Chosen(
            Document("a.pdf", "pdf", "0" * 64, 8, pages),
            pages,
            tuple(tuple(p.text.encode()) for p in pages),
        )
    ]
    prompt = Wording(engine.tokenizer, bytes(32)).compose(chosen, [], "Why?")

    def weigh(*weights: float) -> list[int]:
        evidence = [Span(s.start, s.end, weight) for s, weight in zip(prompt.spans, weights, strict=False) if weight]
        return [source.page for source in find_sources(prompt, chosen, evidence, engine.tokenizer)]

    assert weigh(100, 4, 6) == [1, 3]
    assert weigh(1, 2, 3, 4, 5, 6, 7, 8) == [8, 7, 6, 5, 4]
    assert weigh() == []


def test_evidence_outside_pages_is_nothing(engine, laid_out):
    """Attention to headers, marks or the question cites no page."""
    prompt, chosen, at = laid_out
    assert find_sources(prompt, chosen, [at("Document 1", 5.0), at("Why?", 5.0)], engine.tokenizer) == ()


@pytest.mark.parametrize("length", [0, 1, 40, 239, 240, 1000, 5000])
def test_quotes_stand_in_the_text_as_they_are(length):
    """A quote is a literal, bounded piece of the text that holds the start of the evidence."""
    text = "\n".join(f"Línea {number} — with “words”, and more of them." for number in range(150))
    for start in (0, 7, 2000, len(text) - length):
        quote = quote_around(text, start, start + length)
        assert quote in text
        assert 0 < len(quote) <= 240
        assert text[start : start + min(length, 100)].strip() in quote


def test_a_quote_is_cut_between_words():
    """Neither end of a quote breaks a word, where there are words."""
    text = "word " * 200
    assert set(quote_around(text, 500, 504).split()) == {"word"}


def test_a_text_without_spaces_is_quoted_all_the_same():
    """Chinese, or a long identifier, has no places to cut at; some of it is shown still."""
    text = "泵" * 1000
    assert quote_around(text, 500, 504) in text
    assert len(quote_around(text, 500, 504)) >= 4
