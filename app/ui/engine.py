"""What runs, how and why, as the page's head shows it. Pure."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from app.plan_words import beside, neighbour, on_device, place, speed, streamed
from app.ui import markup

if TYPE_CHECKING:
    from runtime.engine import EngineFacts
    from runtime.memory import Placed
    from runtime.remote.engine import RemoteFacts

_MODES = {
    "gpu": "on the graphics card",
    "offload": "graphics card and memory",
    "cpu": "on the CPU",
    "remote": "on another engine",
}


def head(facts: "EngineFacts | RemoteFacts") -> str:
    """The name of the product, the model and where it runs; particulars and notes in a panel that opens."""
    model, mode = markup.name(facts.model), _MODES.get(facts.mode, markup.text(facts.mode))
    return (
        '<div class="head"><h1 class="wordmark">Fullread</h1>'
        f'<details class="engine"><summary><span class="engine-model">{model}</span>'
        f'<span class="engine-mode">{mode}</span>'
        f'<span class="engine-why">{markup.text(facts.mode_reason)}</span></summary>'
        f'<div class="engine-panel"><p>{markup.text(facts.mode_reason)}</p>'
        f"{_particulars(facts)}{_plan(None if facts.mode == 'remote' else facts.placed)}{notes(facts)}</div>"
        '</details><button type="button" class="new-chat" data-act="new">New chat</button>'
        '<nav class="views" aria-label="Parts of the page">'
        '<button type="button" data-local="view" data-view="documents">Documents</button>'
        '<button type="button" data-local="view" data-view="chat">Chat</button>'
        '<button type="button" data-local="view" data-view="reader">Reader</button></nav></div>'
    )


def notes(facts: "EngineFacts | RemoteFacts") -> str:
    """What a person must be told about this model, the starter's honest limits for one."""
    return "".join(f'<p class="note">{markup.text(note)}</p>' for note in facts.notes)


def _particulars(facts: "EngineFacts | RemoteFacts") -> str:
    rows = _elsewhere(facts) if facts.mode == "remote" else _here(facts)
    return "<dl>" + "".join(f"<dt>{term}</dt><dd>{markup.text(said)}</dd>" for term, said in rows) + "</dl>"


def _elsewhere(facts: "RemoteFacts") -> list[tuple[str, str]]:
    known = f" ({facts.server})" if facts.server != "other" else ""
    return [
        ("Model", facts.model),
        ("Engine", f"{facts.url}{known}"),
        ("Tokenizer", facts.tokenizer),
        ("Pages of an answer", "not available from this engine"),
        ("Accepted drafts", "not available from this engine"),
        ("Reads at most", f"{facts.context:,} tokens"),
    ]


def _here(facts: "EngineFacts") -> list[tuple[str, str]]:
    return [
        ("Model", facts.model),
        ("Architecture", f"{facts.architecture}, {_millions(facts.parameters)} parameters"),
        ("Draft model", facts.draft_model or "none: it drafts from the documents' own words"),
        ("Runs on", f"{facts.device}, {facts.dtype}, {markup.amount(facts.threads, 'thread')}"),
        ("Reads at most", f"{facts.context:,} tokens (trained for {facts.trained_context:,})"),
    ]


def _plan(placed: "Placed | None") -> str:
    """What lies where, with predictions and the choices beside, in a part that opens; nothing where nothing was planned
    here."""
    if placed is None:
        return ""
    chosen = placed.chosen
    there = "In main memory" if chosen.mode == "cpu" else "On the card"
    tables = _table(there, on_device(chosen))
    if chosen.streamed.total:
        tables += _table(beside(chosen), streamed(chosen))
    sentences = (
        f"{_begun(place(chosen))}.",
        speed(chosen),
        f"Next better: {neighbour(placed.better)}",
        f"Next worse: {neighbour(placed.worse)}",
    )
    first, *rest = (f"<p>{markup.text(sentence)}</p>" for sentence in sentences)
    return f'<details class="plan"><summary>Where it runs</summary><div>{first}{tables}{"".join(rest)}</div></details>'


def _table(caption: str, parts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f'<tr><th scope="row">{markup.text(words)}</th><td>{size}</td></tr>' for words, size in parts)
    return f"<table><caption>{caption}</caption>{rows}</table>"


def _begun(words: str) -> str:
    return words[:1].upper() + words[1:]


def _millions(number: int) -> str:
    return f"{number / 1e9:.1f} billion" if number >= 1e9 else f"{number / 1e6:.0f} million"
