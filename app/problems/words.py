"""A problem, and the pieces that its sentences are made of."""

from dataclasses import dataclass

from app.amounts import data
from app.naming import shown


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and what the person can do about it; both whole sentences on one line."""

    sentence: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.sentence} {self.way_out}"


def refusal(origin: str, value: object, allowed: str) -> Problem:
    return Problem(f"{origin} is “{shown(str(value))}”, which is not allowed.", f"Allowed: {allowed}.")


def reason_of(text: str) -> str:
    """A reason from elsewhere as the end of a sentence: one line, no full stop of its own."""
    return shown(" ".join(text.split())).rstrip(" .")


def begun(words: str) -> str:
    """Words as the beginning of a sentence."""
    return words[:1].upper() + words[1:]


def memory_of(n_bytes: int) -> str:
    """As plans count it."""
    return f"{n_bytes / 2**30:,.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:,.0f} MiB"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size_of(number: int, unit: str) -> str:
    return data(number) if unit == "bytes" else f"{number:,} {unit}"
