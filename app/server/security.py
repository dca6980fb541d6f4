"""Who may talk to the server, and what a page of ours may do in the browser.

A server on loopback is reached by every web page the person has open. So a request must name us as its host
(a rebound DNS name does not), must not come from another site's page, must carry the key if there is one, and
reaches only those of Gradio's many routes that our page uses.
"""

import hashlib
import hmac
import ipaddress
import re
import socket
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.server.plain import sign_in

_PUBLIC = frozenset({"/health", "/page.css"})  # the style sheet dresses the sign-in form
_COOKIE = "fullread_key"
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_GRADIO_ROUTES = re.compile(
    r"/|/config|/theme\.css|/favicon\.ico|/(assets|static|svelte)/.*"
    r"|/gradio_api/(queue/(join|data)|heartbeat/\w+|startup-events|cancel|reset|app_id)/?"
)
_OUR_ROUTES = frozenset({"/health", "/page.css", "/page.js", "/api/documents", "/sign-in"})

# Gradio's own page has inline scripts and styles, and makes functions of template text; nothing is fetched
# from elsewhere, framed, or sent elsewhere.
_CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; media-src 'self' blob:; connect-src 'self'; "
    "worker-src 'self' blob:; object-src 'none'; frame-src 'none'; frame-ancestors 'none'; base-uri 'self'; "
    "form-action 'self'"
)
_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True, slots=True)
class Policy:
    """What `Guard` asks of a request. `host` is the address that is listened on."""

    host: str = "127.0.0.1"
    api_key: str | None = field(default=None, repr=False)

    def allows_host(self, header: str) -> bool:
        """Whether a Host header names this server.

        It does by a loopback name, by the host listened on, and, where every address is listened on, by an
        address in digits or this machine's own name: by no name that someone's DNS could point here.
        """
        name = host_name(header)
        if name is None:
            return False
        if name in _LOOPBACK_NAMES or name == self.host.lower().strip("[]"):
            return True
        return self._listens_everywhere and (_is_address(name) or name in _own_names())

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page of `origin` may send requests to `host`: only a page of ours."""
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()

    def accepts(self, key: str) -> bool:
        return self.api_key is None or hmac.compare_digest(key.encode(), self.api_key.encode())

    @property
    def cookie(self) -> str:
        """What a signed-in browser keeps: proof of the key, not the key."""
        return hmac.new((self.api_key or "").encode(), b"fullread page", hashlib.sha256).hexdigest()

    @property
    def _listens_everywhere(self) -> bool:
        return self.host.strip("[]") in ("0.0.0.0", "::", "")


def host_name(header: str) -> str | None:
    """The lower-case name or address in a Host header, without port and brackets; None if it is malformed."""
    matched = re.fullmatch(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{1,5})?", header)
    return (matched["six"] or matched["name"]).lower() if matched else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _own_names() -> frozenset[str]:
    name = socket.gethostname().lower()
    return frozenset({name, f"{name}.local"})


class Guard:
    """ASGI middleware: answers itself when a request may not pass; adds headers to every answer."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = await self._refusal(scope, receive) if scope["type"] == "http" else Response(status_code=404)
        await (refusal or self._app)(scope, receive, _with_headers(send))

    async def _refusal(self, scope: Scope, receive: Receive) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if not self._policy.allows_host(host):
            return _error(403, "This server does not answer under that name.", "forbidden_host")
        origin = headers.get("origin")
        if origin is not None and not self._policy.allows_origin(origin, host):
            return _error(403, "Pages of other sites may not use this server.", "forbidden_origin")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not _is_visit(scope, headers):
            return _error(403, "Pages of other sites may not use this server.", "forbidden_origin")
        if path not in _PUBLIC and not self._is_known(headers):
            return await self._ask_for_key(scope, receive, headers)
        if path not in _OUR_ROUTES and not _GRADIO_ROUTES.fullmatch(path):
            return _error(404, "There is nothing here.", "not_found")
        return None

    def _is_known(self, headers: Headers) -> bool:
        if self._policy.api_key is None:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._policy.accepts(key.strip()):
            return True
        return hmac.compare_digest(_cookie(headers), self._policy.cookie)

    async def _ask_for_key(self, scope: Scope, receive: Receive, headers: Headers) -> Response:
        """Let a browser in that brings the key (from the form, or in the address); ask any other for it."""
        given = None
        if scope["path"] == "/sign-in" and scope["method"] == "POST":
            given = _field(await _body(receive), "key")
        elif scope["path"] == "/" and scope["method"] == "GET":
            given = _field(scope["query_string"], "key")
        if given is not None and self._policy.accepts(given):
            response = RedirectResponse("/", status_code=303)
            response.set_cookie(_COOKIE, self._policy.cookie, httponly=True, samesite="strict")
            return response
        if "text/html" in headers.get("accept", ""):
            return HTMLResponse(sign_in(was_wrong=given is not None), status_code=401)
        refusal = _error(401, "A key is needed: send it as “Authorization: Bearer …”.", "authentication_error")
        refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal


def _is_visit(scope: Scope, headers: Headers) -> bool:
    """Whether a person followed a link to the page itself: all that another site may start."""
    is_navigation = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return bool(scope["method"] == "GET" and scope["path"] == "/" and is_navigation)


def _cookie(headers: Headers) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


async def _body(receive: Receive, limit: int = 4096) -> bytes:
    body = b""
    while len(body) <= limit:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return body[:limit]


def _field(form: bytes, name: str) -> str | None:
    return next(iter(parse_qs(form.decode("utf-8", "replace")).get(name, [])), None)


def _error(code: int, message: str, kind: str) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message, "type": kind}}, status_code=code)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
        await send(message)

    return sending
