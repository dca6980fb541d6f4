"""Chromium on the page, with every request it makes written down."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_CUT_STREAM = ("AbortError: signal is aborted", "Unexpected error Connection errored out")


@contextlib.contextmanager
def chromium(patience: int = 30_000) -> Iterator[Browser]:
    """A headless Chromium of this machine; what a test expects of it may take `patience` milliseconds.

    Skips the test where there is none.
    """
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("no Chromium on this machine")
    is_root = sys.platform != "win32" and os.geteuid() == 0
    with sync_playwright() as playwright:
        arguments = [*_QUIET, *(["--no-sandbox"] if is_root else [])]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        expect.set_options(timeout=patience)
        yield browser
        expect.set_options(timeout=None)
        browser.close()


@dataclass
class Visit:
    """An open page, what it asked for, and what it complained of."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    forgiven: tuple[str, ...] = ()

    def reload(self) -> None:
        """Load the page anew. Gradio's front end complains of the streams this cuts; that is forgiven from here on."""
        self.forgiven = _CUT_STREAM
        self.page.reload()
        self.wait()

    def wait(self) -> None:
        """Wait until the page shows the server's state."""
        self.page.locator("#announcement [role=status]").wait_for(state="attached")

    def complain(self, words: str) -> None:
        if not words.startswith(self.forgiven):
            self.complaints.append(words)

    def check(self) -> None:
        """Fails the test where a request left loopback or a script complained."""
        elsewhere = [url for url in self.requests if not _is_local(url)]
        assert not elsewhere, elsewhere
        assert not self.complaints, self.complaints


@contextlib.contextmanager
def visiting(browser: Browser, address: str, **context: object) -> Iterator[Visit]:
    """The page at `address`, ready for use; checked when it is left."""
    page = browser.new_page(**{"viewport": {"width": 1280, "height": 800}, **context})  # type: ignore[arg-type]
    visit = Visit(page)
    page.on("request", lambda request: visit.requests.append(request.url))
    page.on("pageerror", lambda error: visit.complain(str(error)))
    page.on(
        "console",
        lambda message: visit.complain(message.text) if message.type == "error" else None,
    )
    try:
        page.goto(address)
        visit.wait()
        yield visit
        visit.check()
    finally:
        page.close()


def _is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "about") or parts.hostname in ("127.0.0.1", "localhost", "::1")
