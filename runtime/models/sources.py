"""From what a person names as a model to files on this disk: `starter`, a folder, a `.gguf` file, a hub id.

`python -m runtime.models.sources starter` fetches a model ahead of time and prints its path.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from runtime.errors import EngineError, ModelDamaged, ModelNotFound
from runtime.events import Progress
from runtime.models import hub, starter
from runtime.models.folder import missing_from

Kind = Literal["hub", "folder", "gguf", "starter"]

STARTER = "starter"
GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class Source:
    """A model on this disk: `name` as the person gave it, `path` a `.gguf` file or a folder."""

    kind: Kind
    name: str
    path: Path


def default_cache_dir() -> Path:
    """The user's cache folder for Fullread, where downloaded models are kept unless another is given."""
    return Path(platformdirs.user_cache_dir("fullread", appauthor=False))


def locate(model: str, cache_dir: Path, allow_download: bool, progress: Callable[[Progress], None]) -> Source:
    """Find `model`, downloading it where that is allowed and needed.

    What exists on disk wins over a hub id of the same spelling. A model that is already here is used as it
    is, and nothing is contacted. Raises ModelNotFound, DownloadFailed, DiskFull, ModelDamaged.
    """
    if model == STARTER:
        return Source("starter", model, _starter(cache_dir, allow_download, progress))
    path = Path(os.path.expanduser(model))
    if model.strip() and path.is_dir():
        return Source("folder", model, _folder(model, path))
    if path.is_file():
        return Source("gguf", model, _gguf(model, path))
    if _looks_like_path(model):
        raise ModelNotFound(model, "there is no such file or folder")
    if not hub.is_name(model):
        raise ModelNotFound(model, "it is no file or folder here, and a hub id has the form org/name")
    return Source("hub", model, _hub(model, cache_dir, allow_download, progress))


def _starter(cache_dir: Path, allow_download: bool, progress: Callable[[Progress], None]) -> Path:
    path = starter.place(starter.STARTER, cache_dir)
    if starter.is_whole(starter.STARTER, path):
        return path
    if not allow_download:
        if path.exists():
            raise ModelDamaged(str(path), f"it is not {starter.STARTER.file_bytes:,} bytes long")
        raise ModelNotFound(STARTER, "it was not downloaded yet, and downloads are switched off")
    return starter.fetch(starter.STARTER, cache_dir, progress)


def _folder(model: str, path: Path) -> Path:
    missing = missing_from(path)
    if missing:
        raise ModelNotFound(model, missing)
    return path.resolve()


def _gguf(model: str, path: Path) -> Path:
    if path.suffix.lower() != ".gguf":
        raise ModelNotFound(model, "a model file is a .gguf; for safetensors give the folder that holds them")
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ModelNotFound(model, error.strerror or str(error)) from error
    if magic != GGUF_MAGIC:
        raise ModelDamaged(str(path), "it is named .gguf but does not begin like one")
    return path.resolve()


def _looks_like_path(model: str) -> bool:
    return (
        model.startswith((".", "~", "/"))
        or "\\" in model
        or model.count("/") > 1
        or model.lower().endswith((".gguf", ".safetensors"))
        or Path(model).is_absolute()
    )


def _hub(model: str, cache_dir: Path, allow_download: bool, progress: Callable[[Progress], None]) -> Path:
    snapshot = hub.cached(model, cache_dir)
    if snapshot is not None:
        return snapshot
    if not allow_download:
        raise ModelNotFound(model, "it is not on this machine, and downloads are switched off")
    return hub.fetch(model, cache_dir, progress)


def main() -> int:
    """Fetch one model ahead of time: progress on stderr, its path on stdout."""
    parser = argparse.ArgumentParser(prog="python -m runtime.models.sources", description=__doc__)
    parser.add_argument("model", help="starter, org/name, a folder or a .gguf file")
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir())
    asked = parser.parse_args()
    shown = -1

    def show(progress: Progress) -> None:
        nonlocal shown
        tenth = 10 * progress.done // progress.total if progress.total else 10
        if tenth > shown:
            shown = tenth
            print(
                f"    downloaded {progress.done / 1e6:,.0f} of {progress.total / 1e6:,.0f} MB",
                file=sys.stderr,
            )

    try:
        source = locate(asked.model, asked.cache_dir, True, show)
    except EngineError as error:
        print(": ".join(str(detail) for detail in error.args), file=sys.stderr)
        return 1
    print(source.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
