"""HTTP to one server: JSON there and back, and a stream of JSON that can be cut off at any moment.

The standard library's client: it follows no redirect and knows no proxy, so nothing but the named address is contacted.
"""

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from runtime.errors import ServerKeyRefused, ServerLost, ServerRefused, ServerUnreachable
from runtime.remote.config import Address

CONNECT_SECONDS = 10.0
SHORT_SECONDS = 120.0  # for what is answered at once, but for a server that is busy with another answer
SILENT_SECONDS = 1800.0  # a long prompt is read without a word
_POLL_SECONDS = 0.05
_LONGEST_REASON = 300  # characters


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server said: `data` is its JSON, or None where it is none."""

    status: int
    data: Any
    text: str


class Connection:
    """Requests to the server at `address`."""

    def __init__(self, address: Address, key: str | None) -> None:
        self.address, self._key = address, key

    def get(self, path: str) -> Reply:
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, object]) -> Reply:
        return self._ask("POST", path, body)

    def stream(self, path: str, body: dict[str, object], cancel: threading.Event) -> "Stream":
        """The events of a streamed answer; setting `cancel` closes the connection, upon which the server stops."""
        return Stream(self, path, body, cancel)

    def refused(self, status: int, text: str) -> ServerRefused | ServerKeyRefused:
        """The error for an answer with `status`."""
        if status in (401, 403):
            return ServerKeyRefused(str(self.address), self._key is not None)
        return ServerRefused(str(self.address), status, self.harmless(_message(text)))

    def harmless(self, reason: str) -> str:
        """The reason, cut short and without the key, which a server may repeat."""
        reason = reason.replace(self._key, "(key)") if self._key else reason
        return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"

    def open(self, method: str, path: str, body: dict[str, object] | None) -> http.client.HTTPConnection:
        """A connection on which the request has been sent. Raises `ServerUnreachable`."""
        address = self.address
        kind = http.client.HTTPSConnection if address.is_encrypted else http.client.HTTPConnection
        connection = kind(address.host, address.port, timeout=CONNECT_SECONDS)
        headers = {"Accept": "application/json, text/event-stream", "Connection": "close"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        content = None
        if body is not None:
            content, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        try:
            connection.connect()
            connection.request(method, f"{address.prefix}{path}", content, headers)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ServerUnreachable(str(address), _why(error)) from error
        return connection

    def _ask(self, method: str, path: str, body: dict[str, object] | None) -> Reply:
        connection = self.open(method, path, body)
        try:
            connection.sock.settimeout(SHORT_SECONDS)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise ServerUnreachable(str(self.address), _why(error)) from error
        finally:
            connection.close()
        try:
            return Reply(response.status, json.loads(text), text)
        except ValueError:
            return Reply(response.status, None, text)


class Stream:
    """The JSON objects of a server-sent stream. A context manager: leaving it closes the connection.

    Iterating raises `ServerRefused`, `ServerKeyRefused` before the first object, `ServerLost` when the connection
    breaks before the server has said that it is done; once `cancel` is set it just ends.
    """

    def __init__(self, connection: Connection, path: str, body: dict[str, object], cancel: threading.Event) -> None:
        self._owner, self._cancel = connection, cancel
        self._http = connection.open("POST", path, body)
        self._socket: socket.socket = self._http.sock
        self._socket.settimeout(SILENT_SECONDS)
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="fullread-cancel", daemon=True)
        self._watcher.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._watcher.join()
        self._http.close()
        self._socket.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with self._http.getresponse() as response:
                if response.status != 200:
                    raise self._owner.refused(response.status, response.read().decode("utf-8", "replace"))
                for line in response:
                    name, _, value = line.decode("utf-8", "replace").strip().partition(":")
                    if name != "data" or not value.strip():
                        continue  # an empty line, or a comment that keeps the connection alive
                    if value.strip() == "[DONE]":
                        return
                    yield self._object(value)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not self._cancel.is_set():
                raise ServerLost(str(self._owner.address), _why(error)) from error

    def _object(self, text: str) -> dict[str, Any]:
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("object") == "error" or "error" in data:
            raise self._owner.refused(200, text)
        return data

    def _watch(self) -> None:
        """Wake the reader when the answer is cancelled: it may wait for the first byte for minutes."""
        while not self._closed.wait(_POLL_SECONDS):
            if self._cancel.is_set():
                with contextlib.suppress(OSError):  # it is closed already
                    self._socket.shutdown(socket.SHUT_RDWR)
                return


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or "the connection was closed"


def _message(text: str) -> str:
    """The words of an error, in the forms that these servers have for them."""
    try:
        data = json.loads(text)
    except ValueError:
        return text
    if isinstance(data, dict):
        data = data.get("error", data)
    if isinstance(data, dict):
        return str(data.get("message") or data.get("detail") or data)
    return str(data)
