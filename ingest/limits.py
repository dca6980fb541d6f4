"""How much reading may cost, and the operating system's part in keeping to it."""

import sys
from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call of `read` may use. Times are wall clock.

    `seconds` bounds the whole read, `page_seconds` one page or one file of a tree, `opening_seconds` the
    parsing of a document's structure. `memory_bytes` bounds the child process's address space where the
    system can do that. `file_bytes` is the largest single file; inside a folder or archive a file may have
    `member_bytes` (a PDF: `total_bytes`), and there may be `n_files` of them. All text together may have
    `total_bytes` characters. `zip_ratio` is how many times its packed size an archive member may unpack to.
    A line of more than `line_length` characters is taken for packed or generated data.
    """

    seconds: float = 120.0
    page_seconds: float = 3.0
    opening_seconds: float = 30.0
    memory_bytes: int = 1024 * MIB
    file_bytes: int = 512 * MIB
    member_bytes: int = 1 * MIB
    total_bytes: int = 64 * MIB
    n_files: int = 20_000
    zip_ratio: int = 200
    line_length: int = 20_000


def confine(limits: Limits) -> bool:
    """Binds this process to the limits; False where the memory limit could not be set.

    Only Linux keeps to RLIMIT_AS. macOS accepts and ignores it and Windows has no such call: there a hostile
    file is still ended by the clock and still parsed apart from the caller, but it may use more memory than
    asked.
    """
    if sys.platform != "linux":
        return False
    import resource

    cpu_seconds = int(limits.seconds) + 10
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The clock is kept by the parent; this one ends a child whose parent is gone.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    except (ValueError, OSError):
        return False
    return True
