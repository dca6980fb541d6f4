"""The command line, taken apart; every option of `Settings` is one here, and only its text is kept."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from app.benching import add_options, new_file, plan_of
from app.errors import WrongUsage
from app.naming import shown
from runtime.bench import Plan

_DESCRIPTION = "Ask questions of whole documents, on your own machine."
_EPILOG = (
    "Without a command Fullread opens its page in the browser. Every option can also be set as FULLREAD_… in "
    "the environment (FULLREAD_TOP_P=0.9) or in config.toml (top-p = 0.9); the command line wins. launch.py "
    "adds two commands of its own: setup [--extra NAME ...] and test [PYTEST ARGUMENT ...]."
)
_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "model": {
        "model": ("NAME", "starter, a folder, a .gguf file or a Hugging Face id (starter)"),
        "draft_model": ("NAME", "a smaller model of the same family that drafts"),
        "context": ("TOKENS", "longest prompt and answer together (what the model was trained for)"),
        "device": ("D", "auto, cpu or cuda (auto)"),
        "dtype": ("T", "auto, float32, bfloat16 or float16 (auto)"),
        "mode": ("M", "auto, gpu, offload (KV cache, or weights too, in main memory) or cpu (auto)"),
        "hardware": ("FILE", "plan for the machine in this file in place of this one"),
        "gpus": ("N", "GPUs that share the model's heads (1)"),
        "threads": ("N", "CPU threads"),
    },
    "engine elsewhere": {
        "engine": (
            "URL",
            "a server with an OpenAI-compatible endpoint that answers instead; --model names what it runs",
        ),
        "engine_key": ("KEY", "key that the server wants (better in the environment, as FULLREAD_ENGINE_KEY)"),
    },
    "speculation": {
        "gamma": ("N", "most tokens drafted for one pass of the model (6; in offload as many as pay)"),
        "budget": ("TOKENS", "size of the retrieval cache (a sixteenth of the prompt, 1024 to 4096)"),
        "chunk_size": ("TOKENS", "tokens the retrieval cache scores together"),
        "retrieval": ("on|off", "draft with the model itself over that cache (on)"),
        "drafter": ("NAME", "what drafts below it: none, lookup, model or merged (auto)"),
        "draft_cache": ("NAME", "what the draft model sees: streaming or retrieval (streaming)"),
        "plain": ("", "decode without speculation"),
    },
    "answer": {
        "temperature": ("X", "0 always takes the likeliest token"),
        "top_p": ("X", "keep the likeliest tokens up to this probability"),
        "top_k": ("N", "keep the N likeliest tokens, 0 all"),
        "min_p": ("X", "drop tokens below this share of the likeliest"),
        "repetition_penalty": ("X", "above 1 discourages repeating"),
        "presence_penalty": ("X", "above 0 discourages words the answer has used"),
        "frequency_penalty": ("X", "above 0 discourages words each time the answer uses them"),
        "seed": ("N", "make sampling repeatable"),
        "max_tokens": ("N", "longest answer"),
    },
    "files and set-up": {
        "password": ("TEXT", "opens encrypted PDFs"),
        "data_dir": ("DIR", "where Fullread keeps its own files; downloaded models stay in the cache folder"),
        "no_setup": ("", "do not check or install anything first"),
    },
    "page": {
        "host": ("ADDRESS", "address to listen on (127.0.0.1)"),
        "port": ("N", "port to listen on, 0 any free one"),
        "api_key": ("KEY", "key a visitor must give; needed beyond this machine"),
    },
}


@dataclass(frozen=True, slots=True)
class OpenPage:
    """Serve the page, in the browser unless only the server is wanted."""

    open_browser: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask `questions` (none: from standard input) about `files`, `pages` of each PDF."""

    files: tuple[Path, ...]
    questions: tuple[str, ...]
    pages: str | None
    as_json: bool


