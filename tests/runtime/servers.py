"""A small server with an OpenAI-compatible endpoint, over a real socket: vLLM's protocol, or text alone."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from runtime.tokenizer import Tokenizer


@dataclass
class Script:
    """What the server is and does; `bodies` and `keys` are what it was sent.

    `answer` are the ids of each answer. `pause` is waited on behind each token, `breaks_at` ends the connection there,
    `gone` is set once a client has closed the connection in the middle of an answer.
    """

    tokenizer: Tokenizer
    answer: list[int]
    owner: str = "vllm"
    models: tuple[str, ...] = ("served",)
    context: int | None = 4096
    takes_ids: bool = True
    says_usage: bool = True
    shift: int = 0  # added to each id that /tokenize gives
    key: str | None = None
    pause: threading.Event = field(default_factory=threading.Event)
    breaks_at: int | None = None
    error: str | None = None
    gone: threading.Event = field(default_factory=threading.Event)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pause.set()

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The bodies of streamed requests."""
        return [body for body in self.bodies if body.get("stream")]


@contextlib.contextmanager
def serving(script: Script) -> Iterator[str]:
    """The address of the server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: _Handler(script, *args))  # type: ignore[arg-type]
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        script.pause.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, script: Script, *args: Any) -> None:
        self.script = script
        super().__init__(*args)

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        script = self.script
        if not self._is_let_in():
            return
        if self.path != "/v1/models":
            self._say(404, {"detail": "Not Found"})
            return
        said = {} if script.context is None else {"max_model_len": script.context}
        entries = [{"id": name, "object": "model", "owned_by": script.owner, **said} for name in script.models]
        self._say(200, {"object": "list", "data": entries})

    def do_POST(self) -> None:
        script = self.script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._is_let_in():
            return
        if self.path in ("/tokenize", "/extras/tokenize"):
            text = next(body[name] for name in ("prompt", "content", "input") if name in body)
            ids = [token + script.shift for token in script.tokenizer.encode(text)]
            self._say(200, {"tokens": ids})
            return
        if self.path != "/v1/completions":
            self._say(404, {"detail": "Not Found"})
            return
        script.bodies.append(body)
        if not script.takes_ids and not isinstance(body["prompt"], str):
            self._say(422, {"detail": "a string is wanted"})
        elif script.error is not None and body.get("stream"):
            self._say(400, {"error": {"message": script.error, "type": "invalid_request_error"}})
        elif not body.get("stream"):
            self._say(200, {"choices": [{"text": "x"}], "usage": {"prompt_tokens": len(body["prompt"])}})
        else:
            with contextlib.suppress(OSError):
                self._stream(body)
                return
            script.gone.set()

    def _stream(self, body: dict[str, Any]) -> None:
        script = self.script
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b": a comment\n\n")
        for at, token in enumerate(script.answer):
            if at == script.breaks_at:
                self.close_connection = True
                return
            choice: dict[str, Any] = {"text": script.tokenizer.decode([token]), "finish_reason": None}
            if body.get("return_token_ids"):
                choice["token_ids"] = [token]
            self._send({"choices": [choice]})
            if not script.pause.is_set():
                self.connection.settimeout(20)
                if self.connection.recv(1) == b"":
                    raise ConnectionError
        self._send({"choices": [{"text": "", "finish_reason": "stop"}]})
        if script.says_usage:
            n_prompt = len(body["prompt"])
            details = {"cached_tokens": n_prompt - 3}
            usage = {"prompt_tokens": n_prompt, "completion_tokens": len(script.answer)}
            self._send({"choices": [], "usage": usage | {"prompt_tokens_details": details}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, data: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def _say(self, status: int, data: dict[str, Any]) -> None:
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _is_let_in(self) -> bool:
        key, given = self.script.key, self.headers["Authorization"]
        if key is None or given == f"Bearer {key}":
            return True
        self._say(401, {"detail": f"Invalid key: {given}"})
        return False
