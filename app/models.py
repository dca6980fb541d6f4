"""`fullread models`: the catalogue with what fits this machine, as a table or as JSON."""

import json
from typing import TextIO

from app.settings import Settings
from runtime.catalogue import Entry, Fit, fit, load_catalogue
from runtime.hardware import Hardware
from runtime.hardware_file import known_hardware
from runtime.plan import gib


def list_models(settings: Settings, as_json: bool, out: TextIO) -> int:
    """Print every model of the catalogue to `out`; gives the exit status. Raises `EngineError`."""
    hardware = known_hardware(settings.hardware, settings.cache_dir)
    wishes = settings.engine_config().wishes
    entries = {entry.id: entry for entry in load_catalogue()}
    rows = [(entry, fit(entry, entries, hardware, wishes)) for entry in entries.values()]
    if as_json:
        print(json.dumps([_record(*row) for row in rows], indent=2, ensure_ascii=False), file=out)
        return 0
    print(_machine(hardware), file=out)
    for entry, found in rows:
        if entry.role == "target":
            print(f"\n{_description(entry, found)}", file=out)
    return 0


def _record(entry: Entry, found: Fit) -> dict[str, object]:
    return {
        "id": entry.id,
        "role": entry.role,
        "draft": entry.draft,
        "architecture": entry.spec.architecture,
        "parameters": entry.parameters,
        "weight_bytes": entry.weight_bytes,
        "kv_bytes_per_token": entry.kv_bytes_per_token,
        "context": entry.context,
        "licence": entry.licence,
        "gated": entry.is_gated,
        "supported": entry.is_supported,
        "note": entry.note,
        "fits": found.mode is not None,
        "mode": found.mode,
        "fitting_context": found.context,
        "needed_bytes": found.needed_bytes,
        "free_bytes": found.free_bytes,
    }


def _machine(hardware: Hardware) -> str:
    card = "no CUDA GPU"
    if hardware.gpu is not None:
        card = f"{gib(hardware.gpu.free_bytes)} free on {hardware.gpu.name}"
    return f"This machine: {gib(hardware.ram_free_bytes)} of memory free, {card}."


def _description(entry: Entry, found: Fit) -> str:
    licence = f"{entry.licence} licence" + (", to be accepted on its page first" if entry.is_gated else "")
    facts = [f"{entry.weight_bytes / 1e9:.1f} GB in bfloat16", f"made for {entry.context:,} tokens", licence]
    lines = [entry.id, f"  {'; '.join(facts)}"]
    if entry.draft is not None:
        lines.append(f"  drafted for by {entry.draft}")
    if entry.note is not None:
        lines.append(f"  {entry.note}")
    lines.append(f"  {_verdict(found)}" if entry.is_supported else "  not supported yet")
    return "\n".join(lines)


def _verdict(found: Fit) -> str:
    numbers = f"{gib(found.needed_bytes)} of {gib(found.free_bytes)}"
    if found.mode is None:
        return f"does not fit: even short texts need {numbers}"
    where = {"gpu": "on the GPU", "offload": "on the GPU and in memory", "cpu": "on the processor"}[found.mode]
    return f"fits {where} with {found.context:,} tokens: {numbers}"
