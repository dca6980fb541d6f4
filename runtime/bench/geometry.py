"""`bench --geometry`: what a model of the catalogue would cost on this machine, measured without its weights."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from runtime.bench.shape_rows import Times, describe, record
from runtime.bench.shape_times import Shape, measure_shape
from runtime.catalogue import Entry, load_catalogue
from runtime.config import EngineConfig
from runtime.errors import HardwareRefused, InvalidSetting, OutOfMemory
from runtime.footprint import Pair, buffered_kv_bytes
from runtime.hardware import Hardware, count_cores
from runtime.hardware_file import known_hardware
from runtime.memory import LONGEST_CONTEXT, plan
from runtime.plan import Plan, gib
from runtime.ways import ways


def measure_geometry(config: EngineConfig, name: str, json_path: Path | None) -> tuple[Times, ...]:
    """Measure the catalogue's `name` in each mode that fits, or in that of `config`; print and write it mode by mode.

    Of a model that a processor has too little memory for, as many layers as fit are measured. Raises `EngineError`.
    """
    entry = _entry(name)
    torch.set_num_threads(config.threads or count_cores())
    hardware = known_hardware(config.hardware, config.cache_dir)
    context = config.context or min(entry.context, LONGEST_CONTEXT)
    shapes = list(shapes_to_measure(entry, hardware, context, config))
    print(f"{entry.id} at {context:,} tokens, by random weights and a random KV cache of its shape", flush=True)
    found: list[Times] = []
    for shape in shapes:
        found.append(measure_shape(shape, config.speculation))
        print(f"\n{describe(found[-1])}", flush=True)
        if json_path is not None:
            json_path.write_text(json.dumps(list(map(record, found)), indent=1), "utf-8")
    return tuple(found)


def _entry(name: str) -> Entry:
    entries = {entry.id: entry for entry in load_catalogue()}
    if name not in entries:
        raise InvalidSetting("geometry", name, f"a model of the catalogue: {', '.join(entries)}")
    return entries[name]


def shapes_to_measure(entry: Entry, hardware: Hardware, context: int, config: EngineConfig) -> Iterator[Shape]:
    """What is measured; what is not is printed with its numbers. Raises `OutOfMemory` where nothing fits."""
    pair, wishes = entry.pair_with(None), config.wishes
    plays_card = wishes.mode == "offload" and hardware.gpu is None
    if wishes.mode not in ("auto", "cpu") and not plays_card:
        plan(hardware, pair, context, wishes)  # raises where it does not fit
    for way in ways(hardware, pair, context, wishes):
        is_wished = plays_card or (wishes.mode in ("auto", way.mode) and wishes.device in ("auto", way.device.type))
        if not is_wished or way.is_on_disk:  # what lies on a disk is not measured by shape yet
            continue
        if way.device.type == "cuda" and not torch.cuda.is_available():
            raise HardwareRefused(str(config.hardware), "it describes a GPU that this machine does not have")
        if way.mode == "cpu":
            yield Shape(entry.id, pair, way, _layers_that_fit(pair, hardware, way, config, plays_card), plays_card)
        elif way.fits:
            yield Shape(entry.id, pair, way, entry.spec.n_layers)
        else:
            print(f"{way.name} does not fit: it needs {gib(way.bytes.total)} and {gib(way.missing_bytes)} are lacking.")


def _layers_that_fit(pair: Pair, hardware: Hardware, way: Plan, config: EngineConfig, plays_card: bool) -> int:
    """As many as a processor has memory for; raises `OutOfMemory` where that is none."""
    needed = 0
    for n_layers in range(pair.target.n_layers, 0, -1):
        fewer = replace(pair, target=replace(pair.target, n_layers=n_layers))
        found = ways(hardware, fewer, way.context, config.wishes)
        needed = next(other for other in found if other.is_like(way)).bytes.total
        if plays_card:
            needed += buffered_kv_bytes(fewer.target, way.context, way.dtype)
        if needed <= way.free_bytes:
            return n_layers
    raise OutOfMemory(needed, way.free_bytes, f"one layer of the model with {way.context:,} tokens of context")
