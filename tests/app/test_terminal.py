"""What the terminal shows: progress in words, few lines where they cannot be redrawn, harmless text."""

import io
import json
import time
from dataclasses import replace

import pytest

from app.assistant import Answer
from app.sources import Source
from app.terminal import ProgressLine, costs_line, describe, duration, harmless, sources_lines, to_json
from runtime.events import Progress
from runtime.stats import Stats


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (
            Progress("download", 12_300_000, 98_362_432, 5_100_000.0, 17.0),
            "Downloading the model: 12.3 of 98.4 MB, 5.1 MB/s, 17 s left",
        ),
        (Progress("load", 3, 30), "Loading the model: 3 of 30 layers"),
        (
            Progress("prefill", 1024, 79_310, 350.0, 223.7),
            "The model reads: 1,024 of 79,310 tokens, 350 tokens/s, 3 min 44 s left",
        ),
        (Progress("prefill", 0, 79_310), "The model reads: 0 of 79,310 tokens"),
        (Progress("prefill", 9, 9, 350.0, 0.0), "The model reads: 9 of 9 tokens, 350 tokens/s"),
    ],
)
def test_progress_in_words(progress, words):
    """What is done of what, how fast, and how long it will take once that is known."""
    assert describe(progress) == words


def test_plain_lines_are_few():
    """Where a line cannot be redrawn, a stage says where it starts and then holds its tongue for a while."""
    stream = io.StringIO()
    line = ProgressLine(stream)
    for done in range(100):
        line.report(Progress("load", done, 100))
    for done in range(100):
        line.report(Progress("prefill", done, 100))
    assert stream.getvalue().splitlines() == [
        "Loading the model: 0 of 100 layers",
        "The model reads: 0 of 100 tokens",
    ]


def test_a_short_step_is_not_announced():
    """The word of a step that is over in no time never appears; that of a longer one does within a second."""
    stream = io.StringIO()
    line = ProgressLine(stream)
    line.soon("Reading a")
    line.clear()
    line.soon("Reading b")
    time.sleep(0.9)
    line.clear()
    assert stream.getvalue() == "Reading b\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s")],
)
def test_durations(seconds, words):
    """Seconds, and minutes from one minute on."""
    assert duration(seconds) == words


def test_text_that_stays_and_text_that_goes():
    """Letters of every script, joiners and spaces stay; what moves a cursor or turns a line round goes."""
    stays = "Zoë 泵 \u0645\u06cc\u200c\u062e 👩‍🔧\u3000\n\t–"
    assert harmless(stays) == stays
    assert harmless("a\x1b]0;b\x07\r\x9b\u202ec\u2066\ud800") == "a]0;bc"


def test_a_source_is_named_as_a_person_would():
    """Physical page first, the printed number beside it where it differs; files with their lines."""
    sources = [
        Source("a.pdf", 12, "12", 0.5, "The\n quote"),
        Source("a.pdf", 4, "iv", 0.3, "q"),
        Source("notes.txt", 1, "notes.txt:3-9", 0.15, "q"),
        Source("project", 2, "src/a.py:7", 0.05, "q"),
    ]
    assert sources_lines(sources) == [
        "  a.pdf, p. 12 (50%): “The quote”",
        "  a.pdf, p. 4 (printed “iv”) (30%): “q”",
        "  notes.txt:3-9 (15%): “q”",
        "  project, src/a.py:7 (5%): “q”",
    ]


def test_what_crossed_the_bus_is_told_where_anything_did() -> None:
    """On the line of costs and in JSON."""
    stats = Stats(90, 80, 10, 1.5, 0.4, 4, 2.0)
    moved = replace(stats, to_device_bytes=3_500, from_device_bytes=500, decode_moved_bytes=2_400)
    words, nothing = (Answer("Yes.", "stop", (), each, "offload", "starter") for each in (moved, stats))
    assert "1.5 tokens/s · 4,000 bytes between memory and card (600 bytes a token) · 80 cached" in costs_line(words)
    assert "between" not in costs_line(nothing)
    assert {name: value for name, value in json.loads(to_json(words))["stats"].items() if "bytes" in name} == {
        "to_device_bytes": 3_500,
        "from_device_bytes": 500,
        "moved_bytes_per_token": 600.0,
    }
    assert not any("bytes" in name for name in json.loads(to_json(nothing))["stats"])
