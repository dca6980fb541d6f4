"""What is asked of the system's memory beyond having it."""

import ctypes
import sys

LARGE_PAGE = 1 << 21
MADV_HUGEPAGE = 14  # Linux: <asm-generic/mman-common.h>


def use_large_pages(address: int, n_bytes: int) -> None:
    """For memory that is read again and again, where the system leaves that to the program: pages of 2 MiB, but none
    that it would share with what lies beside it."""
    start, end = -(-address // LARGE_PAGE) * LARGE_PAGE, (address + n_bytes) // LARGE_PAGE * LARGE_PAGE
    if sys.platform == "linux" and start < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_HUGEPAGE)


def give_back_memory() -> None:
    """To the system, what is free in the heap: glibc keeps holes between what lives, and larger buffers do not fit."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
