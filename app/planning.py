"""`fullread plan`: where a model would run on this machine, what it would take, and what else there is."""

import json
from dataclasses import asdict, dataclass
from typing import TextIO

from app.arguments import ShowPlan
from app.naming import shown
from app.plan_words import beside, neighbour, on_device, place, speed, streamed
from app.settings import Settings
from runtime.catalogue import Entry, load_catalogue
from runtime.errors import InvalidSetting
from runtime.footprint import Pair
from runtime.hardware import Hardware
from runtime.hardware_file import known_hardware, written
from runtime.loading import pair_of
from runtime.memory import Placed, placed, plan, plan_longest
from runtime.models.load import ModelFacts, read_facts
from runtime.models.rope import longest_context
from runtime.models.sources import locate
from runtime.plan import Plan


@dataclass(frozen=True, slots=True)
class Planned:
    """The best plan with the ways next to it."""

    model: str
    draft_model: str | None
    best: Placed
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Shapes:
    pair: Pair
    longest: int
    notes: tuple[str, ...]


def show_plan(command: ShowPlan, settings: Settings, out: TextIO) -> int:
    """Print the plan to `out`; gives the exit status. Raises `EngineError`, `OutOfMemory` where nothing fits."""
    hardware = known_hardware(settings.hardware, settings.cache_dir)
    if command.prints_hardware:
        print(written(hardware), end="", file=out)
        return 0
    planned = find_plan(hardware, settings)
    print(json.dumps(_record(planned)) if command.as_json else _described(planned), file=out)
    return 0


def find_plan(hardware: Hardware, settings: Settings) -> Planned:
    """For the model that is set; nothing is downloaded. Without a context the longest that fits."""
    shapes, wishes = _shapes(settings), settings.engine_config().wishes
    if settings.context is None:
        best = plan_longest(hardware, shapes.pair, shapes.longest, wishes)
    else:
        best = plan(hardware, shapes.pair, settings.context, wishes)
    return Planned(
        model=settings.model,
        draft_model=settings.draft_model,
        best=placed(best, hardware, shapes.pair, wishes),
        notes=shapes.notes,
    )


def _shapes(settings: Settings) -> _Shapes:
    """From the catalogue where both models are in it, else from what is on this disk."""
    entries = {entry.id: entry for entry in load_catalogue()}
    target = entries.get(settings.model)
    draft = entries.get(settings.draft_model or "")
    if target is not None and (draft is not None or settings.draft_model is None):
        return _listed(target, draft, settings.context)
    config = settings.engine_config()
    source = locate(config.model, config.cache_dir, False, lambda _: None)
    facts = read_facts(source, config.cache_dir)
    draft_source, draft_facts = None, None
    if config.draft_model is not None:
        draft_source = locate(config.draft_model, config.cache_dir, False, lambda _: None)
        draft_facts = read_facts(draft_source, config.cache_dir)
    longest = _longest(facts)
    if config.context is not None and config.context > longest:
        raise InvalidSetting("context", config.context, f"at most {longest:,} tokens with this model")
    return _Shapes(pair_of(source, facts, draft_source, draft_facts), longest, ())


def _longest(facts: ModelFacts) -> int:
    return longest_context(facts.config, facts.spec.trained_context)


def _listed(target: Entry, draft: Entry | None, context: int | None) -> _Shapes:
    notes = [] if target.is_supported else ["This model is not supported yet."]
    if target.note is not None:
        notes.append(target.note)
    if draft is None and target.draft is not None:
        notes.append(f"A draft model for it: --draft-model {target.draft}")
    if context is not None and context > target.longest_context:
        notes.append(f"No answer is given over so many tokens: it reads at most {target.longest_context:,}.")
    return _Shapes(target.pair_with(draft), target.longest_context, tuple(notes))


def _record(planned: Planned) -> dict[str, object]:
    best, better, worse = planned.best.chosen, planned.best.better, planned.best.worse
    return {
        "model": planned.model,
        "draft_model": planned.draft_model,
        "context": best.context,
        **_way(best),
        "next_better": _way(better) if better else None,
        "next_worse": _way(worse) if worse else None,
    }


def _way(way: Plan) -> dict[str, object]:
    return {
        "mode": way.mode,
        "reason": way.reason,
        "gpus": way.n_gpus,
        "layers_on_gpu": way.layers_on_gpu,
        "dtype": str(way.dtype).removeprefix("torch."),
        "bytes": asdict(way.bytes),
        "free_bytes": way.free_bytes,
        "streamed_bytes": asdict(way.streamed),
        "ram_free_bytes": way.ram_free_bytes,
        "kv_on_disk": way.is_on_disk,
        "fits": way.fits,
        "predicted": asdict(way.predicted),
    }


def _described(planned: Planned) -> str:
    best = planned.best.chosen
    lines = [f"{shown(planned.model)} with {best.context:,} tokens: {place(best)}.", best.reason]
    lines += map(shown, planned.notes)
    where = "In main memory" if best.mode == "cpu" else "On the card" if best.n_gpus == 1 else "On the fullest card"
    lines += ["", f"{where}:", *map(_line, on_device(best))]
    if best.streamed.total:
        lines += ["", f"{beside(best)}:", *map(_line, streamed(best))]
    lines += ["", speed(best), ""]
    lines.append(f"Next better: {neighbour(planned.best.better)}")
    lines.append(f"Next worse: {neighbour(planned.best.worse)}")
    return "\n".join(lines)


def _line(part: tuple[str, str]) -> str:
    """The number at the end of a column, whatever follows its unit."""
    words, size = part
    number, unit, *rest = size.split(" ")
    return " ".join([f"  {words:<26}{number:>7}", unit, *rest])
