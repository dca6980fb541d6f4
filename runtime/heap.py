"""The memory that freed objects leave behind."""

import ctypes
import sys


def give_back_memory() -> None:
    """To the system, what is free in the heap: glibc keeps holes between what lives, and larger buffers do not fit."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
