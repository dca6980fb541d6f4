"""The options of `bench`, and the plan they make; imports nothing heavy."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from app.errors import WrongUsage
from app.naming import shown
from runtime.bench import RIVALS, SYSTEMS, TASKS, Plan

_T = TypeVar("_T")
_DEFAULT = Plan()
_OPTIONS = {
    "contexts": ("N,N", "prompt lengths in tokens"),
    "tasks": ("NAME,NAME", "of " + ", ".join(TASKS)),
    "systems": ("NAME,NAME", f"of {', '.join(SYSTEMS)} ({','.join(_DEFAULT.systems)})"),
    "against": ("NAME,NAME", "also run " + " and ".join(RIVALS)),
    "temperatures": ("X,X", "temperatures (that of the settings)"),
    "prompts": ("N", f"prompts for each context and task ({_DEFAULT.n_prompts})"),
    "seeds": ("N", f"answers to each prompt ({_DEFAULT.n_seeds})"),
    "answer-tokens": ("N", f"length of each answer ({_DEFAULT.answer_tokens})"),
    "json": ("FILE", "write the rows as JSON"),
    "plot": ("FILE", "draw the rows as a PNG"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    for name, (metavar, text) in _OPTIONS.items():
        parser.add_argument(f"--{name}", metavar=metavar, help=text)
    parser.add_argument(
        "--geometry",
        metavar="NAME",
        help="measure passes of a model in the catalogue with random weights; nothing is downloaded",
    )
    parser.add_argument(
        "--files", metavar="FILE", nargs="+", default=[], help="text to measure on (Python's own source)"
    )


def plan_of(given: argparse.Namespace) -> Plan:
    """The plan of a command line. Raises `WrongUsage`, or `InvalidSetting` for values that do not go together."""
    if gone := [file for file in given.files if not Path(file).is_file()]:
        raise WrongUsage(f"There is no file {shown(gone[0])}.", "Name text or source files after --files.")
    return Plan(
        contexts=_list("contexts", given.contexts, _count, _DEFAULT.contexts),
        tasks=_list("tasks", given.tasks, _one_of(TASKS), _DEFAULT.tasks),
        systems=_list("systems", given.systems, _one_of(SYSTEMS), _DEFAULT.systems),
        against=() if given.against is None else _list("against", given.against, _one_of(RIVALS), RIVALS),
        temperatures=() if given.temperatures is None else _list("temperatures", given.temperatures, float, (0, 0.6)),
        n_prompts=_number("prompts", given.prompts, _DEFAULT.n_prompts),
        n_seeds=_number("seeds", given.seeds, _DEFAULT.n_seeds),
        answer_tokens=_number("answer-tokens", given.answer_tokens, _DEFAULT.answer_tokens),
        files=tuple(map(Path, given.files)),
        json_path=new_file("json", given.json),
        plot_path=new_file("plot", given.plot),
    )


def _list(name: str, text: str | None, read: Callable[[str], _T], example: Sequence[_T]) -> tuple[_T, ...]:
    """What stands between the commas; `example` where nothing was said."""
    return tuple(example) if text is None else tuple(_each(name, text.split(","), read, example))


def _number(name: str, text: str | None, default: int) -> int:
    return default if text is None else _each(name, [text], _count, (default,))[0]


def _each(name: str, parts: Sequence[str], read: Callable[[str], _T], example: Sequence[_T]) -> list[_T]:
    try:
        return [read(part.strip()) for part in parts]
    except ValueError as error:
        said, like = shown(",".join(parts)), ",".join(map(str, example))
        raise WrongUsage(f"--{name} is “{said}”, which cannot be read.", f"Write it like {like}.") from error


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise ValueError(text)


def _one_of(names: Sequence[_T]) -> Callable[[str], _T]:
    return lambda text: names[names.index(text)]  # a ValueError where it is not among them


def new_file(name: str, text: str | None) -> Path | None:
    """A place to write to, checked now: a bench runs for minutes before it writes."""
    if text is None:
        return None
    path = Path(text)
    if not text or path.is_dir() or not path.absolute().parent.is_dir():
        raise WrongUsage(f"--{name} is “{shown(text)}”, where no file can be written.", "Name a file in a folder.")
    return path
