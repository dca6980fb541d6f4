"""The life of the server process: port, loading page, model, end."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.errors import AddressUnusable
from app.server import address
from app.settings import Settings
from tests.app.serving import wait_for

ROOT = Path(__file__).parents[2]
LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}

# The server's process with a scripted assistant; `{opener}` is the body of the function that loads the model.
SCRIPT = """
import sys, time
from pathlib import Path
from app.server.run import serve
from app.settings import Settings
from runtime.errors import ModelNotFound
from runtime.events import Progress
from tests.app.scripted import ScriptedAssistant

def opener(settings, progress):
{opener}

sys.exit(serve(Settings(port=0, data_dir=Path(sys.argv[1])), open_browser=False, opener=opener))
"""

can_interrupt = pytest.mark.skipif(sys.platform == "win32", reason="a test cannot send Ctrl-C to one process there")


@contextlib.contextmanager
def process(opener: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its address, as soon as it has said it."""
    code = SCRIPT.format(opener=textwrap.indent(textwrap.dedent(opener), "    "))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
    server = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("Fullread is at http://127.0.0.1:")
        yield server, line.split()[3].rstrip("/")
    finally:
        if server.poll() is None:
            server.kill()
        _, said = server.communicate()
        print(said, server.returncode)  # shown where a test fails, which may be because the process ended


def health(place: str) -> httpx.Response:
    return httpx.get(f"{place}/health", timeout=10)


@can_interrupt
def test_it_answers_while_the_model_loads_and_then_serves(tmp_path: Path) -> None:
    """503 and a page with progress first, 200 and the page then; Ctrl-C in mid-answer ends it cleanly in 2 s."""
    opener = """
    progress(Progress("download", 49_181_216, 98_362_432, 5e6, 9.8))
    wait = Path(sys.argv[1]) / "go"
    while not wait.exists():
        time.sleep(0.02)
    assistant = ScriptedAssistant()
    assistant.gate.clear()
    return assistant
    """
    with process(opener, tmp_path) as (server, place):
        wait_for(lambda: "49.2 of 98.4 MB" in httpx.get(place).text)
        answer = health(place)
        assert (answer.status_code, answer.json()) == (503, LOADING)
        assert httpx.get(place, headers={"Host": "evil.example"}).status_code == 403
        (tmp_path / "go").touch()
        wait_for(lambda: health(place).status_code == 200, seconds=60)
        with httpx.stream("GET", f"{place}/gradio_api/heartbeat/abc") as open_page:
            assert open_page.status_code == 200
            asked = time.monotonic()
            server.send_signal(signal.SIGINT)
            _, said = server.communicate(timeout=10)
        assert server.returncode == 0
        assert time.monotonic() - asked < 2
        assert "Traceback" not in said
        assert "error" not in said.lower()


@can_interrupt
def test_ctrl_c_ends_it_while_the_model_loads(tmp_path: Path) -> None:
    with process("time.sleep(60)", tmp_path) as (server, place):
        assert health(place).status_code == 503
        asked = time.monotonic()
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=10)
        assert server.returncode == 0
        assert time.monotonic() - asked < 2
        assert "Traceback" not in said


def test_without_a_model_it_ends_with_one_sentence(tmp_path: Path) -> None:
    with process('raise ModelNotFound("nothing", "no such folder")', tmp_path) as (server, _):
        _, said = server.communicate(timeout=30)
        assert server.returncode == 2
        assert said.splitlines()[-1].startswith("There is no model “nothing”: no such folder.")
        assert "Traceback" not in said


def test_a_taken_port_that_was_chosen_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(AddressUnusable) as caught:
            address.listen(Settings(port=port, data_dir=tmp_path))
    assert (caught.value.port, caught.value.reason) == (port, "another program uses it")


def test_a_taken_default_port_gives_way_to_the_next(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(address.listen(Settings(data_dir=tmp_path)))
        second = stack.enter_context(address.listen(Settings(data_dir=tmp_path)))
        assert first.getsockname()[1] < second.getsockname()[1]


def test_a_host_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AddressUnusable):
        address.listen(Settings(host="192.0.2.1", port=0, api_key="k", data_dir=tmp_path))


@pytest.mark.parametrize(
    ("host", "opened"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("localhost", "127.0.0.1")]
)
def test_the_address_to_open_is_one_a_browser_can(host: str, opened: str, tmp_path: Path) -> None:
    with address.listen(Settings(host=host, port=0, api_key="k", data_dir=tmp_path)) as listener:
        assert address.url(listener) == f"http://{opened}:{listener.getsockname()[1]}/"
