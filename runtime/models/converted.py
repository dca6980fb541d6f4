"""Config and tokenizer of a GGUF file, made through transformers once and kept."""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from runtime.errors import ModelDamaged
from runtime.models.gguf_config import config_values
from runtime.models.gguf_header import GgufHeader, read_header

LIST = "conversion.json"  # the config, and what else belongs to the conversion
FORMAT = 4  # counted up whenever what is made of a file changes


def converted(path: Path, cache_dir: Path) -> tuple[Any, Any]:
    """Config and transformers tokenizer of the GGUF file; raises `UnsupportedModel`, `ModelDamaged`.

    Where `cache_dir` cannot be written, or what it holds is broken, they are made anew.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise ModelDamaged(str(path), f"it cannot be read ({error.strerror})") from error
    folder = cache_dir / "converted" / f"{path.stem}-{stat.st_size}-{stat.st_mtime_ns}-{FORMAT}"
    if (kept := _read(folder)) is not None:
        return kept
    header = read_header(path)
    values = config_values(header)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except Exception as error:  # `tokenizers` raises bare ones
        raise ModelDamaged(str(path), f"transformers cannot read its tokenizer ({error})") from error
    _correct(tokenizer, header)
    with contextlib.suppress(OSError):  # it only takes longer the next time
        _keep(folder, values, tokenizer)
    return PreTrainedConfig(**values), tokenizer


def _read(folder: Path) -> tuple[Any, Any] | None:
    """What was kept; None where there is nothing, or nothing whole."""
    try:
        kept = json.loads((folder / LIST).read_text("utf-8"))
        if _sizes(folder) != kept["files"]:
            return None
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        return PreTrainedConfig(**kept["config"]), tokenizer
    except Exception:  # `tokenizers` raises bare ones; made anew, the file itself tells what is wrong
        return None


def _keep(folder: Path, values: dict[str, object], tokenizer: Any) -> None:
    """Written beside its place and moved there whole, so that an interruption leaves no half of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=folder.parent, ignore_cleanup_errors=True) as name:
        made = Path(name) / "made"
        tokenizer.save_pretrained(made)
        (made / LIST).write_text(json.dumps({"files": _sizes(made), "config": values}), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # it was broken
        os.replace(made, folder)


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of each of the tokenizer's files: one that is missing would be taken for one that never was."""
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.name != LIST}


def _correct(tokenizer: Any, header: GgufHeader) -> None:
    """What transformers does not take over: SmolLM was trained with every digit split off before words are."""
    if header.metadata.get("tokenizer.ggml.pre") == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
