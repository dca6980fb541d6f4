"""What a bench measures, checked at construction."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from runtime.errors import InvalidSetting

Task = Literal["continue", "question", "quote", "repeat"]
System = Literal[
    "plain",
    "triforce",
    "lookup",
    "retrieval",
    "retrieval-lookup",
    "model",
    "model-chunks",
    "merged",
    "retrieval-model",
    "retrieval-merged",
]
Rival = Literal["llama.cpp", "llama.cpp-no-fa", "transformers"]  # with flash attention and without
TASKS: tuple[Task, ...] = get_args(Task)
SYSTEMS: tuple[System, ...] = get_args(System)
RIVALS: tuple[Rival, ...] = get_args(Rival)


@dataclass(frozen=True, slots=True)
class Plan:
    """Every task at every context and temperature, by every system and rival; `contexts` in tokens.

    For each context and task there are `n_prompts` prompts, answered `n_seeds` times in `answer_tokens` tokens by each
    of `systems` and of the rivals `against`. No `temperatures` means the configured one; no `files` the standard
    library's own source.
    """

    contexts: tuple[int, ...] = (1024, 4096, 8192)
    tasks: tuple[Task, ...] = TASKS
    systems: tuple[System, ...] = ("plain", "triforce")
    against: tuple[Rival, ...] = ()
    temperatures: tuple[float, ...] = ()
    n_prompts: int = 3
    n_seeds: int = 2
    answer_tokens: int = 128
    files: tuple[Path, ...] = ()
    json_path: Path | None = None
    plot_path: Path | None = None

    def __post_init__(self) -> None:
        lists: dict[str, tuple[object, ...]] = {
            "contexts": self.contexts,
            "tasks": self.tasks,
            "systems": self.systems,
            "against": self.against or ("no one",),
            "temperatures": self.temperatures or ("as configured",),
        }
        for name, values in lists.items():
            if not values or len(set(values)) < len(values):
                raise InvalidSetting(name, ",".join(map(str, values)), "one or more, each once")
        for name, number in (("prompts", self.n_prompts), ("seeds", self.n_seeds), ("contexts", min(self.contexts))):
            if number < 1:
                raise InvalidSetting(name, number, "at least 1")
        if self.answer_tokens < 2:
            raise InvalidSetting("answer-tokens", self.answer_tokens, "at least 2")

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(range(1, self.n_seeds + 1))
