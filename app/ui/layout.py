"""The components of the page and where they stand. What they show comes from `listeners`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from app.ui import engine, reader

if TYPE_CHECKING:
    from runtime.engine import EngineFacts
    from runtime.remote.engine import RemoteFacts

# Every click and change inside one of our HTML parts comes back as the event `act`, with the data attributes
# of the element; `page.js` gathers them. The template names `value` as a variable: it is never evaluated.
_WIRE = "fullread.wire(element, (detail) => trigger('act', detail));"


def _once_loaded(call: str) -> str:
    """`call` as soon as `page.js` is there, which a busy machine may bring after the parts it is for."""
    return f"(function wait() {{ if (window.fullread) {{ {call} }} else setTimeout(wait, 20); }})();"


HEAD = (
    '<link rel="stylesheet" href="page.css"><script src="page.js"></script>'
    '<meta name="color-scheme" content="light dark">'
)


@dataclass(frozen=True, slots=True)
class Parts:
    """The components that listeners fill or listen to."""

    head: Any
    shelf: Any
    meter: Any
    chats: Any
    finished: Any
    running: Any
    question: Any
    send: Any
    stop: Any
    hint: Any
    reader: Any
    announcement: Any
    beat: Any


def place(facts: "EngineFacts | RemoteFacts") -> Parts:
    """Make the components, inside an open `gr.Blocks`."""
    head = _live("head", engine.head(facts))
    with gr.Row(elem_id="columns"):
        with gr.Column(elem_id="left"):
            gr.HTML(_DROP, elem_id="drop", js_on_load=_once_loaded("fullread.drop(element);"), apply_default_css=False)
            shelf = _live("shelf")
            meter = _live("meter")
            chats = _live("chats")
        with gr.Column(elem_id="middle"):
            with gr.Column(elem_id="talk"):
                finished = _live("finished")
                running = _live("running")
            with gr.Row(elem_id="composer"):
                question = gr.Textbox(
                    show_label=False,
                    container=False,
                    placeholder="Ask about your documents…",
                    lines=1,
                    max_lines=8,
                    elem_id="question",
                    label="Your question",
                    autofocus=True,
                )
                send = gr.Button("Send", variant="primary", elem_id="send", interactive=False)
                stop = gr.Button("Stop", variant="stop", elem_id="stop", visible=False)
            hint = _live("hint")
        with gr.Column(elem_id="right"):
            reading = _live("reader", reader.empty())
    announcement = _live("announcement")
    beat = _live("beat")
    return Parts(head, shelf, meter, chats, finished, running, question, send, stop, hint, reading, announcement, beat)


def _live(elem_id: str, value: str = "") -> Any:
    return gr.HTML(value, elem_id=elem_id, js_on_load=_once_loaded(_WIRE), apply_default_css=False)


_DROP = """
<h2 class="heading">Documents</h2>
<div class="drop">
  <p>Drop PDFs, text or a folder</p>
  <div class="drop-buttons">
    <button type="button" data-pick="files">Choose files</button>
    <button type="button" data-pick="folder">Choose a folder</button>
  </div>
  <input type="file" multiple hidden data-picker="files" aria-label="Choose files">
  <input type="file" webkitdirectory hidden data-picker="folder" aria-label="Choose a folder">
</div>
<p class="drop-status" role="status"></p>
"""
