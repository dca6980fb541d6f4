"""`--engine`: the same product over a server, what goes with it and what does not."""

import contextlib
import io
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.arguments import Ask
from app.asking import ask
from app.assistant import Answer, Assistant, open_assistant
from app.cli import main
from app.errors import SettingRefused
from app.resolving import resolve
from app.settings import Settings
from app.ui import engine as head
from app.ui import screen
from runtime.errors import ServerLost
from runtime.models.sources import default_cache_dir
from runtime.remote.own_tokenizer import own_tokenizer
from tests.app.test_page_html import entry, state
from tests.runtime.servers import Script, serving

NOWHERE = {"FULLREAD_CONFIG": "/nowhere"}
ANSWER = "It cost 4,310 euros."


@pytest.fixture
def script(starter_path: Path) -> Script:
    tokenizer = own_tokenizer(str(starter_path), default_cache_dir())
    return Script(tokenizer, tokenizer.encode(ANSWER))


@pytest.fixture
def settings(script: Script, starter_path: Path, tmp_path: Path) -> Iterator[Settings]:
    with serving(script) as url:
        yield Settings(engine=url, model=str(starter_path), data_dir=tmp_path, max_tokens=50)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.txt"
    path.write_text("The repair of the generator cost 4,310 euros.\n")
    return path


def asked(assistant: Assistant, chat: str, question: str) -> Answer:
    *_, answer = assistant.ask(chat, question, threading.Event())
    assert isinstance(answer, Answer)
    return answer


def test_prompts_only_grow(script: Script, settings: Settings, report: Path) -> None:
    """Each prompt begins with the one before it and the answer's own ids, so the server's prefix cache works."""
    assistant = open_assistant(settings, lambda _: None)
    assistant.add(report)
    chat = assistant.new_chat()
    answers = [asked(assistant, chat, question) for question in ("Cost?", "Sure?", "And why?")]
    prompts = [body["prompt"] for body in script.asked]
    assert [answer.text for answer in answers] == [ANSWER] * 3
    for first, second in itertools.pairwise(prompts):
        assert second[: len(first) + len(script.answer)] == first + script.answer
    assert answers[0].sources == ()
    assert assistant.meter().context == script.context


def test_an_answer_that_breaks_off_stays_in_the_chat(script: Script, settings: Settings, report: Path) -> None:
    assistant = open_assistant(settings, lambda _: None)
    assistant.add(report)
    chat = assistant.new_chat()
    script.breaks_at = 3
    with pytest.raises(ServerLost):
        asked(assistant, chat, "Cost?")
    script.breaks_at = None
    asked(assistant, chat, "Go on.")
    first, second = (body["prompt"] for body in script.asked)
    assert second[: len(first) + 3] == first + script.answer[:3]


def test_the_terminal_says_what_there_is_and_nothing_else(script: Script, settings: Settings, report: Path) -> None:
    script.says_usage = False
    out, err = io.StringIO(), io.StringIO()
    command = Ask((report,), ("Cost?",), None, False)
    assert ask(command, settings, open_assistant, (io.StringIO(), out, err)) == 0
    said = out.getvalue()
    assert said.startswith(ANSWER)
    assert "tokens read or cached · served, remote" in said
    assert "accepted" not in said
    assert "Sources" not in said
    assert "does not say which pages" in err.getvalue()

    out = io.StringIO()
    ask(Ask((report,), ("Cost?",), None, True), settings, open_assistant, (io.StringIO(), out, err))
    stats = json.loads(out.getvalue())["stats"]
    assert (stats["cached_tokens"], stats["new_tokens"], stats["prefill_seconds"], stats["levels"]) == (
        None,
        None,
        None,
        [],
    )


def test_the_page_shows_where_documents_go(settings: Settings) -> None:
    facts = open_assistant(settings, lambda _: None).facts
    shown = head.head(facts)
    assert f"Documents and questions go to {settings.engine}" in shown
    assert shown.count("not available from this engine") == 2
    assert "parameters" not in shown
    asking, empty = screen.draw(state(entry()), facts), screen.draw(state(), facts)
    assert asking.hint == f"<p>Documents and questions go to {settings.engine}.</p>"
    assert "Drop a PDF" in empty.finished
    assert "the pages each answer rests on" not in empty.finished


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("draft_model", "d"), ("device", "cpu"), ("dtype", "float32"), ("mode", "cpu"), ("hardware", "m.toml")),
        *(("threads", "2"), ("gamma", "3"), ("budget", "256"), ("drafter", "none"), ("plain", "true")),
    ],
)
def test_what_the_server_decides_is_refused_beside_it(name: str, value: str) -> None:
    with pytest.raises(SettingRefused) as refused:
        resolve({"engine": "http://127.0.0.1:1", name: value}, NOWHERE)
    assert refused.value.allowed == "nothing beside engine"
    resolve({"engine": "http://127.0.0.1:1", "top_k": "3", "context": "900"}, NOWHERE)


def test_an_engine_comes_from_line_environment_or_file(tmp_path: Path) -> None:
    """And its key; the hub is not contacted for a model that runs elsewhere."""
    url = "http://127.0.0.1:8000"
    file = tmp_path / "config.toml"
    file.write_text(f'engine = "{url}"\nengine-key = "hush"\n')
    found = [
        resolve({"engine": url, "engine_key": "hush"}, NOWHERE),
        resolve({}, NOWHERE | {"FULLREAD_ENGINE": url, "FULLREAD_ENGINE_KEY": "hush"}),
        resolve({}, {"FULLREAD_CONFIG": str(file)}),
    ]
    assert found[0] == found[1] == found[2]
    assert "hush" not in repr(found[0])
    remote = resolve({"engine": url, "model": "org/name"}, NOWHERE)
    assert not remote.needs_hub
    assert (config := remote.remote_config()) is not None
    assert config.model == "org/name"
    assert Settings().remote_config() is None
    with pytest.raises(SettingRefused, match="http"):
        resolve({"engine": "localhost:8000"}, NOWHERE)


@pytest.mark.parametrize("command", ["bench", "plan", "verify"])
def test_commands_about_this_machine_are_refused(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FULLREAD_CONFIG", "/nowhere")
    assert main([command, "--engine", "http://127.0.0.1:1"]) == 2
    assert "Leave --engine out." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "says"), [("http://192.0.2.1:80", True), ("http://127.0.0.1:1", False), ("http://[::1]:1", False)]
)
def test_another_machine_is_named_before_anything_is_sent(
    url: str, says: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FULLREAD_CONFIG", "/nowhere")
    with contextlib.suppress(SystemExit):
        main(["ask", "gone.txt", "-q", "Cost?", "--engine", url])
    error = capsys.readouterr().err
    assert ("Documents and questions go to" in error) is says
    assert "There is no file gone.txt." in error
