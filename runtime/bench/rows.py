"""What was measured: samples, their medians as rows, and how rows compare."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runtime.bench.overlap import Overlap
from runtime.bench.plan import Task
from runtime.bench.tasks import Copied
from runtime.stats import LevelStats


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of one system."""

    tokens_per_second: float
    levels: tuple[LevelStats, ...]
    copied: Copied
    looped: Copied
    moved_bytes_per_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One system on one task. `prefill_seconds`, `tokens_per_second` and the counts of tokens are medians.

    `prefills` are seconds by prompt, `speeds` tokens per second by prompt and seed: those of two rows with the same
    context, task and temperature stand in the same order. `levels` are summed over all answers. Of each
    answer's `answer_tokens`, `copied_tokens` stand in the prompt in long runs (`longest_copy` of them in one), and
    `looped_tokens` earlier in the answer.
    `peak_rss_bytes` is the most memory that the system's process had held by then; rivals have processes of their own.
    `moved_bytes_per_token` crossed the bus, as a median; `overlaps` are those of this context.
    """

    context: int
    task: Task
    system: str
    temperature: float
    prefill_seconds: float
    tokens_per_second: float
    levels: tuple[LevelStats, ...]
    answer_tokens: int
    copied_tokens: int
    longest_copy: int
    looped_tokens: int
    peak_rss_bytes: int
    prefills: tuple[float, ...]
    speeds: tuple[float, ...]
    moved_bytes_per_token: float = 0.0
    overlaps: tuple[Overlap, ...] = ()


def summed(several: Iterable[Sequence[LevelStats]]) -> tuple[LevelStats, ...]:
    """Levels of several answers added up by name; an answer may lack one that did not draft for it."""
    totals: dict[str, LevelStats] = {}
    for levels in several:
        for level in levels:
            before = totals.get(level.name, LevelStats(level.name, 0, 0, 0))
            totals[level.name] = LevelStats(
                level.name,
                before.rounds + level.rounds,
                before.proposed + level.proposed,
                before.accepted + level.accepted,
            )
    return tuple(totals.values())


HEADING = (
    f"{'context':>8}  {'task':<9} {'T':>4}  {'system':<16} {'prefill':>9} {'decoding':>12} {'copied':>7} {'looped':>7}"
    "   accepted"
)


def describe(row: Row) -> str:
    """A line of the table."""
    levels = ", ".join(
        f"{level.name} {level.acceptance_rate:.2f} ({level.accepted_per_round:.1f} a round)"
        for level in row.levels
        if level.proposed
    )
    moved = f"{row.moved_bytes_per_token / 1e6:,.1f} MB a token" if row.moved_bytes_per_token else ""
    speed = f"{row.tokens_per_second:.1f} tok/s"
    return (
        f"{row.context:>8,}  {row.task:<9} {row.temperature:>4g}  {row.system:<16} {row.prefill_seconds:>7.1f} s "
        f"{speed:>12} {row.copied_tokens:>7} {row.looped_tokens:>7}   " + ", ".join(filter(None, (moved, levels)))
    ).rstrip()


def describe_overlap(overlap: Overlap) -> str:
    """How long a pass takes against its two parts."""
    return (
        f"a pass of {overlap.n_tokens}: {overlap.seconds * 1e3:.0f} ms, its copies alone "
        f"{overlap.copy_seconds * 1e3:.0f} ms, its computing alone {overlap.compute_seconds * 1e3:.0f} ms: overlap "
        f"efficiency {overlap.efficiency:.2f}"
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast one system is as another, as the median over what both did in turn."""

    context: int
    task: Task
    temperature: float
    what: str
    value: float


def ratios(rows: Sequence[Row], rivals: Sequence[str]) -> list[Ratio]:
    """Prefill and plain decoding against each rival, each hierarchy against plain decoding and against each rival.

    Answers are compared pair by pair, so that a machine that slows down in the middle of a bench does not count.
    """
    found = []
    for row in rows:
        if row.system in rivals:
            continue
        same = [other for other in rows if (other.context, other.task, other.temperature) == _case(row)]
        for other in same:
            if other.system in rivals and row.system == "plain":
                value = _median_ratio(other.prefills, row.prefills)
                found.append(Ratio(*_case(row), f"prefill / {other.system}", value))
            if other.system in rivals or (other.system == "plain" and row.system != "plain"):
                value = _median_ratio(row.speeds, other.speeds)
                found.append(Ratio(*_case(row), f"{row.system} / {other.system}", value))
    return found


def ratio_table(found: Sequence[Ratio]) -> list[str]:
    """Lines of a table, a column for each pair compared and a line for each context, task and temperature."""
    names = list(dict.fromkeys(ratio.what for ratio in found))
    cases = list(dict.fromkeys((ratio.context, ratio.task, ratio.temperature) for ratio in found))
    values = {((ratio.context, ratio.task, ratio.temperature), ratio.what): ratio.value for ratio in found}
    lines = [f"{'context':>8}  {'task':<9} {'T':>4}" + "".join(f"  {name}" for name in names)]
    for context, task, temperature in cases:
        cells = [values.get(((context, task, temperature), name)) for name in names]
        shown = ("-" if cell is None else f"{cell:.2f}" for cell in cells)
        columns = (f"  {cell:>{len(name)}}" for cell, name in zip(shown, names, strict=True))
        lines.append(f"{context:>8,}  {task:<9} {temperature:>4g}" + "".join(columns))
    return lines


def _case(row: Row) -> tuple[int, Task, float]:
    return row.context, row.task, row.temperature


def _median_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(first, second, strict=True))
