"""Models from a hub: a real HTTP server on this machine stands in for it, the library is the real one."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from runtime.errors import DiskFull, DownloadFailed, ModelNotFound
from runtime.events import Progress
from runtime.models import hub
from runtime.models.sources import locate

COMMIT = "c" * 40
WEIGHTS = b"\7" * 300_000
FILES = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "consolidated.safetensors": b"the same weights once more",
    "pytorch_model.bin": b"the same weights once more",
    "original/params.json": b"{}",
}
WANTED = {"config.json", "model.safetensors", "tokenizer.json"}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's HTTP interface as a download needs."""

    asked: ClassVar[list[str]]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        if "/org/gated" in path:
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif path.startswith("/api/models/org/tiny/tree/"):
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in FILES.items()
            ]
            self.answer(200, json.dumps(listed).encode())
        elif path.startswith("/api/models/org/tiny"):
            siblings = [{"rfilename": name} for name in FILES]
            self.answer(200, json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith(f"/org/tiny/resolve/{COMMIT}/"):
            data = FILES[path.removeprefix(f"/org/tiny/resolve/{COMMIT}/")]
            etag = hashlib.sha1(data).hexdigest()
            self.answer(200, data, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'})
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """A hub that is up; the paths it was asked for."""

    class Handler(Hub):
        asked: ClassVar[list[str]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    use_hub(monkeypatch, tmp_path, f"http://127.0.0.1:{server.server_port}")
    yield Handler.asked
    server.shutdown()
    thread.join()
    server.server_close()


def use_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str) -> None:
    """Point the library at `address`, away from this machine's own cache and log-in."""
    for name, value in {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))


def prepare(cache: Path, files: dict[str, bytes]) -> Path:
    """A snapshot of org/tiny as the library lays it out."""
    storage = cache / "models--org--tiny"
    snapshot = storage / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (storage / "refs").mkdir()
    (storage / "refs" / "main").write_text(COMMIT)
    for name, data in files.items():
        (snapshot / name).write_bytes(data)
    return snapshot


def test_a_download_takes_what_a_model_needs_and_reports_bytes(asked: list[str], tmp_path: Path) -> None:
    """Not the same weights in other layouts. The second time nothing is asked."""
    events: list[Progress] = []
    source = locate("org/tiny", tmp_path / "cache", True, events.append)
    assert source.kind == "hub"
    assert {path.name for path in source.path.iterdir()} == WANTED
    assert (source.path / "model.safetensors").read_bytes() == WEIGHTS
    n_bytes = sum(len(FILES[name]) for name in WANTED)
    assert (events[0].done, events[-1].done, events[-1].total) == (0, n_bytes, n_bytes)

    asked.clear()
    assert locate("org/tiny", tmp_path / "cache", False, events.append) == source
    assert asked == []


def test_a_snapshot_of_another_program_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library's own cache has the model, nothing is downloaded again."""
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "theirs"))
    snapshot = prepare(tmp_path / "theirs", {name: FILES[name] for name in WANTED})
    assert locate("org/tiny", tmp_path / "ours", False, lambda _: None).path == snapshot


@pytest.mark.parametrize("absent", sorted(WANTED))
def test_half_a_snapshot_is_not_taken_for_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    """An interrupted download leaves a snapshot folder with some of the files."""
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "theirs"))
    prepare(tmp_path / "ours" / "models" / "hub", {name: FILES[name] for name in WANTED - {absent}})
    with pytest.raises(ModelNotFound, match="it is not on this machine"):
        locate("org/tiny", tmp_path / "ours", False, lambda _: None)


def test_half_a_snapshot_is_completed(asked: list[str], tmp_path: Path) -> None:
    """By a download of what is missing."""
    prepare(tmp_path / "models" / "hub", {"config.json": b"{}", "tokenizer.json": b"{}"})
    source = locate("org/tiny", tmp_path, True, lambda _: None)
    assert (source.path / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("org/unheard-of", "the hub has no such model, or it is private"),
        ("org/gated", "its authors ask for a licence to be accepted on the hub, then hf auth login"),
    ],
)
def test_a_model_the_hub_does_not_give(asked: list[str], tmp_path: Path, model: str, reason: str) -> None:
    """With the reason it gives."""
    with pytest.raises(ModelNotFound) as caught:
        locate(model, tmp_path, True, lambda _: None)
    assert (caught.value.source, caught.value.reason) == (model, reason)


def test_no_network_is_a_failed_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the hub is an address where nothing listens."""
    use_hub(monkeypatch, tmp_path, "http://127.0.0.1:9")
    with pytest.raises(DownloadFailed, match="the hub cannot be reached"):
        locate("org/tiny", tmp_path, True, lambda _: None)


def test_too_little_space_is_refused_before_the_download(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both numbers; no file was asked for."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(DiskFull) as caught:
        locate("org/tiny", tmp_path, True, lambda _: None)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (300_004, 1000)


@pytest.mark.parametrize("name", ["org", "org/", "/name", "org/a/b", "org/a b", "org/a--b", "org/a..b", "ör/name"])
def test_a_hub_id_has_one_form(name: str) -> None:
    """org/name, of the characters the hub allows."""
    assert not hub.is_name(name)
    assert hub.is_name("Qwen/Qwen3-0.6B_x.y")
