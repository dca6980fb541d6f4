"""What a tool printed, made into a reason and a way out. The outputs are shortened from real ones."""

import pytest

from app.setup.failure import explain, machine

UNREACHABLE = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NameResolutionError(\"HTTPSConnection("
    "host='packages.example', port=443): Failed to resolve 'packages.example'\")': /simple/torch/"
)
OLD_UNREACHABLE = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<urllib3.connection."
    "HTTPSConnection object at 0x7f>: Failed to establish a new connection')': /simple/torch/"
)
NOT_FOUND = "ERROR: No matching distribution found for torch==2.13.0"
NO_VENV = "The virtual environment was not created successfully because ensurepip is not available."


@pytest.mark.parametrize(
    ("reason", "lines"),
    [
        ("packages.example cannot be reached", [UNREACHABLE, NOT_FOUND]),
        ("the network cannot be reached", [OLD_UNREACHABLE, NOT_FOUND]),
        (f"there is no torch==2.13.0 for {machine()} where pip looks", ["Looking", NOT_FOUND]),
        ("the disk is full", ["ERROR: Could not install packages: [Errno 28] No space left on device"]),
        ("this Python comes without its venv module", [NO_VENV]),
        ("this Python comes without its venv module", ["/usr/bin/python3: No module named venv"]),
        ("a file may not be written", ["ERROR: [Errno 13] Permission denied: '.venv'"]),
        ("it failed", ["something else"]),
        ("it failed", []),
    ],
)
def test_the_cause_is_named_before_its_consequence(reason: str, lines: list[str]) -> None:
    """Without a network pip also says that it found nothing; the network is what to look at."""
    failure = explain(lines, "it failed")
    assert failure.reason == reason
    assert failure.way_out.endswith("Then run the same command again; finished steps are kept.")


def test_the_telling_line_is_shown() -> None:
    """The line the reason was read from; else the lines marked as errors; else the last ones."""
    assert explain([UNREACHABLE, NOT_FOUND], "").said == (UNREACHABLE,)
    assert explain(["a", "ERROR: b", "c"], "").said == ("ERROR: b",)
    assert explain([*"abcdef", " "], "").said == ("c", "d", "e", "f")
