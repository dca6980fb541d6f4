"""Which pages a person asked for: "1-12,15" to page indices."""

import re

from ingest.errors import NoSuchPages

_PART = re.compile(r"(\d{1,9})?\s*([-–])?\s*(\d{1,9})?")


def parse_pages(text: str, n_pages: int, name: str) -> tuple[int, ...]:
    """The physical page indices (from 1, ascending, each once) that `text` names.

    `text` is a list of pages and ranges, "3", "1-12", "40-" (to the end), "-5" (from the start). Raises
    `NoSuchPages` when it says nothing, is not such a list, or names a page the document lacks.
    """
    chosen: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or not (match[1] or match[3]):
            raise NoSuchPages(name, text, n_pages)
        first = int(match[1] or 1)
        last = int(match[3] or n_pages) if match[2] else first
        if not 1 <= first <= last <= n_pages:
            raise NoSuchPages(name, text, n_pages)
        chosen.update(range(first, last + 1))
    return tuple(sorted(chosen))


def show_pages(pages: tuple[int, ...]) -> str:
    """Page indices as a person writes them: (1, 2, 3, 7) is "1-3, 7"."""
    runs: list[list[int]] = []
    for page in sorted(set(pages)):
        if runs and page == runs[-1][-1] + 1:
            runs[-1][1:] = [page]
        else:
            runs.append([page])
    return ", ".join("-".join(str(page) for page in run) for run in runs)
