"""The text that is measured on; imports the standard library alone."""

import sysconfig
from collections.abc import Iterable
from pathlib import Path

from runtime.errors import InvalidSetting


def standard_library_source(n_characters: int) -> str:
    """Source text of the running Python's standard library, file after file in order of name."""
    return text_of(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")), n_characters)


def text_of(files: Iterable[Path], n_characters: int) -> str:
    """The beginning of the text of `files`, each below its name. Raises `InvalidSetting` where one is no text."""
    parts: list[str] = []
    total = 0
    for path in files:
        text = path.read_text("utf-8", errors="replace")
        if "\0" in text:
            raise InvalidSetting("files", path.name, "text and source files")
        parts.append(f"# {path.name}\n{text}\n")
        total += len(parts[-1])
        if total >= n_characters:
            break
    return "".join(parts)[:n_characters]
