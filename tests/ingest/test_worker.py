"""The limited child process: nothing that a file does harms more than its own page, and nothing hangs."""

import os
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ingest.document import Document, Flag
from ingest.errors import TookTooLong, TookTooMuchMemory, TooLarge, UnknownFormat, Unreadable
from ingest.limits import MIB, Limits
from ingest.messages import Begin, End, Head, Job, Refusal, Result, decode, decode_job, encode
from ingest.read import read
from ingest.worker import child_environment
from tests.ingest.conftest import MakePdf
from tests.ingest.pdf_writer import lines, stream

LEVELS = 22
ENDLESS = b"/X Do"
"""A page of one form that draws a form twice, that draws a form twice, ...: four million objects."""


def endless_forms() -> dict[int, bytes]:
    def form(content: bytes, resources: bytes) -> bytes:
        return stream(content, b"/Type /XObject /Subtype /Form /BBox [0 0 612 792] /Resources << %s >>" % resources)

    inner = {60 + n: form(b"/X Do /X Do", b"/XObject << /X %d 0 R >>" % (61 + n)) for n in range(LEVELS - 1)}
    return inner | {60 + LEVELS - 1: form(lines("b"), b"/Font << /F1 3 0 R >>")}


def bomb(n_bytes: int) -> bytes:
    """A content stream of one string that unpacks to `n_bytes`."""
    packer = zlib.compressobj(1)
    packed = packer.compress(b"(")
    for _ in range(n_bytes // MIB):
        packed += packer.compress(b"a" * MIB)
    packed += packer.flush()
    return stream(packed, b"/Filter /FlateDecode")


def read_endless(make_pdf: MakePdf, pages: list[str | bytes], **limits: float) -> Document:
    path = make_pdf(pages, resources=b"/XObject << /X 60 0 R >>", objects=endless_forms())
    return read(path, limits=Limits(**limits))  # type: ignore[arg-type]


def test_a_page_that_hangs_loses_itself_alone(make_pdf: MakePdf) -> None:
    document = read_endless(make_pdf, ["first", ENDLESS, "third"], page_seconds=1)
    assert [(page.index, page.text) for page in document.pages] == [(1, "first"), (3, "third")]
    assert document.flags == (Flag("page_failed", (2,), "it takes too long"),)


def test_a_document_that_only_hangs_took_too_long(make_pdf: MakePdf) -> None:
    started = time.monotonic()
    with pytest.raises(TookTooLong) as caught:
        read_endless(make_pdf, [ENDLESS], page_seconds=0.5)
    assert caught.value.seconds == 0.5
    assert time.monotonic() - started < 10


def test_a_hostile_page_that_was_not_chosen_is_never_touched(make_pdf: MakePdf) -> None:
    path = make_pdf(["first", ENDLESS], resources=b"/XObject << /X 60 0 R >>", objects=endless_forms())
    document = read(path, pages="1", limits=Limits(page_seconds=60))
    assert ([page.text for page in document.pages], document.flags) == (["first"], ())


@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit can only be set on Linux")
def test_a_page_that_eats_memory_loses_itself_alone(make_pdf: MakePdf) -> None:
    limits = Limits(memory_bytes=220 * MIB, page_seconds=20)
    packed = bomb(256 * MIB)
    document = read(make_pdf(["first", "bomb", "third"], objects={103: packed}), limits=limits)
    assert [page.index for page in document.pages] == [1, 3]
    assert document.flags == (Flag("page_failed", (2,), "it takes too much memory"),)
    with pytest.raises(TookTooMuchMemory):
        read(make_pdf(["bomb"], objects={101: packed}), limits=limits)


def test_the_whole_read_is_bounded_by_the_clock(make_pdf: MakePdf) -> None:
    with pytest.raises(TookTooLong):
        read(make_pdf(["page"] * 20), limits=Limits(seconds=0.05))


def test_more_text_than_the_limit_is_refused_not_cut(make_pdf: MakePdf) -> None:
    """Pages may share one content stream, so a small file can hold endless text."""
    with pytest.raises(TooLarge) as caught:
        read(make_pdf(["a hundred characters " * 5] * 4), limits=Limits(total_bytes=200))
    assert (caught.value.limit, caught.value.unit) == (200, "characters")


def test_a_file_over_the_limit_is_refused_with_both_sizes(make_pdf: MakePdf) -> None:
    path = make_pdf(["text"])
    with pytest.raises(TooLarge) as caught:
        read(path, limits=Limits(file_bytes=100))
    assert (caught.value.size, caught.value.limit, caught.value.unit) == (path.stat().st_size, 100, "bytes")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pdf")
    with pytest.raises(UnknownFormat):
        read(tmp_path / "pipe.pdf")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="the superuser may read everything")
def test_a_file_one_may_not_open_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "locked.txt").write_text("secret")
    (tmp_path / "locked.txt").chmod(0)
    with pytest.raises(Unreadable):
        read(tmp_path / "locked.txt")


def test_many_threads_may_read_at_once(make_pdf: MakePdf) -> None:
    """pdfium itself is not thread-safe; a process for each document is."""
    paths = [make_pdf([f"document {number}"], name=f"{number}.pdf") for number in range(6)]
    with ThreadPoolExecutor(3) as pool:
        documents = list(pool.map(read, paths))
    assert [document.pages[0].text for document in documents] == [f"document {number}" for number in range(6)]


def test_reading_leaves_no_thread_behind(make_pdf: MakePdf) -> None:
    before = threading.active_count()
    read(make_pdf(["text"]))
    with pytest.raises(TookTooLong):
        read(make_pdf(["text"]), limits=Limits(seconds=0.05))
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_the_child_knows_nothing_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser that is taken over finds no keys in its environment."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("FULLREAD_API_KEY", "key")
    assert "secret" not in str(child_environment())
    assert not {"HF_TOKEN", "FULLREAD_API_KEY"} & child_environment().keys()


def test_a_job_survives_the_wire() -> None:
    """Also with a path that is no valid text, and what the parent learnt of earlier children."""
    job = Job("tree", "/tmp/bad_\udcff", "bad", Limits(seconds=3), "pass", "1-2", frozenset({"a", "b"}), {"c": "time"})
    assert decode_job(encode(job)) == job


@pytest.mark.parametrize(
    "message", [Head(3, "ab"), Begin("page 1", 2.5), Result("page 1", flags=(Flag("no_text", (1,)),)), End()]
)
def test_messages_survive_the_wire(message: Head | Begin | Result | End) -> None:
    assert decode(encode(message)) == message


def test_every_error_survives_the_wire() -> None:
    error = Refusal.of(TooLarge("name", 5, 3, "files"))
    made = error.to_error()
    assert isinstance(made, TooLarge)
    assert (made.name, made.size, made.limit, made.unit) == ("name", 5, 3, "files")
    assert decode(encode(error)) == error
