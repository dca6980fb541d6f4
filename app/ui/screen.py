"""All that the page shows at one moment, as HTML and switches. Pure."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.assistant import Meter
from app.library import Entry
from app.ui import documents, engine, markup, transcript
from app.ui.desk import View
from app.ui.intake import Tray

if TYPE_CHECKING:
    from runtime.engine import EngineFacts
    from runtime.remote.engine import RemoteFacts

_SUGGESTIONS = (
    "Summarise the documents, section by section.",
    "What are the main claims, and what supports each?",
    "Which questions do the documents leave open?",
)


@dataclass(frozen=True, slots=True)
class State:
    """What the screen is drawn from. Comparing two states is cheap: their parts are shared, not copied."""

    view: View
    entries: tuple[Entry, ...]
    tray: Tray
    meter: Meter

    @property
    def obstacle(self) -> str | None:
        """Why no question can be asked now, in words; None when one can."""
        reading = [entry.name for entry in self.entries if entry.status == "reading"] + list(self.tray.waiting)
        if self.view.is_answering:
            is_here = any(exchange.is_running for exchange in self.view.chat.exchanges)
            return "" if is_here else "An answer is being written in another chat."
        if reading:
            return f"Reading {markup.name(reading[0])}…"
        if not any(entry.status == "ready" for entry in self.entries):
            return "Add a document to ask about."
        if not any(entry.is_chosen for entry in self.entries):
            return "Tick a document to ask about it."
        if self.meter.over:
            return (
                f"The documents take {self.meter.used:,} tokens and the model reads {self.meter.limit:,}: "
                "choose fewer pages or untick a document."
            )
        return None


@dataclass(frozen=True, slots=True)
class Screen:
    """The HTML of each part of the page, and whether Send and Stop are offered."""

    head: str
    shelf: str
    meter: str
    chats: str
    finished: str
    running: str
    hint: str
    announcement: str
    may_send: bool
    may_stop: bool


def draw(state: State, facts: "EngineFacts | RemoteFacts") -> Screen:
    exchanges = state.view.chat.exchanges
    newest = exchanges[-1] if exchanges else None
    is_running = newest is not None and newest.is_running
    ended = exchanges[:-1] if is_running else exchanges
    obstacle = state.obstacle
    return Screen(
        head=engine.head(facts),
        shelf=documents.shelf(state.entries, state.tray),
        meter=documents.meter(state.meter) if state.entries else "",
        chats=documents.chats(state.view),
        finished=transcript.finished(ended) if exchanges else welcome(state, facts),
        running=transcript.running(newest, len(ended)) if newest is not None and is_running else "",
        hint=f"<p>{obstacle}</p>" if obstacle else _privacy(facts),
        announcement=f'<div role="status">{transcript.announcement(newest)}</div>',
        may_send=obstacle is None,
        may_stop=is_running,
    )


def _privacy(facts: "EngineFacts | RemoteFacts") -> str:
    if facts.mode == "remote":
        return f"<p>Documents and questions go to {markup.text(facts.url)}.</p>"
    return "<p>Nothing is sent to the internet.</p>"


def welcome(state: State, facts: "EngineFacts | RemoteFacts") -> str:
    """What an empty chat says: what to do first, or what to ask; and what to expect of the model."""
    ready = [entry for entry in state.entries if entry.is_chosen]
    if ready:
        lead = f'<h2>Ask about {_names(ready)}</h2><ul class="suggestions">' + "".join(
            f'<li><button type="button" data-act="suggest" data-text="{question}">{question}</button></li>'
            for question in _SUGGESTIONS
        )
        lead += "</ul>"
    else:
        pages = "" if facts.mode == "remote" else ", and shows the pages each answer rests on"
        lead = (
            "<h2>Ask about whole documents</h2>"
            "<p>Drop a PDF, a text or a folder of code. Fullread reads all of it, not excerpts, "
            f"up to {state.meter.limit:,} tokens at once{pages}.</p>"
        )
    return f'<section class="welcome">{lead}{engine.notes(facts)}</section>'


def _names(entries: list[Entry]) -> str:
    if len(entries) == 1:
        return markup.name(entries[0].name)
    return f"{markup.name(entries[0].name)} and {markup.amount(len(entries) - 1, 'other document')}"
