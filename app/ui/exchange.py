"""One question and its answer as the page shows them, and how events change them. Pure."""

from dataclasses import dataclass, replace
from typing import Literal

from app.assistant import Answer
from app.problems import Problem
from runtime.events import Emission, Progress

Phase = Literal["waiting", "prefill", "answering", "done", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question, and its answer as far as it has come.

    `progress` is the newest of the prefill; `answer` is there once the phase is done or stopped, `problem`
    once it is failed.
    """

    question: str
    text: str = ""
    phase: Phase = "waiting"
    progress: Progress | None = None
    answer: Answer | None = None
    problem: Problem | None = None

    @property
    def is_running(self) -> bool:
        return self.phase in ("waiting", "prefill", "answering")


def advance(exchange: Exchange, event: Progress | Emission | Answer) -> Exchange:
    """The exchange after one more event of its answer."""
    match event:
        case Progress():
            return replace(exchange, phase="prefill", progress=event)
        case Emission():
            return replace(exchange, phase="answering", text=exchange.text + event.text)
        case Answer():
            phase: Phase = "stopped" if event.finish_reason == "cancelled" else "done"
            return replace(exchange, phase=phase, text=event.text, answer=event)


def fail(exchange: Exchange, problem: Problem) -> Exchange:
    """The exchange, ended by `problem`; what was written before stays."""
    return replace(exchange, phase="failed", problem=problem)
