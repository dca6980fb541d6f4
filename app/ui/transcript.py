"""Exchanges made into the HTML of the conversation. Pure; everything from outside is escaped in `markup`."""

import re

from app.amounts import moved, tokens_read
from app.assistant import Answer
from app.sources import Source
from app.ui import markup
from app.ui.exchange import Exchange
from runtime.events import Progress
from runtime.stats import Stats

_ANNOUNCED_STEP = 25  # per cent of prefill between two announcements to a screen reader
_A_QUESTION = 512  # tokens; a prefill of no more is that of a follow-up, whose documents are there already
_LINES = re.compile(
    r"(?P<path>.+):(?P<lines>\d+(-\d+)?)"
)  # how a source names lines of a file; else it is a page label


def finished(exchanges: tuple[Exchange, ...]) -> str:
    """All exchanges that have ended, oldest first."""
    return "".join(_exchange(exchange, at) for at, exchange in enumerate(exchanges))


def running(exchange: Exchange, at: int) -> str:
    """The exchange that is being answered, the one numbered `at`."""
    return _exchange(exchange, at)


def announcement(exchange: Exchange | None) -> str:
    """What a screen reader says of the newest exchange: start, steps of prefill, end; never the text."""
    if exchange is None:
        return ""
    match exchange.phase:
        case "waiting":
            return "Question sent."
        case "prefill":
            progress = exchange.progress
            done = _per_cent(progress) // _ANNOUNCED_STEP * _ANNOUNCED_STEP if progress else 0
            return f"Reading the documents, {done} per cent."
        case "answering":
            return "The answer is being written."
        case "done":
            return "The answer is complete."
        case "stopped":
            return "Stopped."
        case "failed":
            return ""  # the problem is an alert of its own


def _exchange(exchange: Exchange, at: int) -> str:
    return (
        f'<article class="exchange" data-phase="{exchange.phase}">'
        f'<h2 class="question" dir="auto">{markup.text(exchange.question)}</h2>'
        f"{_body(exchange, at)}</article>"
    )


def _body(exchange: Exchange, at: int) -> str:
    words = f'<div class="words" dir="auto">{markup.markdown(exchange.text)}</div>' if exchange.text else ""
    match exchange.phase:
        case "waiting":
            return '<p class="pending"><span class="pulse" aria-hidden="true"></span>Getting ready…</p>'
        case "prefill":
            return words + (_prefill(exchange.progress) if exchange.progress else "")
        case "answering":
            return words or '<p class="pending"><span class="pulse" aria-hidden="true"></span>Writing…</p>'
        case "failed":
            return words + _problem(exchange, at)
        case "done" | "stopped":
            return words + (_below(exchange.answer, at, exchange.phase == "stopped") if exchange.answer else "")


def _prefill(progress: Progress) -> str:
    per_cent = _per_cent(progress)
    what = "Reading the documents" if progress.total > _A_QUESTION else "Reading the question"
    unit = "token"
    if progress.stage == "load":
        what, unit = "Loading the model anew", "layer"
    particulars = [f"{progress.done:,} of {markup.amount(progress.total, unit)}"]
    if progress.per_second > 0:
        particulars.append(f"{progress.per_second:,.0f} tokens/s")
    if progress.seconds_left is not None:
        particulars.append(f"{markup.seconds(progress.seconds_left)} left")
    return (
        f'<div class="prefill"><div class="prefill-head"><span>{what}</span>'
        '<button type="button" class="quiet" data-act="stop">Cancel</button></div>'
        f"{markup.bar(per_cent, what)}"
        f'<p class="particulars">{" · ".join(particulars)}</p></div>'
    )


def _per_cent(progress: Progress) -> int:
    return min(100, 100 * progress.done // progress.total) if progress.total else 100


def _problem(exchange: Exchange, at: int) -> str:
    problem = exchange.problem
    if problem is None:
        return ""
    return (
        f'<div class="problem" role="alert"><p>{markup.text(problem.sentence)}</p>'
        f'<p class="way-out">{markup.text(problem.way_out)}</p>'
        f'<button type="button" class="quiet" data-act="again" data-at="{at}">Ask again</button></div>'
    )


def _below(answer: Answer, at: int, was_stopped: bool) -> str:
    ended = ""
    if was_stopped:
        ended = "You stopped this answer." if answer.text else "Stopped before the first word."
    if answer.finish_reason == "length":
        tokens = markup.amount(answer.stats.decode_tokens, "token")
        ended = f"The answer ends here because it reached its limit of {tokens}."
    said = f'<p class="ended">{ended}</p>' if ended else ""
    said += "".join(f'<p class="note">{markup.text(note)}</p>' for note in answer.notes)
    chips = _chips(answer.sources, at) if answer.text else ""
    return f'{said}{chips}<p class="stats">{_stats(answer.stats)}</p>'


def _chips(sources: tuple[Source, ...], at: int) -> str:
    if not sources:
        return ""
    chips = "".join(f"<li>{_chip(source, at, number)}</li>" for number, source in enumerate(sources))
    return f'<ul class="chips" aria-label="Where this answer comes from">{chips}</ul>'


def _chip(source: Source, at: int, number: int) -> str:
    lines = _LINES.fullmatch(source.label)
    if lines is None:
        place = f"p. {markup.name(source.label)}"
    elif lines["path"] == source.document:
        place = f"line {lines['lines']}"
    else:
        place = markup.name(source.label)
    return (
        f'<button type="button" class="chip" data-act="source" data-at="{at}" data-number="{number}">'
        f'<span class="chip-document">{markup.name(source.document)}</span>'
        f'<span class="chip-place">{place}</span></button>'
    )


def _stats(stats: Stats) -> str:
    """Time to first token, speed, acceptance, what crossed the bus, and how much of the prompt was already there."""
    said = []
    if stats.decode_tokens:
        said.append(f"first token {markup.seconds(stats.first_token_seconds)}")
    if stats.decode_seconds > 0 and stats.decode_tokens > 1:
        said.append(f"{stats.tokens_per_second:,.1f} tokens/s")
    if stats.levels and stats.levels[0].rounds:
        said.append(f"{stats.levels[0].accepted_per_round:.1f} accepted per round")
    said += [*moved(stats), tokens_read(stats)]
    return " · ".join(said)
