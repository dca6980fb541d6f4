"""All a person can set, with what it is where nothing is said."""

import ipaddress
from dataclasses import dataclass, field, replace
from pathlib import Path

import platformdirs

from app.errors import OpenDoor
from runtime.config import (
    DeviceChoice,
    DraftCacheChoice,
    DrafterChoice,
    DtypeChoice,
    EngineConfig,
    ModeChoice,
    Request,
    Sampling,
    Speculation,
)
from runtime.errors import InvalidSetting
from runtime.remote.config import RemoteConfig, parse_address

_HERE_ALONE = (
    *("draft_model", "device", "dtype", "mode", "hardware", "gpus", "threads", "gamma", "budget", "chunk_size"),
    *("retrieval", "drafter", "draft_cache", "plain"),
)  # what an engine elsewhere decides by itself
_SPECULATION, _SAMPLING, _REQUEST = Speculation(), Sampling(), Request()


@dataclass(frozen=True, slots=True)
class Settings:
    """One run's settings, checked at construction (`InvalidSetting`, or `OpenDoor` for an unguarded host).

    `context` None is what the model was trained for; `plain` is no speculation; `port` 0 takes a free one.
    """

    model: str = "starter"
    draft_model: str | None = None
    context: int | None = None
    device: DeviceChoice = "auto"
    dtype: DtypeChoice = "auto"
    mode: ModeChoice = "auto"
    hardware: Path | None = None
    gpus: int = 1
    engine: str | None = None
    engine_key: str | None = field(default=None, repr=False)
    threads: int | None = None
    gamma: int | None = _SPECULATION.gamma
    budget: int | None = _SPECULATION.budget
    chunk_size: int = _SPECULATION.chunk_size
    retrieval: bool = _SPECULATION.retrieval
    drafter: DrafterChoice = _SPECULATION.drafter
    draft_cache: DraftCacheChoice = _SPECULATION.draft_cache
    plain: bool = False
    temperature: float = _SAMPLING.temperature
    top_p: float = _SAMPLING.top_p
    top_k: int = _SAMPLING.top_k
    min_p: float = _SAMPLING.min_p
    repetition_penalty: float = _SAMPLING.repetition_penalty
    presence_penalty: float = _SAMPLING.presence_penalty
    frequency_penalty: float = _SAMPLING.frequency_penalty
    seed: int | None = None
    max_tokens: int = _REQUEST.max_tokens
    password: str | None = field(default=None, repr=False)
    data_dir: Path = field(default_factory=lambda: Path(platformdirs.user_data_dir("fullread", False)))
    host: str = "127.0.0.1"
    port: int = 7717
    api_key: str | None = field(default=None, repr=False)
    no_setup: bool = False

    def __post_init__(self) -> None:
        self.engine_config()
        self._check_engine()
        self.request()
        if not 0 <= self.port <= 65535:
            raise InvalidSetting("port", self.port, "0 (any free one) to 65535")
        if self.api_key is not None and not self.api_key.strip():
            raise InvalidSetting("api-key", self.api_key, "a key that is not blank")
        if not self.is_loopback and self.api_key is None:
            raise OpenDoor(self.host)

    def _check_engine(self) -> None:
        if self.engine is None:
            return
        parse_address(self.engine)
        if self.engine_key is not None and not (self.engine_key.isascii() and self.engine_key.isprintable()):
            raise InvalidSetting("engine-key", "(not shown)", "a key of plain characters")
        for name in _HERE_ALONE:
            if getattr(self, name) != Settings.__dataclass_fields__[name].default:
                raise InvalidSetting(name.replace("_", "-"), getattr(self, name), "nothing beside engine")

    @property
    def is_loopback(self) -> bool:
        """Whether `host` is reached from this machine only."""
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    @property
    def cache_dir(self) -> Path:
        """Where downloaded models are kept."""
        return Path(platformdirs.user_cache_dir("fullread", False))

    @property
    def needs_hub(self) -> bool:
        """Whether a model on the Hugging Face hub is asked for, so that the hub may be contacted."""
        return self.engine is None and any(_is_hub_id(model) for model in (self.model, self.draft_model) if model)

    def engine_config(self) -> EngineConfig:
        return EngineConfig(
            cache_dir=self.cache_dir,
            model=self.model,
            draft_model=self.draft_model,
            context=self.context,
            device=self.device,
            dtype=self.dtype,
            mode=self.mode,
            hardware=self.hardware,
            gpus=self.gpus,
            threads=self.threads,
            speculation=replace(
                _SPECULATION,
                gamma=self.gamma,
                budget=self.budget,
                chunk_size=self.chunk_size,
                retrieval=self.retrieval,
                drafter=self.drafter,
                draft_cache=self.draft_cache,
                enabled=not self.plain,
            ),
        )

    def remote_config(self) -> RemoteConfig | None:
        """The engine elsewhere, if one is named. The default model is no name of what runs there."""
        if self.engine is None:
            return None
        model = None if self.model == Settings.__dataclass_fields__["model"].default else self.model
        return RemoteConfig(parse_address(self.engine), self.cache_dir, model, self.context, self.engine_key)

    def sampling(self) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
        )

    def request(self) -> Request:
        return Request(sampling=self.sampling(), max_tokens=self.max_tokens)


def _is_hub_id(model: str) -> bool:
    return model != "starter" and not model.lower().endswith(".gguf") and not Path(model).exists()
