"""How a process came to its end, in words."""

import signal
from contextlib import suppress


def how_it_ended(status: int) -> str:
    """The end of a sentence about a process with exit status `status`: minus a signal's number where one ended it."""
    if status < 0:
        with suppress(ValueError):  # a number without a name
            return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
