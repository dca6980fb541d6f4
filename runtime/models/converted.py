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

FORMAT = 2  # counted up whenever what is made of a file changes


def converted(path: Path, cache_dir: Path) -> tuple[Any, Any]:
    """Config and transformers tokenizer of the GGUF file; raises `UnsupportedModel`, `ModelDamaged`.

    Where `cache_dir` cannot be written, or what it holds is broken, they are made anew.
    """
    stat = path.stat()
    folder = cache_dir / "converted" / f"{path.stem}-{stat.st_size}-{stat.st_mtime_ns}-{FORMAT}"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return _read(folder)
    header = read_header(path)
    values = config_values(header)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ModelDamaged(str(path), f"transformers cannot read its tokenizer ({error})") from error
    _correct(tokenizer, header)
    with contextlib.suppress(OSError):  # it only takes longer the next time
        _keep(folder, values, tokenizer)
    return PreTrainedConfig(**values), tokenizer


def _read(folder: Path) -> tuple[Any, Any]:
    config = PreTrainedConfig(**json.loads((folder / "config.json").read_text("utf-8")))
    return config, PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def _keep(folder: Path, values: dict[str, object], tokenizer: Any) -> None:
    """Written beside its place and moved there whole, so that an interruption leaves no half of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=folder.parent, ignore_cleanup_errors=True) as name:
        made = Path(name) / "made"
        tokenizer.save_pretrained(made)
        (made / "config.json").write_text(json.dumps(values), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # it was broken
        os.replace(made, folder)


def _correct(tokenizer: Any, header: GgufHeader) -> None:
    """What transformers does not take over: SmolLM was trained with every digit split off before words are."""
    if header.metadata.get("tokenizer.ggml.pre") == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
