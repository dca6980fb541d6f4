"""The arrows between the layers, kept by reading every import in the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FORBIDDEN = {
    "ingest": {"torch", "transformers", "gradio", "fastapi", "uvicorn", "runtime", "app"},
    "runtime": {"gradio", "fastapi", "uvicorn", "ingest", "app"},
}
VALUES = {
    *("ingest.document", "ingest.errors"),
    *("runtime.config", "runtime.errors", "runtime.events", "runtime.stats"),
}
"""Modules of frozen values and errors: any module of the app may speak of them."""

CALLS_BOTH = "app/assistant.py"


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """The full names of all modules that a module in `package` imports, at the top or in a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, (node.module,))))
            # `from ingest import read` and `from . import read` name modules, not things in one.
            names_modules = node.module is None or module.count(".") == 0
            yield from (f"{module}.{alias.name}" for alias in node.names) if names_modules else (module,)


def modules_of(path: Path) -> set[str]:
    return set(imported(path.read_text("utf-8"), path.relative_to(ROOT).parts[:-1]))


def roots(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_layer_imports_nothing_that_is_not_below_it(package: str) -> None:
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in sources(package)
        if (found := roots(modules_of(path)) & FORBIDDEN[package])
    }
    assert len(sources(package)) > 3
    assert wrong == {}


def test_only_the_assistant_calls_both_sides() -> None:
    both = [
        path.relative_to(ROOT).as_posix()
        for path in sources("app")
        if {"ingest", "runtime"} <= roots(modules_of(path) - VALUES)
    ]
    assert set(both) <= {CALLS_BOTH}


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import torch.nn as nn, os", {"torch.nn", "os"}),
        ("from runtime.engine import Engine", {"runtime.engine"}),
        ("from ingest import read, errors", {"ingest.read", "ingest.errors"}),
        ("def f():\n    import gradio", {"gradio"}),
        ("from . import child", {"app.server.child"}),
        ("from ..library import Library", {"app.library"}),
    ],
)
def test_an_import_is_seen_however_it_is_written(source: str, modules: set[str]) -> None:
    assert set(imported(source, ("app", "server"))) == modules
