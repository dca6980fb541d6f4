"""The pages that need no Gradio: signing in, and what is shown while the model loads or when it could not."""

from app.problems import Problem
from app.ui import markup
from runtime.events import Progress

_STAGES = {"download": "Fetching the model", "load": "Loading the model", "prefill": "Getting ready"}

_SHELL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">{head}<title>Fullread</title>
<link rel="stylesheet" href="page.css"></head>
<body class="plain-page"><main><p class="wordmark">Fullread</p>{body}</main></body></html>"""


def sign_in(was_wrong: bool) -> str:
    """The form that asks for the key."""
    wrong = '<p class="problem" role="alert">That is not the key. Look where Fullread was started.</p>'
    return _page(
        f'{wrong if was_wrong else ""}<form method="post" action="sign-in">'
        '<label for="key">Key</label><input id="key" name="key" type="password" required autofocus '
        'autocomplete="current-password"><button type="submit">Sign in</button></form>'
    )


def loading(progress: Progress | None) -> str:
    """How far fetching and loading the model has come; the page asks again every second."""
    stage = _STAGES[progress.stage] if progress else "Starting"
    share = min(100, 100 * progress.done // progress.total) if progress and progress.total else 0
    return _page(
        f'<p role="status">{stage}…</p>{markup.bar(share, stage)}<p class="particulars">{_particulars(progress)}</p>',
        '<meta http-equiv="refresh" content="1">',
    )


def failed(problem: Problem) -> str:
    """Why there is no model, and what to do."""
    return _page(
        f'<div class="problem" role="alert"><p>{markup.text(problem.sentence)}</p>'
        f'<p class="way-out">{markup.text(problem.way_out)}</p></div>'
        '<p class="particulars">Then start Fullread again.</p>'
    )


def _particulars(progress: Progress | None) -> str:
    if progress is None or not progress.total:
        return "This page opens by itself as soon as the model is there."
    if progress.stage != "download":
        return f"{progress.done:,} of {progress.total:,}"
    said = f"{progress.done / 1e6:,.1f} of {progress.total / 1e6:,.1f} MB"
    if progress.seconds_left is not None:
        said += f" · {progress.seconds_left:,.0f} s left"
    return said


def _page(body: str, head: str = "") -> str:
    return _SHELL.format(head=head, body=body)
