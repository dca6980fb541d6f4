"""Why the runtime cannot do something. Every error carries its numbers; words for people are made in the app."""


class EngineError(Exception):
    """Root of everything `runtime` raises on purpose."""


class InvalidSetting(EngineError):
    """A setting is outside what is allowed."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(name, value, allowed)
        self.name, self.value, self.allowed = name, value, allowed


class ModelNotFound(EngineError):
    """`source` is neither a folder, a `.gguf` file, `starter`, nor a model the hub gives."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(source, reason)
        self.source, self.reason = source, reason


class DownloadFailed(EngineError):
    """A download the person asked for did not complete."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason


class DiskFull(EngineError):
    """Too little free disk space at `path`."""

    def __init__(self, path: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(path, needed_bytes, free_bytes)
        self.path, self.needed_bytes, self.free_bytes = path, needed_bytes, free_bytes


class KvDiskFull(EngineError):
    """A KV cache that lies on the disk of `path` needs more of it than is free."""

    def __init__(self, path: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(path, needed_bytes, free_bytes)
        self.path, self.needed_bytes, self.free_bytes = path, needed_bytes, free_bytes


class ModelDamaged(EngineError):
    """A model file is not what it should be (hash, size, missing or misshapen tensor)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason


class UnsupportedModel(EngineError):
    """The architecture (or a named feature of it) is not supported; `supported` lists what is."""

    def __init__(self, name: str, supported: tuple[str, ...]) -> None:
        super().__init__(name, supported)
        self.name, self.supported = name, supported


class VocabularyMismatch(EngineError):
    """Target and draft model do not share one vocabulary, so drafts would mean other words."""

    def __init__(self, target: str, draft: str, reason: str) -> None:
        super().__init__(target, draft, reason)
        self.target, self.draft, self.reason = target, draft, reason


class ContextExceeded(EngineError):
    """Prompt and answer together do not fit. Nothing was computed."""

    def __init__(self, prompt_tokens: int, max_tokens: int, context: int) -> None:
        super().__init__(prompt_tokens, max_tokens, context)
        self.prompt_tokens, self.max_tokens, self.context = prompt_tokens, max_tokens, context


class OutOfMemory(EngineError):
    """The machine has too little memory for this model and context; `fitting_context` would fit, None where none is
    known to."""

    def __init__(self, needed_bytes: int, free_bytes: int, what: str, fitting_context: int | None = None) -> None:
        super().__init__(needed_bytes, free_bytes, what, fitting_context)
        self.needed_bytes, self.free_bytes, self.what = needed_bytes, free_bytes, what
        self.fitting_context = fitting_context


class MemoryRanOut(EngineError):
    """Memory ran out in the midst of an answer for up to `n_tokens`, and there is no other way to run the model."""

    def __init__(self, n_tokens: int, mode: str, free_bytes: int) -> None:
        super().__init__(n_tokens, mode, free_bytes)
        self.n_tokens, self.mode, self.free_bytes = n_tokens, mode, free_bytes


class NoSuchDevice(EngineError):
    """A device was asked for that this machine does not have."""

    def __init__(self, device: str, found: str) -> None:
        super().__init__(device, found)
        self.device, self.found = device, found


class HardwareRefused(EngineError):
    """The file that describes a machine cannot be read or makes no sense."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason


class ExtraMissing(EngineError):
    """`what` was asked for and needs `package`, which is not installed; the project's `extra` brings it."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(what, package, extra)
        self.what, self.package, self.extra = what, package, extra


class ServerError(EngineError):
    """Root of what is wrong with an engine elsewhere, at `url`."""

    def __init__(self, url: str, *particulars: object) -> None:
        super().__init__(url, *particulars)
        self.url = url


class ServerUnreachable(ServerError):
    """The server at `url` does not answer."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.reason = reason


class ServerKeyRefused(ServerError):
    """The server at `url` wants a key, or another one than was given."""

    def __init__(self, url: str, has_key: bool) -> None:
        super().__init__(url, has_key)
        self.has_key = has_key


class ServerRefused(ServerError):
    """The server at `url` did not do what it was asked for; `reason` are its own words."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(url, status, reason)
        self.status, self.reason = status, reason


class ServerLost(ServerError):
    """The connection to the server at `url` ended in the middle of an answer."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.reason = reason


class ServerModelUnclear(ServerError):
    """The server at `url` has several models or none, and `model` ("": none was named) is not among them."""

    def __init__(self, url: str, model: str, served: tuple[str, ...]) -> None:
        super().__init__(url, model, served)
        self.model, self.served = model, served


class TokenizerNeeded(ServerError):
    """The server at `url` has no tokenizer that leaves a document's text alone."""

    def __init__(self, url: str, model: str) -> None:
        super().__init__(url, model)
        self.model = model


class TokenizerDiffers(ServerError):
    """The server at `url` has other token ids for a text than the tokenizer of `named`."""

    def __init__(self, url: str, model: str, named: str) -> None:
        super().__init__(url, model, named)
        self.model, self.named = model, named


class ContextUnknown(ServerError):
    """The server at `url` does not say how many tokens it takes."""


class RivalFailed(EngineError):
    """Another implementation that is measured beside ours stopped, or cannot run the model."""

    def __init__(self, rival: str, reason: str) -> None:
        super().__init__(rival, reason)
        self.rival, self.reason = rival, reason


class TooFewGpus(EngineError):
    """A model was to be shared by `wanted` GPUs; there are `found` that can be used."""

    def __init__(self, wanted: int, found: int) -> None:
        super().__init__(wanted, found)
        self.wanted, self.found = wanted, found


class RankLost(EngineError):
    """One of the processes that share a model is gone, of `n_ranks`; the others were ended."""

    def __init__(self, rank: int, n_ranks: int, reason: str) -> None:
        super().__init__(rank, n_ranks, reason)
        self.rank, self.n_ranks, self.reason = rank, n_ranks, reason
