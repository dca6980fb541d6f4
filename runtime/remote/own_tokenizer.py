"""The tokenizer of a model that runs elsewhere, read from this disk; no weights are needed."""

import json
import os
from pathlib import Path
from typing import Any

from runtime.errors import ModelDamaged, ModelNotFound
from runtime.models import hub
from runtime.tokenizer import Tokenizer


def own_tokenizer(model: str, cache_dir: Path) -> Tokenizer:
    """Of a folder, a `.gguf` file or a hub id that is on this disk, of whatever architecture.

    Raises `ModelNotFound`, `ModelDamaged`; for a GGUF file of an architecture that is not supported `UnsupportedModel`.
    """
    path = Path(os.path.expanduser(model))
    if path.is_file():
        from runtime.models.converted import converted

        config, backend = converted(path.resolve(), cache_dir)
        return _with_ends(backend, _ids(config.eos_token_id))
    folder = path if path.is_dir() else hub.tokenizer_folder(model, cache_dir) if hub.is_name(model) else None
    if folder is None:
        reason = "no folder, .gguf file or downloaded hub model of that name is here to read its tokenizer from"
        raise ModelNotFound(model, reason)
    ends: frozenset[int] = frozenset()
    for name in ("generation_config.json", "config.json"):
        ends |= _ids(_json(folder / name).get("eos_token_id"))
    return _with_ends(_backend(folder), ends)


def _backend(folder: Path) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        backend = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # `tokenizers` raises bare ones
        raise ModelDamaged(str(folder), f"transformers cannot read its tokenizer ({error})") from error
    if not isinstance(backend, PreTrainedTokenizerFast):
        raise ModelDamaged(str(folder), "there is no tokenizer.json in it, nor anything it could be made of")
    return backend


def _with_ends(backend: Any, ends: frozenset[int]) -> Tokenizer:
    """With the control token that the chat template puts behind an answer among those that end one."""
    bare = Tokenizer(backend)
    behind = [token for token in bare.chat_frame("").assistant_to_user if token in bare.control_ids]
    return Tokenizer(backend, ends | frozenset(behind[:1]))


def _ids(value: Any) -> frozenset[int]:
    found = value if isinstance(value, list) else [value]
    return frozenset(end for end in found if isinstance(end, int))


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
