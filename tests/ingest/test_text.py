"""Text files in any encoding, and notebooks."""

import json
from pathlib import Path

import pytest

from ingest.document import Document, Flag
from ingest.errors import EmptyFile, NoText, UnknownFormat
from ingest.limits import Limits
from ingest.read import read
from ingest.readers.encoding import decode
from ingest.readers.text import text_of

SOURCE = "def f(x):\n    return x + 1\n"


def written(tmp_path: Path, data: str | bytes, name: str = "file.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_a_text_file_is_one_page_named_like_the_file(tmp_path: Path) -> None:
    document = read(written(tmp_path, "# Title\r\n\r\nText\r\n", "notes.md"))
    assert (document.name, document.kind, document.n_pages, document.flags) == ("notes.md", "text", 1, ())
    (page,) = document.pages
    assert (page.index, page.label, page.text) == (1, "notes.md", "# Title\n\nText\n")


@pytest.mark.parametrize(
    "data",
    [
        SOURCE.encode(),
        b"\xef\xbb\xbf" + SOURCE.encode(),
        SOURCE.encode("utf-16"),
        b"\xfe\xff" + SOURCE.encode("utf-16-be"),
        SOURCE.encode("utf-32"),
        SOURCE.encode("utf-16-le"),
        SOURCE.encode("utf-16-be"),
        SOURCE.replace("\n", "\r").encode(),
        SOURCE.replace("\n", "\r\n").encode(),
    ],
)
def test_source_code_reads_the_same_in_every_unicode_form(data: bytes) -> None:
    read_back = text_of(data, "a.py")
    assert read_back is not None
    assert read_back[0] == SOURCE


@pytest.mark.parametrize("n_before", [1023, 1024, 8190, 8191])
def test_valid_utf8_is_never_taken_for_anything_else(n_before: int) -> None:
    """A detector calls this cp1250, and a probe of the first bytes cuts a character."""
    text = "a" * n_before + "漢" * 200 + "\n"
    decoded = decode(text.encode())
    assert decoded is not None
    assert (decoded.text, decoded.encoding, decoded.flags) == (text, "utf-8", ())


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("/* café naïve */\nint x;\n", "latin-1"),
        ("“Übergröße” – 5 €\n", "cp1252"),
        ("// こんにちは世界\n" * 30, "shift_jis"),
        ("你好世界，这是一个测试文件\n" * 10, "gbk"),
        ("Съешь же ещё этих мягких французских булок, да выпей чаю.\n" * 5, "cp1251"),
        ("Zażółć gęślą jaźń i coś jeszcze po polsku, żeby było wiadomo.\n" * 5, "cp1250"),
    ],
)
def test_old_encodings_are_guessed_and_told(text: str, encoding: str) -> None:
    decoded = decode(text.encode(encoding))
    assert decoded is not None
    assert decoded.text == text
    assert decoded.flags == (Flag("decoded_as", detail=decoded.encoding),)


def test_utf8_with_a_broken_byte_is_kept_and_told() -> None:
    decoded = decode("größer, schöner, weiter, übermütig ".encode() + b"\xff" + " fröhlich\n".encode())
    assert decoded is not None
    assert "schöner" in decoded.text
    assert "\ufffd" in decoded.text
    assert [flag.code for flag in decoded.flags] == ["replaced"]


def test_a_real_replacement_character_is_no_fault() -> None:
    decoded = decode("real \ufffd character\n".encode())
    assert decoded is not None
    assert decoded.flags == ()


def test_a_stray_nul_is_removed_and_told() -> None:
    decoded = decode(b"x = '\0'\n" + SOURCE.encode())
    assert decoded is not None
    assert decoded.text == "x = ''\n" + SOURCE
    assert decoded.flags == (Flag("nul_removed", detail="1"),)


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4,
        b"\x47" + bytes(187) + b"\x47" + bytes(187),
        b"\x7fELF" + bytes(100),
        b"\x1f\x8b\x08\x00" + bytes(range(256)),
        bytes(range(256)) * 20,
        b"PK\x03\x04word/document.xml",
    ],
)
def test_binary_data_is_not_text(tmp_path: Path, data: bytes) -> None:
    assert decode(data) is None
    with pytest.raises(UnknownFormat):
        read(written(tmp_path, b"\x7fELF" + bytes(100)))


