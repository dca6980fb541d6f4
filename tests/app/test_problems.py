"""Problems: every error of every folder has one sentence with its numbers, and one way out."""

import re
from collections.abc import Iterator

import pytest

from app.errors import AppError
from app.problems import explain
from ingest.errors import IngestError, NoSuchPages, TooLarge
from runtime.errors import ContextExceeded, EngineError

ROOTS = (IngestError, EngineError, AppError)


def below(root: type[Exception]) -> Iterator[type[Exception]]:
    for kind in root.__subclasses__():
        yield kind
        yield from below(kind)


def example(kind: type[Exception]) -> Exception:
    """An instance with a telling value for every argument of the constructor."""
    code = kind.__init__.__code__
    names = code.co_varnames[1 : code.co_argcount]
    hints = kind.__init__.__annotations__
    values = {"int": 131_204, "float": 12.5, "tuple[str, ...]": ("Llama", "Qwen3")}
    arguments = []
    for name in names:
        hint = hints[name] if isinstance(hints[name], str) else getattr(hints[name], "__name__", "")
        hint = str(hints[name]) if hint == "tuple" else hint
        arguments.append(values.get(hint, f"the {name.replace('_', ' ')}"))
    return kind(*arguments)


@pytest.mark.parametrize("kind", [kind for root in ROOTS for kind in below(root)], ids=lambda kind: kind.__name__)
def test_every_error_has_its_own_words(kind):
    """Two whole sentences on one line, all numbers in them, no class name, no fallback."""
    error = example(kind)
    problem = explain(error)
    for part in (problem.sentence, problem.way_out):
        assert part.strip() == part
        assert "\n" not in part
        assert "Error" not in part
        assert kind.__name__ not in part
        assert "Traceback" not in part
    if kind.__name__ != "WrongUsage":  # brings its own sentences
        assert problem.sentence.endswith(".")
        assert problem.way_out[-1] in ".?"
    root = next(root for root in ROOTS if issubclass(kind, root))
    fallback = explain(type("Other", (root,), {"__init__": lambda self: setattr(self, "name", "the name")})())
    assert problem.sentence.replace("the name", "") != fallback.sentence.replace("the name", "")
    numbers = [value for value in error.args if isinstance(value, int)]
    assert all(
        f"{value:,}" in str(problem) or f"port {value}" in str(problem) or "bytes" in str(error.__dict__)
        for value in numbers
    )


def test_numbers_and_way_out_of_a_prompt_too_long():
    """Both numbers, as a person writes them."""
    problem = explain(ContextExceeded(131_204, 512, 131_072))
    assert "131,204" in problem.sentence
    assert "131,072" in problem.sentence
    assert "fewer pages" in problem.way_out


def test_pages_that_are_not_there_say_which_are():
    """The way out names a choice that works."""
    problem = explain(NoSuchPages("a.pdf", "9-90", 8))
    assert problem.sentence == "a.pdf has 8 pages, so pages “9-90” cannot be chosen."
    assert "1-8" in problem.way_out


def test_sizes_are_said_in_units_people_use():
    """Bytes become MB and GB; other units stay what they are."""
    assert "has 600.0 MB; at most 512.0 MB" in explain(TooLarge("a", 600_000_000, 512_000_000)).sentence
    assert "has 30,000 files; at most 20,000 files" in explain(TooLarge("a", 30_000, 20_000, "files")).sentence


def test_hostile_names_stay_on_one_line():
    """Neither a newline nor an escape sequence of a file name reaches the terminal."""
    text = str(explain(IngestError("a\n\x1b[31mb")))
    assert re.search(r"[\x00-\x1f]", text) is None
    assert "a\\n\\x1b[31mb" in text


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError(""), ValueError("x\ny")])
def test_even_the_unforeseen_has_words(error):
    """Whatever reaches the outermost boundary becomes a sentence."""
    problem = explain(error)
    assert problem.sentence.endswith(".")
    assert "\n" not in str(problem)
