"""The door: one command line in, one exit status out (0 done, 1 `verify` found a difference, 2 a problem in one line,
130 interrupted)."""

import importlib.metadata
import io
import os
import sys
import tomllib
from pathlib import Path

from app import arguments
from app.errors import AppError, WrongUsage
from app.naming import shown
from app.problems import explain
from app.resolving import resolve
from app.settings import Settings
from ingest.errors import IngestError
from runtime.errors import EngineError

PROBLEM, INTERRUPTED = 2, 130


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (that of this process when None)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an answer may hold what a terminal cannot show
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except (AppError, IngestError, EngineError) as error:
        print(explain(error), file=sys.stderr)
        return PROBLEM
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # an OSError too, so it comes first
        # Whoever read our output is gone; without this the interpreter complains while it closes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(explain(error), file=sys.stderr)
        return PROBLEM


def _run(argv: list[str]) -> int:
    command, given = arguments.parse(argv, version())
    settings = resolve(given, os.environ)
    _prepare_libraries(settings)
    _mind_engine(command, settings)
    # torch, transformers and gradio take seconds to import: only what is needed, and after all checks.
    match command:
        case arguments.Ask():
            from app.asking import ask
            from app.assistant import open_assistant

            return ask(command, settings, open_assistant, (sys.stdin, sys.stdout, sys.stderr))
        case arguments.Bench():
            from runtime.bench.measure import run

            run(settings.engine_config(), command.plan, settings.sampling())
            return 0
        case arguments.MeasureShape():
            from runtime.bench.geometry import measure_geometry

            measure_geometry(settings.engine_config(), command.entry, command.json_path)
            return 0
        case arguments.Models():
            from app.models import list_models

            return list_models(settings, command.as_json, sys.stdout)
        case arguments.ShowPlan():
            from app.planning import show_plan

            return show_plan(command, settings, sys.stdout)
        case arguments.Verify():
            from app.verifying import verify

            return verify(command, settings, sys.stdout, sys.stderr)
        case arguments.OpenPage():
            from app.server.run import serve

            return serve(settings, open_browser=command.open_browser)


def _mind_engine(command: arguments.Command, settings: Settings) -> None:
    """Refuse what is about a model on this machine, and say where documents go that leave it."""
    remote = settings.remote_config()
    if remote is None:
        return
    match command:
        case arguments.Bench() | arguments.ShowPlan() | arguments.Verify():
            raise WrongUsage(
                "bench, plan and verify are about a model on this machine, not about an engine elsewhere.",
                "Leave --engine out.",
            )
        case arguments.Ask() | arguments.OpenPage() if not remote.address.is_loopback:
            way = "" if remote.address.is_encrypted else ", unencrypted"
            print(f"Documents and questions go to {shown(str(remote.address))}{way}.", file=sys.stderr, flush=True)


def version() -> str:
    """The version of this checkout where it is one, else of the installed project."""
    project = Path(__file__).parent.parent / "pyproject.toml"
    if project.is_file():
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
    return importlib.metadata.version("fullread")


def _prepare_libraries(settings: Settings) -> None:
    """Switch off what libraries send of their own accord, and let threads sleep; they read these at import."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["DO_NOT_TRACK"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Threads that wait for each other spin for some 20 microseconds, then sleep. Those that sleep at once are woken too
    # late for the short steps of a pass (26 ms against 13), those that spin on starve each other when anything else
    # runs, as a browser does (160 ms); how many threads there are is decided by the session.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    # oneDNN, and what PyTorch puts around it, keep code for the last 1,024 shapes each that were multiplied, and every
    # prompt block has shapes of its own: some 8 MB a block that nothing asks for again. As many as a block has are
    # enough, and as fast.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "32")
    if not settings.needs_hub:
        os.environ["HF_HUB_OFFLINE"] = "1"


if __name__ == "__main__":
    sys.exit(main())
