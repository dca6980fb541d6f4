"""The command line as a process of its own: exit statuses, both streams, how fast a slip is told."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pypdf import PdfWriter

from app import arguments
from app.assistant import Assistant
from app.cli import main, version
from app.errors import WrongUsage
from app.library import Library
from app.settings import Settings
from runtime.bench import Plan
from runtime.hardware_file import written
from tests.runtime.machines import machine

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path):
    """Runs the command line in a process that sees neither this machine's settings nor its data."""

    def call(*argv: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("FULLREAD_")}
        clean |= {"FULLREAD_CONFIG": str(tmp_path / "none"), "FULLREAD_DATA_DIR": str(tmp_path / "data")}
        return subprocess.run(
            [sys.executable, "-m", "app.cli", *argv],
            cwd=ROOT,
            env={**clean, "PYTHONPATH": str(ROOT), **environ},
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
        )

    return call


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["ask"], "FILE"),
        (["ask", "a.pdf"], "There is no question."),
        (["ask", "a.pdf", "-q"], "expected one argument"),
        (["ask", "a.pdf", "-q", " "], "A question is empty."),
        (["ask", "a.pdf", "-q", "Why?", "--gama", "3"], "--gama"),
        (["ask", "a.pdf", "-q", "Why?", "--gamma", "x"], "--gamma is “x”"),
        (["ask", "a.pdf", "-q", "Why?", "--top-p", "0"], "above 0, at most 1"),
        (["ask", "gone.pdf", "-q", "Why?"], "There is no file gone.pdf."),
        (["ask", "gone\n.pdf", "-q", "Why?"], "gone"),
        (["ask", "ingest", "-q", "Why?", "--pages", "1"], "--pages"),
        (["fly"], "'fly'"),
        (["bench", "--contexts", "1k"], "1024,4096,8192"),
        (["bench", "--json", "no/such/folder.json"], "--json"),
        (["bench", "--geometry", "starter", "--json", "no/such/folder.json"], "--json"),
        (["bench", "--geometry", "no-such-model"], "starter, Qwen"),
        (["models", "llama"], "There is no option llama."),
        (["plan", "llama"], "There is no option llama."),
        (["verify", "--prompts", "0"], "--prompts is “0”"),
        (["verify", "--prompts", "many"], "Write it like 4."),
        (["verify", "paper.pdf"], "paper.pdf"),
        (["bench", "--plot", "no/such/plot.png"], "--plot"),
        (["bench", "--tasks", "quote,quote"], "each once"),
        (["--serve", "--host", "0.0.0.0"], "--api-key"),
        (["--port", "http"], "--port"),
    ],
)
def test_a_slip_is_one_line_and_status_2(run, argv, words):
    """Usage, settings and files are found out before the model is loaded, and told in one line."""
    done = run(*argv)
    assert (done.returncode, done.stdout) == (2, "")
    lines = [line for line in done.stderr.splitlines() if not line.startswith("Reading ")]
    assert len(lines) == 1
    assert words in lines[0]
    assert "Traceback" not in done.stderr


def test_settings_from_elsewhere_are_named(run, tmp_path):
    """A bad value in the environment or in the file says where it stands."""
    assert "FULLREAD_GAMMA" in run("--serve", FULLREAD_GAMMA="much").stderr
    (tmp_path / "config.toml").write_text("gammas = 3")
    done = run("--serve", FULLREAD_CONFIG=str(tmp_path / "config.toml"))
    assert done.returncode == 2
    assert "Did you mean gamma?" in done.stderr


def test_a_plan_for_another_machine_comes_from_a_file(run, tmp_path):
    """Named in the environment; nothing of the model is there, and nothing is fetched."""
    path = tmp_path / "machine.toml"
    path.write_text(written(machine(64, 24)), "utf-8")
    done = run("plan", "--model", "Qwen/Qwen3-8B", "--context", "8192", "--json", FULLREAD_HARDWARE=str(path))
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["mode"], found["layers_on_gpu"]) == ("gpu", 36)


def test_an_encrypted_pdf_asks_for_its_password(run, tmp_path):
    """Without a password, and with a wrong one, the sentence says which it is."""
    writer = PdfWriter()
    writer.add_blank_page(100, 100)
    writer.encrypt("open", algorithm="AES-256")
    writer.write(tmp_path / "locked.pdf")
    without, wrong = (
        run("ask", str(tmp_path / "locked.pdf"), "-q", "Why?", *password) for password in ([], ["--password", "wrong"])
    )
    assert (without.returncode, wrong.returncode) == (2, 2)
    assert "locked.pdf is encrypted." in without.stderr
    assert "The password does not open locked.pdf." in wrong.stderr


def test_help_and_version_answer_at_once(run):
    """Nothing heavy is imported for them."""
    started = time.monotonic()
    help_text, version_text = run("--help"), run("--version")
    assert time.monotonic() - started < 5
    assert (help_text.returncode, version_text.returncode) == (0, 0)
    assert version_text.stdout == f"fullread {version()}\n"
    assert "ask" in help_text.stdout
    for name in Settings.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in help_text.stdout


