"""`ask` over a scripted engine: what appears on which stream, in which order, with which exit status."""

import io
import json
import re
import signal
from pathlib import Path

import pytest

from app.arguments import Ask
from app.asking import ask
from app.assistant import Assistant
from app.errors import DocumentsTooLong, WrongUsage
from app.library import Library
from ingest.errors import FileMissing, NoSuchPages
from runtime.events import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(engine, settings):
    """Runs `ask` in this process; gives the exit status and what was written to both streams."""

    def call(command: Ask, stdin: str = "", err: io.StringIO | None = None) -> tuple[int, str, str]:
        def opener(given, progress):
            assert given is settings
            progress(Progress("load", 0, 30))
            return Assistant(engine, Library(), given)

        out, err = io.StringIO(), err or io.StringIO()
        code = ask(command, settings, opener, (io.StringIO(stdin), out, err))
        return code, out.getvalue(), err.getvalue()

    return call


@pytest.fixture
def notes(tmp_path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("Pumps.\nThe valve opens at 7 bar.\nSeals.\n", encoding="utf-8")
    return path


def about(*files: Path, questions: tuple[str, ...] = ("When?",), pages: str | None = None, as_json: bool = False):
    return Ask(files, questions, pages, as_json)


def script(engine, *texts: str, **particulars) -> None:
    engine.replies[:] = [type(engine.replies[0])(text, **particulars) for text in texts]


def test_answer_sources_costs(run, engine, notes):
    """The answer first, then where it comes from, then what it cost; progress on the other stream."""
    script(engine, "At 7 bar.", used=(("opens at 7 bar", 1.0),))
    code, out, err = run(about(notes))
    assert code == 0
    assert out.splitlines() == [
        "At 7 bar.",
        "",
        "Sources:",
        "  notes.txt:2 (100%): “Pumps. The valve opens at 7 bar. Seals.”",
        "",
        "0.6 s to first token · 9.0 tokens/s · 2.2 accepted per round · 0 cached + "
        f"{len(engine.prompts[0])} new tokens · scripted, cpu",
    ]
    steps = [line.split(":")[0] for line in err.splitlines()]
    assert [step for step in steps if step != "Reading notes.txt"] == [  # told where it takes a while
        "Loading the model",
        "Loading the model",
        "notes.txt",
        "The model reads",
    ]
    assert engine.closed


def test_json_lines_have_exactly_these_fields(run, engine, notes):
    """One object a line for each question; the second has most of its prompt from the cache."""
    script(engine, "At 7 bar — “hot”.\n", used=(("opens at 7 bar", 1.0),))
    code, out, _ = run(about(notes, questions=("When?", "Why?"), as_json=True))
    assert code == 0
    first, second = map(json.loads, out.splitlines())
    assert list(first) == ["answer", "finish_reason", "sources", "stats", "mode", "model"]
    assert (first["answer"], first["finish_reason"]) == ("At 7 bar — “hot”.\n", "stop")
    assert first["sources"] == [{"document": "notes.txt", "page": 1, "label": "notes.txt:2", "weight": 1.0}]
    assert list(first["stats"]) == [
        "prompt_tokens", "cached_tokens", "new_tokens", "prefill_seconds", "first_token_seconds",
        "decode_tokens", "tokens_per_second", "levels",
    ]  # fmt: skip
    assert first["stats"]["levels"][0] == {"name": "target", "rounds": 4, "proposed": 12, "accepted": 9}
    assert second["stats"]["cached_tokens"] > first["stats"]["prompt_tokens"]


def test_several_questions_are_shown_with_their_answers(run, engine, notes):
    """Each question stands above its answer; one question alone needs no repeating."""
    script(engine, "One.", "Two.")
    _, out, _ = run(about(notes, questions=("First?", "Second?")))
    assert re.findall(r"^(?:> )?(?:First\?|One\.|Second\?|Two\.)$", out, re.MULTILINE) == [
        "> First?",
        "One.",
        "> Second?",
        "Two.",
    ]


def test_questions_may_come_from_standard_input(run, engine, notes):
    """Every line that is not blank is a question."""
    code, _, _ = run(about(notes, questions=()), stdin="One?\n\n  Two?\n")
    assert (code, len(engine.prompts)) == (0, 2)
    with pytest.raises(WrongUsage):
        run(about(notes, questions=()), stdin="\n")


def test_a_terminal_sees_one_line_that_updates(run, engine, notes):
    """Progress is redrawn in place and gone before the answer; notes stay on lines of their own."""
    _, _, err = run(about(notes), err=Terminal())
    assert "\r\x1b[KThe model reads: 0 of " in err
    assert err.endswith("\r\x1b[K")
    assert "\r\x1b[Knotes.txt: 40 tokens\n" in err


def test_a_missing_file_is_found_before_the_model(run, engine, notes):
    """One bad file among good ones stops the command, and no engine is opened."""
    with pytest.raises(FileMissing):
        run(about(notes, Path("gone.pdf")))
    assert not engine.closed


def test_documents_too_long_are_refused_with_both_numbers(run, engine, tmp_path):
    """Nothing is sent, nothing is cut."""
    (tmp_path / "long.txt").write_text("many words " * 500)
    with pytest.raises(DocumentsTooLong) as refused:
        run(about(tmp_path / "long.txt"))
    assert refused.value.used > refused.value.limit
    assert engine.prompts == []
    assert engine.closed


def test_pages_without_a_pdf_are_a_slip(run, notes):
    """--pages would change nothing here, so it is not passed over in silence."""
    with pytest.raises(WrongUsage):
        run(about(notes, pages="1-2"))


def test_pages_are_those_of_every_pdf(run, engine, notes, make_pdf):
    """--pages narrows each PDF, also one that is not named like one, and leaves other files whole."""
    first = make_pdf("a.pdf", "Alpha one", "Alpha two", "Alpha three")
    second = make_pdf("b.pdf", "Beta one", "Beta two").rename(notes.parent / "b")
    script(engine, "It is.", used=(("two", 1.0),))
    _, out, err = run(about(first, second, notes, pages="2"))
    text = bytes(token % 256 for token in engine.prompts[0])
    assert b"Alpha two" in text
    assert b"Beta two" in text
    assert b"7 bar" in text
    assert b"one" not in text
    assert "a.pdf: 9 tokens, 1 of 3 pages" in err
    assert "  a.pdf, p. 2 (50%): “Alpha two”" in out
    with pytest.raises(NoSuchPages):
        run(about(first, second, pages="3"))


def test_a_note_is_told_once(run, engine, notes):
    """That the context is stretched is worth saying, but not under every answer."""
    engine.rope = "YaRN x2 is on."
    _, out, err = run(about(notes, questions=("One?", "Two?")))
    assert err.count("YaRN x2 is on.\n") == 1
    assert "YaRN" not in out


def test_control_characters_do_not_reach_the_terminal(run, engine, notes):
    """Neither an answer nor a quote can move the cursor; JSON keeps what was answered."""
    notes.write_text("Red \x1b[31m valve \u202eat 7\u00a0bar.")
    script(engine, "Red \x1b[31m\u202e at 7\u00a0bar\u3000泵.\x07", used=(("valve", 1.0),))
    _, out, _ = run(about(notes))
    assert re.search("[\x00-\x09\x0b-\x1f\u202e]", out) is None
    assert out.startswith("Red [31m at 7\u00a0bar\u3000泵.\n")
    _, out, _ = run(about(notes, as_json=True))
    assert "\x1b[31m" in json.loads(out)["answer"]


def test_interrupting_an_answer_shows_what_there_is(run, engine, notes):
    """Ctrl-C while text comes: the partial answer stays, later questions are not asked, status 130."""
    script(engine, "A very long answer.")
    before = signal.getsignal(signal.SIGINT)
    n_events = 0

    def interrupt() -> None:
        nonlocal n_events
        n_events += 1
        if n_events == 4:
            signal.raise_signal(signal.SIGINT)

    engine.pause = interrupt
    code, out, err = run(about(notes, questions=("One?", "Two?"), as_json=False))
    assert code == 130
    assert out.splitlines()[:2] == ["> One?", "A very l"]
    assert "Stopped." in err
    assert len(engine.prompts) == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupting_the_prefill_ends_it(run, engine, notes):
    """Ctrl-C while the model reads: an answer without text, cancelled, status 130."""
    engine.pause = lambda: signal.raise_signal(signal.SIGINT)
    code, out, _ = run(about(notes, as_json=True))
    assert code == 130
    assert (json.loads(out)["answer"], json.loads(out)["finish_reason"]) == ("", "cancelled")
