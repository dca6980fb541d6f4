"""The life of the server: port, loading page, model, page, end."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from typing import TypeVar

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from app.assistant import Assistant, open_assistant
from app.problems import explain
from app.server import address, opening
from app.server.opening import Opening
from app.server.security import Policy
from app.settings import Settings
from app.terminal import ProgressLine
from runtime.events import Progress

_CLOSE_SECONDS = 0.3  # what the engine gets to end in; the process goes on without it then
_Value = TypeVar("_Value")
Opener = Callable[[Settings, Callable[[Progress], None]], Assistant]


def serve(settings: Settings, open_browser: bool, opener: Opener = open_assistant) -> int:
    """Serve the page until Ctrl-C. Raises `AddressUnusable` before anything is loaded.

    The address answers at once, first with how far the model is. Without a model there is nothing to serve: a
    browser that was opened is shown why until Ctrl-C, otherwise the server ends; the exit status is then 2.
    """
    listener = address.listen(settings)
    place = address.url(listener)
    print(f"Fullread is at {place} (Ctrl-C ends it).", flush=True)
    if open_browser:
        threading.Thread(target=webbrowser.open, args=(place,), name="browser", daemon=True).start()
    life = Life(settings, opener, ends_without_model=not open_browser)
    with contextlib.closing(listener):
        asyncio.run(life.serve(listener))
    status = 2 if life.opening.problem else 0
    if life.is_still_at_work:
        # A thread inside torch can be neither ended nor left alone while Python takes itself apart: that aborts.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    gc.freeze()  # Python would search all that torch and Gradio made for garbage, for seconds, only to end then
    return status


class Life:
    """One server from its first answer to its last."""

    def __init__(self, settings: Settings, opener: Opener, *, ends_without_model: bool) -> None:
        self.opening = Opening()
        self._settings, self._opener, self._ends_without_model = settings, opener, ends_without_model
        self._line = ProgressLine(sys.stderr)
        self._threads: list[threading.Thread] = []
        self._gate = _Gate(opening.application(self.opening, Policy(settings.host, settings.api_key)))
        self.server = _Server(
            uvicorn.Config(
                self._gate,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                ws="none",
                # Streams to open pages never end by themselves; they are cut as soon as the server is to end.
                timeout_graceful_shutdown=0,
            )
        )

    async def serve(self, listener: socket.socket) -> None:
        """Answer on `listener` until the server is told to end."""
        ended = asyncio.Event()
        page = asyncio.create_task(self._open_page(ended))
        try:
            await self.server.serve(sockets=[listener])
        finally:
            ended.set()
            if not page.done() and self._gate.is_waiting:
                page.cancel()  # the model is still being loaded, by a thread that ends with the process
            with contextlib.suppress(asyncio.CancelledError):
                await page

    @property
    def is_still_at_work(self) -> bool:
        """Whether the model is still being loaded or closed, after `serve`."""
        return any(thread.is_alive() for thread in self._threads)

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        """A thread that does `work` and does not hold up the end of the process."""
        thread = threading.Thread(target=work, name="life", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    async def _open_page(self, ended: asyncio.Event) -> None:
        """Load the model, put the page in the place of the loading page, and keep both until `ended`."""
        from fastapi import FastAPI

        def load() -> tuple[Assistant, FastAPI]:
            from app.server.application import build

            assistant = self._opener(self._settings, self._report)
            return assistant, build(assistant, self._settings)

        try:
            assistant, app = await _result(load, self._start)
        except Exception as error:  # the outermost boundary of loading: the page and the terminal say why
            self._line.clear()
            self.opening.fail(explain(error))
            print(explain(error), file=sys.stderr, flush=True)
            if self._ends_without_model:
                self.server.end()
            return
        self._line.clear()
        async with app.router.lifespan_context(app):
            self._gate.open(app)
            await ended.wait()
        closing = self._start(assistant.close)
        closing.join(_CLOSE_SECONDS)

    def _report(self, progress: Progress) -> None:
        self.opening.report(progress)
        self._line.report(progress)


class _Gate:
    """An ASGI application whose inside is exchanged once."""

    def __init__(self, first: ASGIApp) -> None:
        self._app = first
        self.is_waiting = True

    def open(self, app: ASGIApp) -> None:
        self._app, self.is_waiting = app, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class _Server(uvicorn.Server):
    """Uvicorn that ends on the first Ctrl-C; it does not raise the signal again at its end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, lambda *_: self.end()) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def end(self) -> None:
        """Take no more requests, and leave `serve` within a second or so."""
        # The streams cut now are no errors; a server that is told to end has nothing more to report.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.should_exit = True


async def _result(work: Callable[[], _Value], start: Callable[[Callable[[], None]], object]) -> _Value:
    """The result of `work`, which `start` runs in a thread."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Value] = loop.create_future()

    def finish(set_outcome: Callable[[], None]) -> None:
        def settle() -> None:
            if not done.done():
                set_outcome()

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle)

    def run() -> None:
        try:
            value = work()
        except Exception as error:  # handed over to whoever waits
            failure = error
            finish(lambda: done.set_exception(failure))
        else:
            finish(lambda: done.set_result(value))

    start(run)
    return await done
