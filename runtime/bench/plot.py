"""Rows as a picture: tokens per second against context, a panel for each task and temperature."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from runtime.bench.rivals.process import EXTRA
from runtime.bench.rows import Row
from runtime.errors import ExtraMissing

PANEL_WIDTH, PANEL_HEIGHT = 4.2, 3.4  # inches
DOTS_PER_INCH = 150


def require() -> None:
    """Raises `ExtraMissing` where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ExtraMissing("--plot", "matplotlib", EXTRA)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG to `path`: one line for each system, the same colour in every panel."""
    # Imported here: it is there only with the extra.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(row.task for row in rows))
    temperatures = list(dict.fromkeys(row.temperature for row in rows))
    systems = list(dict.fromkeys(row.system for row in rows))
    contexts = sorted({row.context for row in rows})
    size = (PANEL_WIDTH * len(tasks), PANEL_HEIGHT * len(temperatures) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(temperatures), len(tasks), squeeze=False, sharex=True, sharey="col")
    for i, temperature in enumerate(temperatures):
        for j, task in enumerate(tasks):
            panel = panels[i][j]
            for n, system in enumerate(systems):
                points = sorted(
                    (row.context, row.tokens_per_second)
                    for row in rows
                    if (row.task, row.temperature, row.system) == (task, temperature, system)
                )
                panel.plot(*zip(*points, strict=True), marker="o", color=f"C{n}", label=system)
            panel.set_title(f"{task}, temperature {temperature:g}", fontsize=10)
            panel.set_xscale("log", base=2)
            panel.set_xticks(contexts, [f"{context:,}" for context in contexts], fontsize=8)
            panel.minorticks_off()
            panel.grid(alpha=0.3)
    for panel in panels[0]:
        panel.set_ylim(bottom=0)  # for its column, and after all is drawn: it fixes the top as well
    figure.supxlabel("context in tokens", fontsize=10)
    figure.supylabel("tokens per second", fontsize=10)
    lines, names = panels[0][0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside upper center", ncols=len(names), frameon=False)
    FigureCanvasAgg(figure)
    figure.savefig(path, format="png", dpi=DOTS_PER_INCH)
