"""Whether a folder holds a whole model: its config, and every file of weights its names promise."""

import json
import re
from pathlib import Path

SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)\.safetensors")


def missing_from(folder: Path) -> str | None:
    """What a model folder lacks, in a few words; None where it is whole."""
    if not (folder / "config.json").is_file():
        return "there is no config.json in it"
    weights = {path.name for path in folder.glob("*.safetensors") if path.is_file()}
    if not weights:
        others = any(folder.glob("*.bin")) or any(folder.glob("*.gguf"))
        hint = " (weights in other formats are not read from a folder)" if others else ""
        return f"there are no *.safetensors weights in it{hint}"
    absent = sorted(_promised(folder, weights) - weights)
    if absent:
        return f"{len(absent)} of its weight files are missing, the first is {absent[0]}"
    return None


def _promised(folder: Path, weights: set[str]) -> set[str]:
    """The files the index lists and the ones that names like `model-00001-of-00003` count."""
    promised: set[str] = set()
    for name in weights:
        if shard := SHARD.fullmatch(name):
            stem, number, count = shard.groups()
            promised |= {f"{stem}-{i:0{len(number)}d}-of-{count}.safetensors" for i in range(1, int(count) + 1)}
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            listed = json.loads(index.read_text("utf-8"))["weight_map"].values()
        except (ValueError, KeyError, AttributeError):
            return promised
        promised |= {str(name) for name in listed}
    return promised