@dataclass(frozen=True, slots=True)
class Bench:
    """Measure what `plan` says."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class MeasureShape:
    """Measure a model of the catalogue by its shape alone, and write what was measured to `json_path`."""

    entry: str
    json_path: Path | None


@dataclass(frozen=True, slots=True)
class Models:
    """List the models that are known, with what fits this machine."""

    as_json: bool


@dataclass(frozen=True, slots=True)
class ShowPlan:
    """Say where a model would run and why, or with `prints_hardware` just what there is to run on."""

    as_json: bool
    prints_hardware: bool


@dataclass(frozen=True, slots=True)
class Verify:
    """Compare speculative with plain decoding after `n_prompts` prompts."""

    n_prompts: int
    as_json: bool


Command = OpenPage | Ask | Bench | MeasureShape | Models | ShowPlan | Verify


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        sentence = shown(f"{message[:1].upper()}{message[1:]}").rstrip(".")
        raise WrongUsage(f"{sentence}.", f"See {self.prog} --help.")


def parse(argv: list[str], version: str) -> tuple[Command, dict[str, str]]:
    """The command, and the settings given with it by field name. Raises `WrongUsage`; --help exits."""
    parser = _parser(version)
    given, rest = parser.parse_known_args(argv)
    options = [text for text in rest if text.startswith("-")]
    if options or (rest and given.command != "ask"):
        parser.error(f"there is no option {(options or rest)[0]}")
    settings = {
        name: value for names in _GROUPS.values() for name in names if (value := getattr(given, name, None)) is not None
    }
    if given.command == "ask":
        return _ask([*given.files, *rest], given), settings
    if given.command == "bench" and given.geometry is not None:
        return MeasureShape(given.geometry, new_file("json", given.json)), settings
    if given.command == "bench":
        return Bench(plan_of(given)), settings
    if given.command == "models":
        return Models(given.json), settings
    if given.command == "plan":
        return ShowPlan(given.json, given.print_hardware), settings
    if given.command == "verify":
        return Verify(_n_prompts(given.prompts), given.json), settings
    return OpenPage(open_browser=not given.serve), settings


def _ask(files: list[str], given: argparse.Namespace) -> Ask:
    if any(not question.strip() for question in given.question):
        raise WrongUsage("A question is empty.", 'Write it after -q: -q "What is this about?".')
    if any(not file for file in files):
        raise WrongUsage("The name of a file is empty.", "Name a file or a folder.")
    return Ask(tuple(map(Path, files)), tuple(given.question), given.pages, given.json)


def _n_prompts(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise WrongUsage(f"--prompts is “{shown(text)}”, which is no number of prompts.", "Write it like 4.")
    return int(text)


def _parser(version: str) -> _Parser:
    common = _Parser(add_help=False, allow_abbrev=False)
    for title, options in _GROUPS.items():
        group = common.add_argument_group(title)
        for name, (metavar, text) in options.items():
            flag = f"--{name.replace('_', '-')}"
            if metavar:
                group.add_argument(flag, metavar=metavar, help=text, default=argparse.SUPPRESS)
            else:
                group.add_argument(flag, action="store_const", const="true", help=text, default=argparse.SUPPRESS)

    parser = _Parser(
        prog="fullread",
        usage="fullread [--serve] [OPTION ...]\n       fullread ask FILE ... -q TEXT\n"
        "       fullread bench | verify | models | plan",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        parents=[common],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fullread {version}")
    parser.add_argument("--serve", action="store_true", help="serve the page without opening a browser")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", prog="fullread")

    ask = commands.add_parser(
        "ask",
        usage="fullread ask FILE ... -q TEXT [-q TEXT ...] [--pages 1-12] [--json] [OPTION ...]",
        help="ask about files in the terminal",
        parents=[common],
        allow_abbrev=False,
    )
    ask.add_argument("files", nargs="+", metavar="FILE", help="a PDF, text or source file, a folder, a zip")
    ask.add_argument(
        "-q", "--question", action="append", default=[], metavar="TEXT",
        help="a question; more than one are asked in turn (none: the lines of standard input)",
    )  # fmt: skip
    ask.add_argument("--pages", metavar="1-12,15", help="pages to read, of every PDF named")
    ask.add_argument("--json", action="store_true", help="print one JSON object a line for each question")

    bench = commands.add_parser(
        "bench",
        usage="fullread bench [--contexts N,N] [--against NAME,NAME] [--json FILE] [--plot FILE] [OPTION ...]\n"
        "       fullread bench --geometry NAME [--context TOKENS] [--mode M] [--json FILE] [OPTION ...]",
        help="measure speed on this machine",
        parents=[common],
        allow_abbrev=False,
    )
    add_options(bench)

    models = commands.add_parser(
        "models",
        usage="fullread models [--json] [OPTION ...]",
        help="list models, with what fits this machine",
        parents=[common],
        allow_abbrev=False,
    )
    models.add_argument("--json", action="store_true", help="print one JSON array")

    plan = commands.add_parser(
        "plan",
        usage="fullread plan [--model NAME] [--context TOKENS] [--json] [--print-hardware] [OPTION ...]",
        help="show where a model would run on this machine, and why",
        parents=[common],
        allow_abbrev=False,
    )
    plan.add_argument("--json", action="store_true", help="print one JSON object")
    plan.add_argument("--print-hardware", action="store_true", help="print this machine as a file for --hardware")

    verify = commands.add_parser(
        "verify",
        usage="fullread verify [--prompts N] [--json] [OPTION ...]",
        help="check on this machine that drafting does not change what the model says",
        parents=[common],
        allow_abbrev=False,
    )
    verify.add_argument("--prompts", default="4", metavar="N", help="prompts to compare greedy answers after (4)")
    verify.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
