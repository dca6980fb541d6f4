"""`launch.py bench`: what decoding costs on this machine, ours and others', over the very same prompts.

The way of one run: `plan` (what to measure, plain values) → `text` (what is read) → `tasks` (prompts made of it) →
`runner` (whatever decodes: `ours` over one session, each of `rivals` in a process of its own) → `measure` (all of them
in turn) → `rows` (medians and ratios) → `plot`. That of a shape alone: `geometry` (which modes fit) → `shape` (random
weights and caches) → `shape_times` (what passes take, and by `roofline` the least they could) → `shape_rows`. Above
the engine: it may import everything in `runtime`, and nothing imports it. This file imports neither torch nor
transformers, so that a slip on the command line is told at once; `bench.measure.run` and
`bench.geometry.measure_geometry` are the whole.
"""

from runtime.bench.plan import RIVALS, SYSTEMS, TASKS, Plan, Rival, System, Task
from runtime.bench.text import standard_library_source

__all__ = ["RIVALS", "SYSTEMS", "TASKS", "Plan", "Rival", "System", "Task", "standard_library_source"]
