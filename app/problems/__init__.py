"""Errors made into words: one sentence with the numbers, and one way out. Nothing else makes prose."""

from app.errors import AppError
from app.problems import answering, ours, reading
from app.problems.words import Problem, reason_of
from ingest.errors import IngestError
from runtime.errors import EngineError

__all__ = ["Problem", "explain"]


def explain(error: Exception) -> Problem:
    """The words for `error`, whichever folder raised it."""
    match error:
        case IngestError():
            return reading.explain(error)
        case EngineError():
            return answering.explain(error)
        case AppError():
            return ours.explain(error)
        case OSError():
            return Problem(
                f"The system refused: {reason_of(error.strerror or str(error))}.",
                "Check the disk and the permissions, then try again.",
            )
        case _:
            return Problem(
                f"Something unforeseen went wrong: {reason_of(str(error)) or 'no particulars'}.",
                "Try again; if it happens again, please report it.",
            )
