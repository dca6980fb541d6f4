"""What is asked of the system's memory."""

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.heap import LARGE_PAGE, use_large_pages

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has no large pages to ask for"
)


def flags_at(address: int) -> list[str]:
    """What the system notes of the mapping that holds the address."""
    is_there = False
    for line in Path("/proc/self/smaps").read_text("ascii", "replace").splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            start, end = (int(bound, 16) for bound in first.split("-"))
            is_there = start <= address < end
        elif is_there and first == "VmFlags:":
            return rest
    raise LookupError(address)


@pytest.fixture
def address() -> Iterator[int]:
    """Of five large pages' memory that nothing else lies in."""
    with mmap.mmap(-1, 5 * LARGE_PAGE) as held:
        view = ctypes.c_char.from_buffer(held)
        yield ctypes.addressof(view)
        del view


def test_pages_that_lie_within_are_asked_for_and_no_others(address: int) -> None:
    first = -(-address // LARGE_PAGE) * LARGE_PAGE
    use_large_pages(first + 4096, 3 * LARGE_PAGE)
    asked = ["hg" in flags_at(place) for place in range(first, first + 4 * LARGE_PAGE, LARGE_PAGE)]
    assert asked == [False, True, True, False]


def test_memory_shorter_than_a_page_is_left_alone(address: int) -> None:
    use_large_pages(address, LARGE_PAGE - 1)
    assert not any("hg" in flags_at(address + offset) for offset in range(0, 5 * LARGE_PAGE, LARGE_PAGE))
