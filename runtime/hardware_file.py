"""A machine described in a TOML file, to plan for one that is not at hand; and this machine written in that form."""

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from runtime.errors import HardwareRefused
from runtime.hardware import Gpu, GpuKind, Hardware, detect
from runtime.native.machine import cpu_multiplies_bfloat16

MACHINE = ("ram_bytes", "ram_free_bytes", "cores", "disk_free_bytes")
MAY_BE_ZERO = ("ram_free_bytes", "disk_free_bytes", "free_bytes")
CARD_BYTES = ("total_bytes", "free_bytes")
CARD_RATES = ("host_to_device_bytes_per_second", "memory_bytes_per_second", "flops")


def known_hardware(path: Path | None, cache_dir: Path) -> Hardware:
    """What the file at `path` says, else what this machine has; raises `HardwareRefused`."""
    return detect(cache_dir) if path is None else read_hardware(path)


def read_hardware(path: Path) -> Hardware:
    """The machine that a file describes; raises `HardwareRefused` with what is wrong in it.

    Besides the fields of `MACHINE` and of each `[[gpu]]` it may say `cpu_has_bfloat16`, else as this machine, and the
    `kind` of a card, else cuda.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise HardwareRefused(str(path), error.strerror or str(error)) from error
    except ValueError as error:
        raise HardwareRefused(str(path), f"it is no TOML ({error})") from error
    try:
        return _machine(values)
    except ValueError as error:
        raise HardwareRefused(str(path), str(error)) from error


def written(hardware: Hardware) -> str:
    """The machine in the form that `read_hardware` takes."""
    lines = [f"{name} = {getattr(hardware, name)}" for name in MACHINE]
    lines.append(f"cpu_has_bfloat16 = {json.dumps(hardware.cpu_has_bfloat16)}")
    for gpu in hardware.gpus:
        lines += ["", "[[gpu]]", f"name = {json.dumps(gpu.name, ensure_ascii=False)}", f'kind = "{gpu.kind}"']
        lines += [f"{name} = {getattr(gpu, name)}" for name in CARD_BYTES]
        if gpu.compute_capability is not None:
            lines.append(f"compute_capability = {gpu.compute_capability:g}")
        lines += [f"{name} = {getattr(gpu, name)}" for name in CARD_RATES]
    return "\n".join(lines) + "\n"


def _machine(values: Mapping[str, Any]) -> Hardware:
    _only(values, (*MACHINE, "cpu_has_bfloat16", "gpu"), "the file")
    numbers = {name: _number(values, name, "the file") for name in MACHINE}
    cards = values.get("gpu", [])
    if not isinstance(cards, list) or not all(isinstance(card, dict) for card in cards):
        raise ValueError("a card is written as [[gpu]], a table for each")
    has_bfloat16 = values.get("cpu_has_bfloat16", cpu_multiplies_bfloat16())
    if not isinstance(has_bfloat16, bool):
        raise ValueError(f"cpu_has_bfloat16 is {has_bfloat16!r}, not true or false")
    _within(numbers, "ram_free_bytes", "ram_bytes", "the file")
    gpus = tuple(_card(card, f"[[gpu]] number {index}") for index, card in enumerate(cards, 1))
    return Hardware(cpu_has_bfloat16=has_bfloat16, gpus=gpus, **numbers)


def _card(values: Mapping[str, Any], where: str) -> Gpu:
    _only(values, ("name", "kind", "compute_capability", *CARD_BYTES, *CARD_RATES), where)
    name, kind = values.get("name"), values.get("kind", "cuda")
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"{where} has no name")
    if kind not in get_args(GpuKind):
        raise ValueError(f"kind in {where} is {kind!r}, not one of {', '.join(get_args(GpuKind))}")
    numbers = {field: _number(values, field, where) for field in (*CARD_BYTES, *CARD_RATES)}
    _within(numbers, "free_bytes", "total_bytes", where)
    capability = _capability(values, where) if kind == "cuda" or "compute_capability" in values else None
    return Gpu(name=name, kind=cast(GpuKind, kind), compute_capability=capability, **numbers)


def _capability(values: Mapping[str, Any], where: str) -> float:
    """Written as 8.9 or as "8.9"."""
    value = values.get("compute_capability")
    try:
        number = float("nan" if value is None or isinstance(value, bool | list | dict) else value)
    except (TypeError, ValueError):
        number = math.nan
    if not 1 <= number < 100:
        raise ValueError(f"compute_capability in {where} is {value!r}, not a number like 8.9")
    return number


def _number(values: Mapping[str, Any], name: str, where: str) -> int:
    """A whole number, which may be written as 24e9."""
    if name not in values:
        raise ValueError(f"{where} lacks {name}")
    value = values[name]
    is_whole = type(value) is int or (type(value) is float and math.isfinite(value) and value == int(value))
    if not is_whole or value < (0 if name in MAY_BE_ZERO else 1):
        raise ValueError(f"{name} in {where} is {value!r}, not a whole number above 0")
    return int(value)


def _within(numbers: Mapping[str, int], part: str, whole: str, where: str) -> None:
    if numbers[part] > numbers[whole]:
        raise ValueError(f"{part} in {where} is more than {whole}: {numbers[part]:,} of {numbers[whole]:,}")


def _only(values: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = next((name for name in values if name not in known), None)
    if unknown is not None:
        raise ValueError(f"{where} has a field {unknown}, which is not one of {', '.join(known)}")