def test_empty_and_blank_files_have_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(EmptyFile):
        read(written(tmp_path, ""))
    with pytest.raises(NoText):
        read(written(tmp_path, " \n\n\t\n"))


def test_characters_that_cannot_be_seen_are_told_and_kept(tmp_path: Path) -> None:
    """They can make source code look other than it is, or carry a message to the model alone."""
    text = "x = 'user\u202e \u2066# admin\u2069 \u2066'\nhi" + "".join(chr(0xE0000 + ord(c)) for c in "secret")
    document = read(written(tmp_path, text))
    assert document.pages[0].text == text
    (flag,) = document.flags
    assert (flag.code, flag.pages) == ("invisible", (1,))
    assert "10: U+202E, U+2066, U+2069" in flag.detail


@pytest.mark.parametrize(
    "text",
    ["👩‍👩‍👧 family", "می‌خواهم", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "naïve ²"],
)
def test_joiners_that_scripts_and_emoji_need_are_no_trick(tmp_path: Path, text: str) -> None:
    assert read(written(tmp_path, text)).flags == ()


def test_a_very_long_line_is_told_but_never_cut(tmp_path: Path) -> None:
    document = read(written(tmp_path, "^" * 400_000))
    assert len(document.pages[0].text) == 400_000
    assert document.flags == (Flag("long_line", (1,), "400,000 characters"),)


def test_a_text_about_pdfs_is_no_pdf(tmp_path: Path) -> None:
    assert read(written(tmp_path, 'HEADER = b"%PDF-1.7"\n', "writer.py")).kind == "text"


def test_pages_of_a_text_file_are_its_one_page(tmp_path: Path) -> None:
    assert len(read(written(tmp_path, "text"), pages="1").pages) == 1


def notebook(*cells: dict[str, object], **fields: object) -> str:
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": list(cells), **fields})


def read_notebook(tmp_path: Path, text: str) -> Document:
    return read(written(tmp_path, text, "work.ipynb"), limits=Limits())


def test_a_notebook_is_its_cells_and_short_outputs(tmp_path: Path) -> None:
    picture = {"output_type": "display_data", "data": {"image/png": "A" * 200_000, "text/plain": "<Figure>"}}
    printed = {"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]}
    failed = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["\x1b[0;31m"]}
    endless = {"output_type": "stream", "text": "y" * 5000}
    document = read_notebook(
        tmp_path,
        notebook(
            {"cell_type": "markdown", "source": ["# T\n", "text"]},
            {"cell_type": "code", "source": "print(1)", "outputs": [printed, picture, failed, endless]},
        ),
    )
    text = document.pages[0].text
    assert text.startswith(
        "# [cell 1: markdown]\n# T\ntext\n\n# [cell 2: code]\nprint(1)\n# [output]\n1\n2\n# [output]\n<Figure>\n"
        "# [image/png left out]\n# [output]\nValueError: no\n# [output]\nyyy"
    )
    assert text.endswith("y\n# [3,000 more characters of output left out]\n")
    assert "AAAA" not in text


def test_an_old_notebook_is_read(tmp_path: Path) -> None:
    old = {"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "code", "input": "x=1", "outputs": []}]}]}
    assert read_notebook(tmp_path, json.dumps(old)).pages[0].text == "# [cell 1: code]\nx=1\n"


@pytest.mark.parametrize("text", ['{"cells": [', "[]", '{"cells": 5}', "[" * 100_000])
def test_a_broken_notebook_is_shown_as_it_lies_and_told(tmp_path: Path, text: str) -> None:
    document = read_notebook(tmp_path, text)
    assert document.pages[0].text == text
    assert "notebook" in [flag.code for flag in document.flags]
