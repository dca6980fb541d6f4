"""The most memory this process has held; imports the standard library and psutil alone."""

import sys
from pathlib import Path

import psutil


def peak_bytes() -> int:
    """Peak resident bytes of this process so far.

    Not `ru_maxrss` on Linux: that one is inherited from the process which started this one.
    """
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text("ascii", errors="replace")
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
