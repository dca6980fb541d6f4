"""Models from the Hugging Face hub: a snapshot that is already here, or one that is downloaded."""

import json
import re
import shutil
import sys
from pathlib import Path

from huggingface_hub.constants import HF_HUB_CACHE

from runtime.errors import DiskFull, DownloadFailed, ModelNotFound
from runtime.models.folder import missing_from
from runtime.models.transfer import Outcome, Report, bytes_under, require_space, run_watched

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
CHILD = Path(__file__).with_name("hub_child.py")
ENVIRONMENT = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def is_name(model: str) -> bool:
    """Whether `model` has the form of a hub id, `org/name`."""
    return NAME.fullmatch(model) is not None and "--" not in model and ".." not in model


def cached(model: str, cache_dir: Path) -> Path | None:
    """The whole snapshot of `model` on this machine, ours or another program's; contacts nothing."""
    for cache in (_own_cache(cache_dir), Path(HF_HUB_CACHE)):
        snapshot = _snapshot(cache, model)
        if snapshot is not None and _is_whole(snapshot):
            return snapshot
    return None


def tokenizer_folder(model: str, cache_dir: Path) -> Path | None:
    """The snapshot of `model` on this machine, if its tokenizer is in it, weights or none; contacts nothing."""
    for cache in (_own_cache(cache_dir), Path(HF_HUB_CACHE)):
        snapshot = _snapshot(cache, model)
        if snapshot is not None and any((snapshot / name).is_file() for name in TOKENIZERS):
            return snapshot
    return None


def fetch(model: str, cache_dir: Path, progress: Report) -> Path:
    """Download the snapshot of `model` (what is there already is not fetched again); its folder.

    Raises ModelNotFound, DownloadFailed, DiskFull.
    """
    cache = _own_cache(cache_dir)
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadFailed(model, f"{error.strerror or error} ({cache})") from error
    missing_bytes = int(_ask("plan", model, cache, 0, lambda _: None)["bytes"])
    require_space(cache, missing_bytes)
    snapshot = Path(_ask("download", model, cache, missing_bytes, progress)["path"])
    missing = missing_from(snapshot)
    if missing:
        raise ModelNotFound(model, f"the hub's copy cannot be used: {missing}")
    return snapshot


def _own_cache(cache_dir: Path) -> Path:
    return cache_dir / "models" / "hub"


def _storage(cache: Path, model: str) -> Path:
    return cache / f"models--{model.replace('/', '--')}"


def _snapshot(cache: Path, model: str) -> Path | None:
    """The folder the `main` reference names, in the library's cache layout."""
    storage = _storage(cache, model)
    try:
        commit = (storage / "refs" / "main").read_text("utf-8").strip()
    except OSError:
        return None
    return storage / "snapshots" / commit


def _is_whole(snapshot: Path) -> bool:
    return missing_from(snapshot) is None and any((snapshot / name).is_file() for name in TOKENIZERS)


def _ask(step: str, model: str, cache: Path, total_bytes: int, progress: Report) -> dict[str, str]:
    """Run one step in the child; the record it printed."""
    storage = _storage(cache, model)
    before = bytes_under(storage)
    outcome = run_watched(
        [sys.executable, "-P", str(CHILD), step, model, str(cache)],
        ENVIRONMENT,
        cache,
        lambda: bytes_under(storage) - before,
        total_bytes,
        progress,
    )
    record = _record(outcome, model)
    reason = record.get("reason", "")
    match record.get("failure"):
        case None:
            return record
        case "missing":
            raise ModelNotFound(model, reason)
        case "disk":
            raise DiskFull(str(cache), total_bytes, shutil.disk_usage(cache).free)
        case _:
            raise DownloadFailed(model, reason)


def _record(outcome: Outcome, model: str) -> dict[str, str]:
    lines = outcome.stdout.splitlines()
    try:
        record = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        record = None
    if isinstance(record, dict):
        return {str(key): str(value) for key, value in record.items()}
    said = [line for line in outcome.stderr.splitlines() if line.strip()]
    raise DownloadFailed(model, said[-1] if said else f"the download ended with status {outcome.status}")
