"""Two columns of prose that a PDF paints line by line, left, right, left, right: where they part. Pure geometry.

Both engines read such a page across. A table of two columns looks much the same and must be read across, so the rule
is narrow: lines set as tight as prose, both columns starting where they started the line before, nothing third.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_CELL_GAP = 1.5
_ROW_SHIFT = 0.2
_INDENT = 2.0
_LEADING = 1.25
_ENOUGH_ROWS = 5


@dataclass(frozen=True, slots=True)
class Placed:
    """An upright run of text: where its baseline starts, where its ink ends, and its font size, in page units."""

    x: float
    y: float
    right: float
    size: float


@dataclass(frozen=True, slots=True)
class Gutter:
    """What parts the columns: text that starts at `x` or further right, on baselines from `top` down to `bottom`, is
    the second column's."""

    x: float
    top: float
    bottom: float


def find_gutter(runs: Iterable[Placed]) -> Gutter | None:
    """The first block of two columns among `runs` (in painting order), None where there is none."""
    block: list[list[Placed]] = []
    for row in (*_rows(runs), []):
        if block and not _continues(block, row):
            if sum(len(row) == 2 for row in block) >= _ENOUGH_ROWS:
                start = min(row[1].x for row in block if len(row) == 2)
                return Gutter(start - 0.5 * block[0][0].size, block[0][0].y, block[-1][0].y)
            block = []
        if block or len(row) == 2:
            block.append(row)
    return None


def _rows(runs: Iterable[Placed]) -> Iterator[list[Placed]]:
    """Consecutive runs on one baseline, from left to right, those that are close together as one."""
    row: list[Placed] = []
    for run in runs:
        if row and abs(run.y - row[-1].y) < _ROW_SHIFT * run.size and run.x > row[-1].x:
            if run.x - row[-1].right < _CELL_GAP * run.size:
                run = Placed(row[-1].x, row[-1].y, run.right, run.size)
                row.pop()
            row.append(run)
            continue
        if row:
            yield row
        row = [run]
    if row:
        yield row


def _continues(block: list[list[Placed]], row: list[Placed]) -> bool:
    """Whether `row` is the next line of the block: of one or of both of its columns."""
    if not 1 <= len(row) <= 2:
        return False
    left, right = block[0]
    last = block[-1][0]
    if not 0 < last.y - row[0].y <= _LEADING * last.size:
        return False
    indent = _INDENT * left.size
    starts_left = -indent < row[0].x - left.x < indent and row[0].right < right.x - indent / 2
    starts_right = abs(row[-1].x - right.x) < indent
    return starts_left and starts_right if len(row) == 2 else starts_left or starts_right
