"""The left side of the page: the documents, how much of the context they take, and the chats. Pure."""

from app.assistant import Meter
from app.library import Entry
from app.problems import Problem
from app.ui import markup
from app.ui.desk import Chat, View
from app.ui.intake import Tray

_LONGEST_TITLE = 60


def shelf(entries: tuple[Entry, ...], tray: Tray) -> str:
    """One row per document, then those whose reading has not begun."""
    refusals = dict(tray.refusals)
    rows = [_row(entry, refusals.get(entry.id), entry.id in tray.locked) for entry in entries]
    rows += [
        f'<li class="document" data-status="failed"><div class="document-head">'
        f'<span class="document-name">{markup.name(name)}</span></div>{_problem(problem)}</li>'
        for name, problem in tray.lost
    ]
    rows += [
        f'<li class="document" data-status="waiting"><div class="document-head">'
        f'<span class="document-name">{markup.name(name)}</span></div>'
        '<p class="particulars">Waiting to be read…</p></li>'
        for name in tray.waiting
    ]
    return f'<ul class="documents" aria-label="Documents">{"".join(rows)}</ul>' if rows else ""


def _row(entry: Entry, refusal: Problem | None, is_locked: bool) -> str:
    spoken = markup.text(entry.name)
    parts = [
        f'<div class="document-head">{_box(entry)}{_title(entry)}'
        f'<button type="button" class="remove" data-act="remove" data-entry="{entry.id}" '
        f'aria-label="Remove {spoken}" title="Remove">×</button></div>'
    ]
    match entry.status:
        case "reading":
            parts.append('<p class="particulars"><span class="pulse" aria-hidden="true"></span>Reading…</p>')
        case "failed":
            parts += [_problem(entry.problem), _password(entry) if is_locked else ""]
        case "ready":
            parts += [_particulars(entry), _pages(entry, refusal)]
            parts += [f'<p class="warning">{markup.text(warning)}</p>' for warning in entry.warnings]
            parts += [_problem(refusal)]
    return f'<li class="document" data-status="{entry.status}">{"".join(parts)}</li>'


def _box(entry: Entry) -> str:
    if entry.status != "ready":
        return ""
    checked = " checked" if entry.checked else ""
    return (
        f'<input type="checkbox" data-change="check" data-entry="{entry.id}"{checked} '
        f'aria-label="Ask about {markup.text(entry.name)}">'
    )


def _title(entry: Entry) -> str:
    if entry.document is None or not entry.document.pages:
        return f'<span class="document-name" title="{markup.text(entry.name)}">{markup.name(entry.name)}</span>'
    return (
        f'<button type="button" class="document-name" data-act="read" data-entry="{entry.id}" '
        f'title="Read {markup.text(entry.name)}">{markup.name(entry.name)}</button>'
    )


def _particulars(entry: Entry) -> str:
    noun = "file" if entry.document is not None and entry.document.kind == "tree" else "page"
    pages = markup.amount(entry.n_pages, noun)
    if entry.selected is not None:
        pages = f"{len(entry.positions):,} of {pages}"
    return f'<p class="particulars">{pages} · {markup.amount(entry.n_tokens, "token")}</p>'


def _pages(entry: Entry, refusal: Problem | None) -> str:
    if entry.n_pages < 2:
        return ""
    chosen = "" if entry.selected is None else ranges(entry.selected)
    invalid = ' aria-invalid="true"' if refusal else ""
    noun = "Files" if entry.document is not None and entry.document.kind == "tree" else "Pages"
    return (
        f'<label class="pages"><span>{noun}</span><input type="text" inputmode="text" autocomplete="off" '
        f'spellcheck="false" data-change="select" data-entry="{entry.id}" value="{chosen}"{invalid} '
        f'placeholder="all, or 1-{min(entry.n_pages, 12)}" '
        f'aria-label="{noun} of {markup.text(entry.name)} to use, for example 1-12; empty for all"></label>'
    )


def ranges(pages: tuple[int, ...]) -> str:
    """Page indices as a person writes them: (1, 2, 3, 7) is "1-3, 7"."""
    runs: list[list[int]] = []
    for page in sorted(pages):
        if runs and page == runs[-1][1] + 1:
            runs[-1][1] = page
        else:
            runs.append([page, page])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _password(entry: Entry) -> str:
    return (
        f'<label class="pages"><span>Password</span><input type="password" autocomplete="off" '
        f'data-change="unlock" data-entry="{entry.id}" '
        f'aria-label="Password of {markup.text(entry.name)}, then press Enter"></label>'
    )


def _problem(problem: Problem | None) -> str:
    if problem is None:
        return ""
    return f'<p class="warning" role="alert">{markup.text(str(problem))}</p>'


def meter(used: Meter) -> str:
    """How much of what the model can read the documents take; over the limit, also what to do."""
    share = min(100.0, 100 * used.used / used.limit) if used.limit else 100.0
    numbers = f"{used.used:,} of {used.limit:,} tokens"
    advice = ""
    if used.over:
        advice = (
            f'<p class="advice" role="alert">{used.used - used.limit:,} tokens too many. Nothing is cut: '
            "choose fewer pages or untick a document to ask again.</p>"
        )
    return (
        f'<div class="meter" data-over="{str(used.over).lower()}">'
        f"{markup.bar(share, 'Tokens of the chosen documents', role='meter', words=numbers)}"
        f'<p class="meter-numbers">{numbers}</p>{advice}</div>'
    )


def chats(view: View) -> str:
    """The chats that hold a question, newest first; none while there is only the one on show."""
    others = [chat for chat in reversed(view.chats) if chat.exchanges]
    if not others or (len(others) == 1 and others[0].id == view.chat.id):
        return ""
    rows = "".join(_chat(chat, chat.id == view.chat.id) for chat in others)
    return f'<h2 class="heading">Chats</h2><ul class="chats">{rows}</ul>'


def _chat(chat: Chat, is_open: bool) -> str:
    line = " ".join(chat.title.split())
    title = line if len(line) <= _LONGEST_TITLE else f"{line[: _LONGEST_TITLE - 1]}…"
    current = ' aria-current="true"' if is_open else ""
    return (
        f'<li><button type="button" class="chat" data-act="chat" data-chat="{chat.id}" dir="auto"{current}>'
        f"{markup.text(title)}</button></li>"
    )
