"""Files to read, made in the test that reads them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.pdf_writer import pdf_bytes

MakePdf = Callable[..., Path]


@pytest.fixture
def make_pdf(tmp_path: Path) -> MakePdf:
    """Writes `pdf_bytes(...)` to a file and gives its path; `name` is the file's name."""

    def make(pages: Sequence[str | bytes], *, name: str = "test.pdf", **parts: Any) -> Path:
        path = tmp_path / name
        path.write_bytes(pdf_bytes(pages, **parts))
        return path

    return make
