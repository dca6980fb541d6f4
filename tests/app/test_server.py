"""The server over real HTTP: who may talk to it, what it tells, what it takes in."""

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.app.scripted import ScriptedAssistant
from tests.app.serving import serving, wait_for

KEY = "correct horse battery"


@pytest.fixture(scope="module")
def assistant() -> ScriptedAssistant:
    return ScriptedAssistant()


@pytest.fixture(scope="module")
def address(assistant: ScriptedAssistant, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(assistant, tmp_path_factory.mktemp("data")) as place:
        yield place


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(ScriptedAssistant(), tmp_path_factory.mktemp("data"), api_key=KEY) as place:
        yield place


ROUTES = [
    ("GET", "/"),
    ("GET", "/config"),
    ("GET", "/health"),
    ("GET", "/page.js"),
    ("GET", "/theme.css"),
    ("POST", "/api/documents"),
    ("POST", "/gradio_api/queue/join"),
    ("GET", "/gradio_api/queue/data?session_hash=a"),
]


def test_health_tells_model_and_mode(address: str) -> None:
    """Whoever watches over the server learns that it answers, and with what."""
    answer = httpx.get(f"{address}/health")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "model": "starter", "mode": "cpu"}


def test_page_is_served_with_a_policy_that_keeps_it_at_home(address: str) -> None:
    """The browser is told to fetch nothing from elsewhere, whatever an answer holds."""
    answer = httpx.get(f"{address}/")
    assert answer.status_code == 200
    rules = dict(rule.strip().split(" ", 1) for rule in answer.headers["content-security-policy"].split(";"))
    assert rules["default-src"] == "'self'"
    assert rules["connect-src"] == "'self'"
    assert rules["img-src"] == "'self' data: blob:"
    assert rules["frame-ancestors"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_another_host_name_is_refused(address: str, method: str, path: str) -> None:
    """A DNS name that someone pointed at this machine opens no door."""
    answer = httpx.request(method, f"{address}{path}", headers={"Host": "evil.example"})
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "forbidden_host"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:1", "[::1]:80"])
def test_loopback_names_are_answered(address: str, host: str) -> None:
    assert httpx.get(f"{address}/health", headers={"Host": host}).status_code == 200


def test_a_request_without_host_is_refused(address: str) -> None:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.putrequest("GET", "/health", skip_host=True)
    connection.putheader("Host", "")
    connection.endheaders()
    assert connection.getresponse().status in (400, 403)
    connection.close()


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_pages_of_other_sites_are_refused(address: str, method: str, path: str, origin: str) -> None:
    """No site the person visits can use the server, and no answer allows it to read one."""
    answer = httpx.request(method, f"{address}{path}", headers={"Origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_own_page_may_post(address: str) -> None:
    """The page's own origin passes; an upload without a file is refused for what it is."""
    answer = httpx.post(f"{address}/api/documents", headers={"Origin": address}, files={"other": b""})
    assert answer.status_code == 400


def test_another_site_may_only_link_to_the_page(address: str) -> None:
    """A link from elsewhere opens the page; an image or a script from elsewhere gets nothing."""
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert httpx.get(f"{address}/", headers=visit).status_code == 200
    embedded = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    assert httpx.get(f"{address}/", headers=embedded).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/file=/etc/passwd",
        "/gradio_api/file=http://169.254.169.254/",
        "/gradio_api/proxy=http://169.254.169.254/",
        "/gradio_api/upload",
        "/gradio_api/info",
        "/gradio_api/runs",
        "/gradio_api/component_server",
        "/gradio_api/call/ask",
        "/gradio_api/run/predict",
        "/monitoring",
        "/docs",
        "/openapi.json",
        "/static/../../../../etc/passwd",
        "/assets/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    ],
)
def test_routes_the_page_does_not_use_are_not_there(address: str, path: str) -> None:
    """Gradio brings ways to read files, to fetch addresses and to run functions; none is open."""
    parts = urlsplit(address)
    for method in ("GET", "POST"):
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        connection.request(method, path)  # as written: a client library would tidy the path
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status in (403, 404, 405)
        assert b"root:" not in body


def test_documents_are_taken_in(address: str, assistant: ScriptedAssistant) -> None:
    """Each file is a document; files that share a folder are one."""
    parts = [
        ("files", ("notes.txt", b"one two three")),
        ("files", ("code/a.py", b"print(1)\n")),
        ("files", ("code/sub/b.py", b"print(2)\n")),
        ("files", ("notes.txt", b"another of that name")),
    ]
    answer = httpx.post(f"{address}/api/documents", files=parts)
    assert answer.json() == {"documents": 3}
    wait_for(lambda: len([entry for entry in assistant.entries() if entry.status == "ready"]) == 3)
    names = sorted(entry.name for entry in assistant.entries())
    assert names == ["code", "notes.txt", "notes.txt"]
    folder = next(entry for entry in assistant.entries() if entry.name == "code")
    assert [page.label for page in folder.pages] == ["a.py", "sub/b.py"]


@pytest.mark.parametrize("path", ["../../outside.txt", "/etc/outside.txt", "a/../../outside.txt", "C:/outside.txt"])
def test_an_upload_cannot_leave_its_folder(address: str, path: str, tmp_path: Path) -> None:
    """A path that climbs out, or is absolute, is not taken."""
    answer = httpx.post(f"{address}/api/documents", files=[("files", (path, b"x"))])
    assert answer.status_code == 400
    assert "traceback" not in answer.text.lower()


def test_too_large_an_upload_is_refused_before_it_is_read(address: str) -> None:
    """The declared size decides, with both numbers in the answer."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.putrequest("POST", "/api/documents")
    connection.putheader("Content-Type", "multipart/form-data; boundary=x")
    connection.putheader("Content-Length", str(10**12))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413
    assert b"1,000.0 GB" in answer.read()
    connection.close()


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route[1] != "/health"])
def test_without_the_key_nothing_is_told(locked: str, method: str, path: str) -> None:
    answer = httpx.request(method, f"{locked}{path}")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["type"] == "authentication_error"


def test_health_needs_no_key(locked: str) -> None:
    assert httpx.get(f"{locked}/health").status_code == 200


def test_the_key_opens_the_server_to_a_program(locked: str) -> None:
    assert httpx.get(f"{locked}/config", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
    assert httpx.get(f"{locked}/config", headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_a_browser_signs_in_once(locked: str) -> None:
    """The form takes the key and leaves a cookie that proves it without holding it."""
    with httpx.Client(base_url=locked, headers={"Accept": "text/html"}) as browser:
        form = browser.get("/")
        assert form.status_code == 401
        assert 'name="key"' in form.text
        refused = browser.post("/sign-in", data={"key": "wrong"})
        assert refused.status_code == 401
        assert "not the key" in refused.text
        accepted = browser.post("/sign-in", data={"key": KEY})
        assert (accepted.status_code, accepted.headers["location"]) == (303, "/")
        cookie = accepted.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert KEY not in cookie
        assert browser.get("/").status_code == 200


def test_a_key_in_the_address_is_taken_out_of_it(locked: str) -> None:
    """A link with the key signs in, and the key does not stay in the address line."""
    with httpx.Client(base_url=locked) as browser:
        answer = browser.get("/", params={"key": KEY})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert browser.get("/config").status_code == 200
