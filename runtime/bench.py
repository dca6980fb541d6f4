"""`launch.py bench`: plain decoding against TriForce on this machine, in one run over the same KV cache.

Both systems continue the very same prefilled prompt, in turn, with the same seeds; the median over the seeds is given.
The text is the standard library's own source.
"""

import json
import statistics
import sysconfig
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from runtime.config import EngineConfig, Request, Sampling, Speculation
from runtime.engine import Engine, assemble
from runtime.errors import InvalidSetting
from runtime.events import Finished
from runtime.session import Session
from runtime.stats import LevelStats, Stats

Task = Literal["continue", "question"]
System = Literal["plain", "triforce"]
TASKS: tuple[Task, ...] = ("continue", "question")
SYSTEMS: tuple[System, ...] = ("plain", "triforce")
SEEDS = (1, 2, 3)
ANSWER_TOKENS = 64
QUESTION = "\n\nQuestion: What does this code do, and which functions does it define?"


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: medians over the seeds; `levels` are summed over them."""

    context: int
    task: Task
    system: System
    prefill_seconds: float
    tokens_per_second: float
    levels: tuple[LevelStats, ...]


def run(config: EngineConfig, contexts: tuple[int, ...], json_path: Path | None, sampling: Sampling) -> tuple[Row, ...]:
    """Measure, print a table as it grows, write the rows as JSON where a path is given; raises `EngineError`."""
    longest = max(contexts) + ANSWER_TOKENS
    engine = assemble(replace(config, context=max(longest, 64)), lambda _: None)
    try:
        facts = engine.facts
        print(f"{facts.model}: {facts.parameters / 1e6:,.0f}M parameters, {facts.dtype}, {facts.threads} threads")
        print(f"{facts.mode}: {facts.mode_reason}")
        print(f"{len(SEEDS)} seeds, {ANSWER_TOKENS} tokens each, temperature {sampling.temperature:g}\n")
        print(f"{'context':>8}  {'task':<9} {'system':<9} {'prefill':>9} {'decoding':>12}   accepted", flush=True)
        rows = []
        for row in measure(engine, config.speculation, contexts, sampling):
            rows.append(row)
            print(describe(row), flush=True)
            if row.system == "triforce":
                plain = next(r for r in rows if (r.context, r.task, r.system) == (row.context, row.task, "plain"))
                print(f"{'':>8}  triforce / plain {row.tokens_per_second / plain.tokens_per_second:.2f}", flush=True)
    finally:
        engine.close()
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", "utf-8")
    return tuple(rows)


def measure(engine: Engine, speculation: Speculation, contexts: tuple[int, ...], sampling: Sampling) -> Iterator[Row]:
    """Rows context by context, task by task; each prompt is prefilled once."""
    text = standard_library_source(max(contexts) * 6)
    ids = engine.tokenizer.encode(text)
    if len(ids) < max(contexts):
        raise InvalidSetting("contexts", max(contexts), f"at most {len(ids):,} tokens, which is all the text there is")
    frame = engine.tokenizer.chat_frame("Answer the question about the text.")
    question = [*engine.tokenizer.encode(QUESTION), *frame.user_to_assistant]
    room = len(frame.opening) + len(question)
    for context in contexts:
        if context <= room + 8:
            raise InvalidSetting("contexts", context, f"at least {room + 9} tokens")
        session = engine.new_session(context + ANSWER_TOKENS)
        document = [*frame.opening, *ids[: context - room]]
        started = time.perf_counter()
        _answer(session, Speculation(enabled=False), document, Sampling(0), 1)
        prefill_seconds = time.perf_counter() - started
        for task in TASKS:
            prompt = document if task == "continue" else [*document, *question]
            yield from _compare(session, speculation, context, task, prompt, prefill_seconds, sampling)


def _compare(
    session: Session,
    speculation: Speculation,
    context: int,
    task: Task,
    prompt: list[int],
    prefill_seconds: float,
    sampling: Sampling,
) -> Iterator[Row]:
    measured: dict[System, list[Stats]] = {system: [] for system in SYSTEMS}
    for seed in SEEDS:
        for system in SYSTEMS:
            chosen = speculation if system == "triforce" else Speculation(enabled=False)
            end = _answer(session, chosen, prompt, replace(sampling, seed=seed), ANSWER_TOKENS)
            measured[system].append(end.stats)
    for system, stats in measured.items():
        speed = statistics.median(each.tokens_per_second for each in stats)
        yield Row(context, task, system, prefill_seconds, speed, _summed(stats))


def _answer(
    session: Session, speculation: Speculation, prompt: list[int], sampling: Sampling, max_tokens: int
) -> Finished:
    session.speculation = speculation
    events = session.answer(prompt, Request(sampling, max_tokens), threading.Event(), time.perf_counter())
    return next(event for event in events if isinstance(event, Finished))


def _summed(stats: list[Stats]) -> tuple[LevelStats, ...]:
    return tuple(
        LevelStats(
            levels[0].name,
            sum(level.rounds for level in levels),
            sum(level.proposed for level in levels),
            sum(level.accepted for level in levels),
        )
        for levels in zip(*(each.levels for each in stats), strict=True)
    )


def describe(row: Row) -> str:
    """A line of the table."""
    levels = ", ".join(
        f"{level.name} {level.acceptance_rate:.2f} ({level.accepted_per_round:.1f} a round)"
        for level in row.levels
        if level.proposed
    )
    speed = f"{row.tokens_per_second:.1f} tok/s"
    return f"{row.context:>8,}  {row.task:<9} {row.system:<9} {row.prefill_seconds:>7.1f} s {speed:>12}   {levels}"


def standard_library_source(n_characters: int) -> str:
    """Source text of the running Python's standard library, file after file in order of name."""
    parts: list[str] = []
    total = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text("utf-8", errors="replace")
        parts.append(f"# {path.name}\n{text}\n")
        total += len(parts[-1])
        if total >= n_characters:
            break
    return "".join(parts)[:n_characters]
