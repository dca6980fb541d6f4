"""What a terminal shows: progress on an updating line (or plain lines), answers, sources, costs."""

import json
import shutil
import threading
import time
import unicodedata
from collections.abc import Iterable
from typing import TextIO

from app.amounts import moved, tokens_read
from app.assistant import Answer
from app.naming import shown
from app.sources import Source
from runtime.events import Progress
from runtime.stats import Stats

_SOON = 0.3  # seconds after which a step that is still going on is worth a word
_REDRAW = 0.1
_PLAIN_EVERY = 5.0  # seconds between plain lines of one stage
_CLEAR = "\r\x1b[K"
_REORDERING = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})


class ProgressLine:
    """Progress on `stream`: one updating line on a terminal, now and then a plain line elsewhere.

    Calls come from one thread; only the delayed word of `soon` comes from a timer.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._is_tty = stream, stream.isatty()
        self._lock = threading.Lock()
        self._stage, self._written = "", 0.0
        self._drawn = False
        self._timer: threading.Timer | None = None

    def say(self, text: str) -> None:
        """A step begins."""
        self._forget_timer()
        self._write(text)

    def soon(self, text: str) -> None:
        """A step begins that may be over before a word is worth it."""
        self._forget_timer()
        self._timer = threading.Timer(_SOON, self._write, [text])
        self._timer.daemon = True
        self._timer.start()

    def report(self, progress: Progress) -> None:
        """How far a step is; most reports pass unshown."""
        self._forget_timer()
        now = time.monotonic()
        is_due = now - self._written >= (_REDRAW if self._is_tty else _PLAIN_EVERY)
        if progress.stage != self._stage or is_due:
            self._stage, self._written = progress.stage, now
            self._write(describe(progress))

    def note(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        with self._lock:
            print(text, file=self._stream, flush=True)

    def clear(self) -> None:
        """Take the updating line away; a plain line stays."""
        self._forget_timer()
        self._stage = ""
        with self._lock:
            if self._drawn:
                self._stream.write(_CLEAR)
                self._stream.flush()
                self._drawn = False

    def _write(self, text: str) -> None:
        with self._lock:
            if self._is_tty:
                # A line that wraps could not be cleared again.
                fitting = text[: shutil.get_terminal_size().columns - 1]
                self._stream.write(f"{_CLEAR}{fitting}")
                self._drawn = True
            else:
                self._stream.write(f"{text}\n")
            self._stream.flush()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None


def describe(progress: Progress) -> str:
    """One line: what is done, how far it is, how fast, how long it will take."""
    done, total, speed = progress.done, progress.total, progress.per_second
    match progress.stage:
        case "download":
            parts = [f"Downloading the model: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB"]
            parts += [f"{speed / 1e6:,.1f} MB/s"] if speed else []
        case "load":
            parts = [f"Loading the model: {done:,} of {total:,} layers"]
        case "prefill":
            parts = [f"The model reads: {done:,} of {total:,} tokens"]
            parts += [f"{speed:,.0f} tokens/s"] if speed else []
    if progress.seconds_left is not None and done < total:
        parts.append(f"{duration(progress.seconds_left)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Seconds in the words a person uses: "0.4 s", "12 s", "3 min 20 s"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def harmless(text: str) -> str:
    """`text` without the characters by which a document could steer a terminal or reorder a line."""
    return "".join(char for char in text if char in "\n\t" or not _steers(char))


def _steers(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs") or unicodedata.bidirectional(char) in _REORDERING


def sources_lines(sources: Iterable[Source]) -> list[str]:
    """One line a source: document, page, share of the evidence, and the words around its strongest place."""
    return [f"  {_place(source)} ({source.weight:.0%}): “{_on_one_line(source.quote)}”" for source in sources]


def _place(source: Source) -> str:
    if ":" in source.label:  # a file with its lines
        is_own_name = source.label.startswith(f"{source.document}:")
        return source.label if is_own_name else f"{source.document}, {source.label}"
    printed = "" if source.label == str(source.page) else f" (printed “{source.label}”)"
    return f"{source.document}, p. {source.page}{printed}"


def _on_one_line(quote: str) -> str:
    return harmless(" ".join(quote.split()))


def costs_line(answer: Answer) -> str:
    """What the answer cost, on one line."""
    stats = answer.stats
    accepted = [f"{level.accepted_per_round:.1f} accepted per round" for level in stats.levels[:1] if level.rounds]
    parts = [
        f"{duration(stats.first_token_seconds)} to first token",
        f"{stats.tokens_per_second:.1f} tokens/s",
        *accepted,
        *moved(stats),
        tokens_read(stats),
        f"{shown(answer.model)}, {answer.mode}",
    ]
    return " · ".join(parts)


def to_json(answer: Answer) -> str:
    """The answer as one line of JSON."""
    record = {
        "answer": answer.text,
        "finish_reason": answer.finish_reason,
        "sources": [
            {"document": source.document, "page": source.page, "label": source.label, "weight": source.weight}
            for source in answer.sources
        ],
        "stats": _stats_record(answer.stats),
        "mode": answer.mode,
        "model": answer.model,
    }
    return json.dumps(record)


def _moved_record(stats: Stats) -> dict[str, object]:
    """What crossed the bus, where anything did."""
    if not (stats.to_device_bytes or stats.from_device_bytes):
        return {}
    return {
        "to_device_bytes": stats.to_device_bytes,
        "from_device_bytes": stats.from_device_bytes,
        "moved_bytes_per_token": stats.moved_bytes_per_token,
    }


def _stats_record(stats: Stats) -> dict[str, object]:
    return {
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "new_tokens": stats.new_tokens,
        "prefill_seconds": stats.prefill_seconds,
        "first_token_seconds": stats.first_token_seconds,
        "decode_tokens": stats.decode_tokens,
        "tokens_per_second": stats.tokens_per_second,
        **_moved_record(stats),
        "levels": [
            {
                "name": level.name,
                "rounds": level.rounds,
                "proposed": level.proposed,
                "accepted": level.accepted,
            }
            for level in stats.levels
        ],
    }
