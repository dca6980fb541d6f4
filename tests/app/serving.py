"""An application served for real: uvicorn on a free port of loopback, in a thread."""

import contextlib
import dataclasses
import gc
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from app.server.application import build
from app.settings import Settings


@contextlib.contextmanager
def serving(assistant: Any, folder: Path, **settings: Any) -> Iterator[str]:
    """The address of the application over `assistant`, without a slash at its end."""
    with _gradio_excused():
        app = build(assistant, dataclasses.replace(Settings(data_dir=folder), **settings))
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive(), "the server did not end"


@contextlib.contextmanager
def _gradio_excused() -> Iterator[None]:
    """Gradio makes event loops while it is imported and never closes them: collected here, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield
        finally:
            gc.collect()


def wait_for(claim: Any, seconds: float = 20.0) -> None:
    """Wait until `claim()` holds; fails the test when it does not in time."""
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)