def test_checks_come_before_heavy_imports(run):
    """A refused command line has imported neither torch nor transformers nor gradio."""
    done = run("ask", "gone.pdf", "-q", "Why?", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "app.cli" in imported or "app.arguments" in imported
    assert not imported & {"torch", "transformers", "gradio", "fastapi"}


def test_files_and_questions_may_be_mixed():
    """Files before, between and after questions are all files; options stand anywhere."""
    command, given = arguments.parse(
        ["--model", "m", "ask", "a.pdf", "-q", "One?", "b.pdf", "--seed", "-1", "-q", "Two?", "--json"], "1"
    )
    assert command == arguments.Ask((Path("a.pdf"), Path("b.pdf")), ("One?", "Two?"), None, True)
    assert given == {"model": "m", "seed": "-1"}


def test_commands():
    """No command opens the page; --serve does not open the browser; verify has options of its own."""
    assert arguments.parse([], "1") == (arguments.OpenPage(True), {})
    assert arguments.parse(["--serve", "--port", "0"], "1") == (arguments.OpenPage(False), {"port": "0"})
    assert arguments.parse(["plan", "--json"], "1") == (arguments.ShowPlan(True, False), {})
    assert arguments.parse(["plan", "--print-hardware"], "1") == (arguments.ShowPlan(False, True), {})
    assert arguments.parse(["verify"], "1") == (arguments.Verify(4, False), {})
    assert arguments.parse(["verify", "--json", "--model", "m", "--prompts", "2"], "1") == (
        arguments.Verify(2, True),
        {"model": "m"},
    )


def test_a_shape_is_measured_by_its_name(tmp_path):
    file = tmp_path / "times.json"
    words = ["bench", "--geometry", "starter", "--context", "512", "--json", str(file)]
    assert arguments.parse(words, "1") == (arguments.MeasureShape("starter", file), {"context": "512"})


def test_a_bench_is_planned_by_its_options():
    """Lists between commas, numbers, files; what is not said is the plan's own."""
    assert arguments.parse(["bench", "--contexts", "64, 128"], "1") == (arguments.Bench(Plan((64, 128))), {})
    words = "--tasks repeat --systems plain,lookup --against llama.cpp,transformers --temperatures 0,0.6 --prompts 1"
    words += f" --seeds 3 --answer-tokens 32 --json rows.json --plot plot.png --files {__file__}"
    expected = Plan(
        tasks=("repeat",),
        systems=("plain", "lookup"),
        against=("llama.cpp", "transformers"),
        temperatures=(0, 0.6),
        n_prompts=1,
        n_seeds=3,
        answer_tokens=32,
        files=(Path(__file__),),
        json_path=Path("rows.json"),
        plot_path=Path("plot.png"),
    )
    assert arguments.parse(["bench", *words.split(), "--temperature", "1"], "1") == (
        arguments.Bench(expected),
        {"temperature": "1"},
    )
    for wrong in ("contexts 0", "tasks sing", "prompts 1,2", "temperatures hot", "against ollama", "files gone"):
        option, value = wrong.split()
        with pytest.raises(WrongUsage, match=value):
            arguments.parse(["bench", f"--{option}", value], "1")


@pytest.fixture
def scripted(monkeypatch, engine, settings):
    """Puts the scripted engine in the model's place, and keeps the settings of this machine out."""
    monkeypatch.setattr("app.assistant.open_assistant", lambda given, _: Assistant(engine, Library(), given))
    for name in [name for name in os.environ if name.startswith("FULLREAD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FULLREAD_DATA_DIR", str(settings.data_dir))
    monkeypatch.setenv("FULLREAD_CONFIG", str(settings.data_dir / "none"))
    for name in ("GRADIO_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")  # set by `main`, and put back after the test
    return engine


def test_a_document_too_long_is_refused_with_both_numbers(scripted, tmp_path, capsys):
    """Status 2; the last line on stderr has what it takes, what there is, and the way out; nothing was sent."""
    (tmp_path / "long.txt").write_text("many words " * 500)
    assert main(["ask", str(tmp_path / "long.txt"), "-q", "Why?"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(r"are 5,5\d\d tokens long; .* 3,2\d\d of them \(4,096 .*--pages", err.splitlines()[-1])
    assert scripted.prompts == []


def test_nothing_is_sent_home(scripted, tmp_path):
    """Libraries' telemetry is off before they are imported, and the hub is out of reach without a hub model."""
    (tmp_path / "a.txt").write_text("Some words.")
    assert main(["ask", str(tmp_path / "a.txt"), "-q", "Why?"]) == 0
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == os.environ["HF_HUB_OFFLINE"] == "1"


def test_interrupting_the_reading_is_status_130(monkeypatch, scripted):
    """Ctrl-C before there is an answer ends with 130 and no traceback."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("app.asking.read_document", interrupted)
    assert main(["ask", "a.pdf", "-q", "Why?"]) == 130
