"""What was measured on this machine, kept in the cache folder as JSON."""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path


def place(cache_dir: Path, kind: str, what: object) -> Path:
    """The file for measurements of `kind` under the conditions `what`, of which the representation counts."""
    return cache_dir / kind / f"{hashlib.sha256(repr(what).encode()).hexdigest()[:24]}.json"


def keep(path: Path, values: Mapping[str, object]) -> None:
    """Written beside its place and moved there whole; where that fails, it is measured again the next time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(values), "utf-8")
        unfinished.replace(path)
