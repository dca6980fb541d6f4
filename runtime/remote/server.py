"""What a server is, which models it has, and what it takes: found out by asking it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runtime.errors import ContextUnknown, InvalidSetting, ServerModelUnclear
from runtime.remote.config import RemoteConfig
from runtime.remote.connection import Connection

Kind = Literal["vLLM", "SGLang", "llama.cpp", "llama-cpp-python", "other"]
_OWNERS: dict[object, Kind] = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "me": "llama-cpp-python"}


@dataclass(frozen=True, slots=True)
class Served:
    """A model behind a server. `context` None where the server does not say it."""

    kind: Kind
    model: str
    context: int | None


def find_served(connection: Connection, config: RemoteConfig) -> Served:
    """The model that `config` names, or the only one there is.

    Raises `ServerUnreachable`, `ServerKeyRefused`, `ServerRefused`, `ServerModelUnclear`.
    """
    reply = connection.get("/v1/models")
    entries = reply.data.get("data") if isinstance(reply.data, dict) else None
    if reply.status != 200 or not isinstance(entries, list):
        raise connection.refused(reply.status, reply.text)
    models = {str(entry["id"]): entry for entry in entries if isinstance(entry, dict) and "id" in entry}
    name = config.model if config.model in models else next(iter(models)) if len(models) == 1 else None
    if name is None:
        raise ServerModelUnclear(str(config.address), config.model or "", tuple(models))
    kind = _OWNERS.get(models[name].get("owned_by"), "other")
    return Served(kind, name, _context(connection, kind, models[name]))


def _context(connection: Connection, kind: Kind, entry: dict[str, Any]) -> int | None:
    if kind == "llama.cpp":
        data = connection.get("/props").data
        said = data.get("default_generation_settings", {}).get("n_ctx") if isinstance(data, dict) else None
    else:
        said = entry.get("max_model_len")
    return said if isinstance(said, int) and said > 0 else None


def context_of(served: Served, config: RemoteConfig) -> int:
    """The most tokens of prompt and answer together; raises `ContextUnknown`, `InvalidSetting`."""
    if served.context is None:
        if config.context is None:
            raise ContextUnknown(str(config.address))
        return config.context
    if config.context is not None and config.context > served.context:
        raise InvalidSetting("context", config.context, f"at most {served.context:,} tokens with this server")
    return config.context or served.context


def takes_ids(connection: Connection, served: Served, ids: Sequence[int]) -> bool:
    """Whether the server reads a list of token ids as one prompt, and counts as many tokens as it holds.

    Asked with one token of an answer; raises what refuses any prompt at all.
    """
    body: dict[str, object] = {"model": served.model, "prompt": list(ids), "max_tokens": 1, "temperature": 0}
    reply = connection.post("/v1/completions", body)
    if reply.status == 200:
        usage = reply.data.get("usage") if isinstance(reply.data, dict) else None
        return isinstance(usage, dict) and usage.get("prompt_tokens") == len(ids)
    if reply.status in (400, 422, 500):
        return False
    raise connection.refused(reply.status, reply.text)


def tokens_of(connection: Connection, served: Served, text: str) -> list[int] | None:
    """The server's own ids for `text`, control tokens' names in it read as such where it knows no other way.

    None where it has no tokenizer endpoint.
    """
    if served.kind == "llama-cpp-python":
        reply = connection.post("/extras/tokenize", {"model": served.model, "input": text})
    elif served.kind == "llama.cpp":
        reply = connection.post("/tokenize", {"content": text, "add_special": False, "parse_special": False})
    else:
        reply = connection.post("/tokenize", {"model": served.model, "prompt": text, "add_special_tokens": False})
    ids = reply.data.get("tokens") if reply.status == 200 and isinstance(reply.data, dict) else None
    return ids if isinstance(ids, list) and all(isinstance(token, int) for token in ids) else None
