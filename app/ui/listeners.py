"""What happens on each event of the page.

One listener, `watch`, runs as long as the page is open and sends whatever changed; all others change the desk
or the intake and leave the showing to it. So a page that is loaded anew finds everything as it is, and two
pages show the same.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields
from typing import Any

import gradio as gr

from app.assistant import Assistant
from app.library import Entry
from app.naming import shown
from app.sources import Source
from app.ui import reader
from app.ui.desk import Desk
from app.ui.intake import Intake
from app.ui.layout import Parts
from app.ui.screen import Screen, State, draw

_PACE = 0.08  # seconds between two looks at what changed
_BEAT = 25  # looks without a change after which a beat is sent, so that each side notices when the other is gone


def connect(blocks: Any, parts: Parts, assistant: Assistant, desk: Desk, intake: Intake) -> None:
    """Wire every component of the page."""
    _Listeners(assistant, desk, intake).connect(blocks, parts)


class _Listeners:
    def __init__(self, assistant: Assistant, desk: Desk, intake: Intake) -> None:
        self._assistant, self._desk, self._intake = assistant, desk, intake

    def connect(self, blocks: Any, parts: Parts) -> None:
        quiet = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
        outputs = [
            parts.head,
            parts.shelf,
            parts.meter,
            parts.chats,
            parts.finished,
            parts.running,
            parts.hint,
            parts.announcement,
            parts.send,
            parts.stop,
            parts.beat,
        ]
        blocks.load(self.watch, None, outputs, **quiet)
        gr.on([parts.send.click, parts.question.submit], self.ask, parts.question, parts.question, **quiet)
        parts.stop.click(self.stop, None, None, **quiet)
        parts.running.act(self.stop, None, None, **quiet)
        parts.shelf.act(self.on_shelf, None, parts.reader, **quiet)
        parts.reader.act(self.on_reader, None, parts.reader, **quiet)
        parts.chats.act(self.on_chats, None, None, **quiet)
        parts.head.act(self.on_chats, None, None, **quiet)
        parts.finished.act(self.on_finished, None, [parts.reader, parts.question], **quiet)

    async def watch(self) -> AsyncIterator[list[Any]]:
        """Everything the page shows, then every change of it, until the page is closed."""
        state, screen = self._state(None), None
        for beat in itertools.count():
            drawn = draw(state, self._assistant.facts)
            yield [*_changes(screen, drawn), f"<i>{beat}</i>"]
            screen, looks = drawn, 0
            while (now := self._state(state)) == state and looks < _BEAT:
                looks += 1
                await asyncio.sleep(_PACE)
            state = now

    def ask(self, question: str) -> Any:
        """Put the question, and empty its field; leave it there when it cannot be put now."""
        if not question.strip() or self._state(None).obstacle is not None or not self._desk.ask(question.strip()):
            return gr.skip()
        return ""

    def stop(self) -> None:
        self._desk.stop()

    def on_shelf(self, event: gr.EventData) -> Any:
        act = _Act(event._data)
        match act.name:
            case "check":
                self._intake.check(act.text("entry"), act.flag("value"))
            case "select":
                self._intake.select(act.text("entry"), act.text("value"))
            case "unlock":
                self._intake.unlock(act.text("entry"), act.text("value"))
            case "remove":
                self._intake.remove(act.text("entry"))
            case "read":
                return self._page(act.text("entry"), 0)
        return gr.skip()

    def on_reader(self, event: gr.EventData) -> Any:
        act = _Act(event._data)
        return self._page(act.text("entry"), act.number("index"))

    def on_chats(self, event: gr.EventData) -> None:
        act = _Act(event._data)
        if act.name == "new":
            self._desk.new_chat()
        else:
            self._desk.open_chat(act.text("chat"))

    def on_finished(self, event: gr.EventData) -> Any:
        act = _Act(event._data)
        exchanges = self._desk.view().chat.exchanges
        match act.name:
            case "suggest":
                return gr.skip(), act.text("text")
            case "again" if 0 <= act.number("at") < len(exchanges):
                return gr.skip(), exchanges[act.number("at")].question
            case "source" if 0 <= act.number("at") < len(exchanges):
                answer = exchanges[act.number("at")].answer
                number = act.number("number")
                if answer is not None and 0 <= number < len(answer.sources):
                    return self._source(answer.sources[number]), gr.skip()
        return gr.skip(), gr.skip()

    def _state(self, before: State | None) -> State:
        """What is to be shown now; the meter is computed anew only when the documents changed."""
        entries = self._assistant.entries()
        same = before is not None and entries == before.entries
        meter = before.meter if before is not None and same else self._assistant.meter()
        return State(self._desk.view(), entries, self._intake.tray(), meter)

    def _page(self, entry_id: str, index: int) -> str:
        entry = next((entry for entry in self._assistant.entries() if entry.id == entry_id), None)
        return reader.page(entry, index) if entry is not None else reader.gone()

    def _source(self, source: Source) -> str:
        named = [entry for entry in self._assistant.entries() if shown(entry.name) == source.document]
        entry = next((entry for entry in named if _holds(entry, source)), next(iter(named), None))
        return reader.page(entry, source.page, source.quote) if entry is not None else reader.gone()


class _Act:
    """The data attributes of the element clicked or changed. They come from a browser: anything goes."""

    def __init__(self, data: Mapping[str, object] | None) -> None:
        self._data = data or {}

    @property
    def name(self) -> str:
        return self.text("act")

    def text(self, key: str) -> str:
        return str(self._data.get(key, ""))

    def flag(self, key: str) -> bool:
        return self._data.get(key) is True

    def number(self, key: str) -> int:
        """The whole number under `key`; -1 where there is none."""
        value = self.text(key)
        return int(value) if value.isascii() and value.isdecimal() else -1


def _holds(entry: Entry, source: Source) -> bool:
    pages = entry.document.pages if entry.document else ()
    return any(page.index == source.page and source.quote in page.text for page in pages)


def _changes(before: Screen | None, now: Screen) -> list[Any]:
    """One output per component: what it shows now, or nothing where it shows that already."""
    outputs: list[Any] = []
    for field in fields(Screen):
        value = getattr(now, field.name)
        if before is not None and getattr(before, field.name) == value:
            outputs.append(gr.skip())
        elif field.name == "may_send":
            outputs.append(gr.update(interactive=value))
        elif field.name == "may_stop":
            outputs.append(gr.update(visible=value))
        else:
            outputs.append(value)
    return outputs
