"""Why a step of the set-up failed: from what a tool printed to one sentence and one way out."""

import platform
import re
from collections.abc import Sequence

AGAIN = "Then run the same command again; finished steps are kept."

NETWORK = "NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"

# The most telling first: what the output matches, what is wrong, what to try.
CAUSES = (
    (r"No space left on device|Errno 28", "the disk is full", f"Free some space. {AGAIN}"),
    (
        rf"(?:{NETWORK})\S*host='(?P<host>[^']+)'",
        "{host} cannot be reached",
        f"Check the connection (a proxy goes into HTTPS_PROXY). {AGAIN}",
    ),
    (
        rf"{NETWORK}|Network is unreachable|cannot be reached",
        "the network cannot be reached",
        f"Check the connection (a proxy goes into HTTPS_PROXY). {AGAIN}",
    ),
    (
        r"No matching distribution found for (?P<what>\S+)",
        "there is no {what} for {machine} where pip looks",
        f"Check which index pip is set to use, or take another Python (3.11 to 3.14, 64 bit). {AGAIN}",
    ),
    (
        r"ensurepip is not available|No module named '?(?:venv|ensurepip)",
        "this Python comes without its venv module",
        f"On Debian and Ubuntu install python3-venv; elsewhere take Python from python.org. {AGAIN}",
    ),
    (r"Permission denied|Errno 13", "a file may not be written", f"Check who owns this folder. {AGAIN}"),
)
UNKNOWN_WAY_OUT = f"See the lines above. {AGAIN}"
N_LINES = 4
N_COLUMNS = 300


class SetupFailed(Exception):
    """A step did not work. `title` names it, `said` are the telling last lines of the tool that failed."""

    def __init__(self, reason: str, way_out: str, said: Sequence[str] = (), title: str = "The set-up") -> None:
        super().__init__(reason)
        self.reason, self.way_out, self.said, self.title = reason, way_out, tuple(said), title

    @property
    def in_full(self) -> str:
        """Everything for the person: which step, why, what the tool said, what to try."""
        return "\n".join([f"{self.title} failed: {self.reason}.", *(f"    {line}" for line in self.said), self.way_out])


def explain(lines: Sequence[str], otherwise: str) -> SetupFailed:
    """What a tool's last `lines` mean; the reason is `otherwise` where they say nothing known."""
    for pattern, reason, way_out in CAUSES:
        for line in reversed(lines):
            if found := re.search(pattern, line):
                words = reason.format(machine=machine(), **found.groupdict())
                return SetupFailed(words, way_out, [line.strip()[:N_COLUMNS]])
    return SetupFailed(otherwise, UNKNOWN_WAY_OUT, telling(lines))


def telling(lines: Sequence[str]) -> list[str]:
    """The few lines a person needs: the errors a tool marked as such, else simply its last ones."""
    spoken = [line.strip() for line in lines if line.strip()]
    errors = [line for line in spoken if re.match(r"(?i)(error|fatal|\w*error:)", line)]
    return (errors or spoken)[-N_LINES:]


def machine() -> str:
    """This Python and machine, as in `Python 3.11 on Linux x86_64`."""
    version = ".".join(platform.python_version_tuple()[:2])
    return f"Python {version} on {platform.system()} {platform.machine()}"
