"""Frozen values that say what to run and how, checked at construction."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from runtime.errors import InvalidSetting

DeviceChoice = Literal["auto", "cpu", "cuda"]
DtypeChoice = Literal["auto", "float32", "bfloat16", "float16"]
DrafterChoice = Literal["auto", "none", "lookup", "model", "merged"]
DraftCacheChoice = Literal["streaming", "retrieval"]
ModeChoice = Literal["auto", "gpu", "offload", "cpu"]
LONGEST_DRAFT = 64
GAMMA = 6  # tokens drafted for a pass that costs more for each: arXiv 2404.11912, table 8
DRAFT_CHUNK = 32  # tokens in a row of what a draft model reads of the document


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise InvalidSetting(name, value, allowed)


@dataclass(frozen=True, slots=True)
class Sampling:
    """The chain from logits to probabilities, the same for target and drafts.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0, `repetition_penalty` 1 and the other penalties 0 switch
    a step off. The repetition penalty counts prompt and answer; presence and frequency penalty, as OpenAI defines
    them, the answer alone. `logit_bias` pairs token ids with what is added to their logits. `seed` None draws a fresh
    one for each answer.
    """

    temperature: float = 0.6
    top_k: int = 0
    top_p: float = 0.9
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        _require(0 <= self.temperature <= 5, "temperature", self.temperature, "0 to 5")
        _require(self.top_k >= 0, "top-k", self.top_k, "0 (off) or more")
        _require(0 < self.top_p <= 1, "top-p", self.top_p, "above 0, at most 1")
        _require(0 <= self.min_p < 1, "min-p", self.min_p, "0 to below 1")
        _require(0.1 <= self.repetition_penalty <= 10, "repetition-penalty", self.repetition_penalty, "0.1 to 10")
        _require(-2 <= self.presence_penalty <= 2, "presence-penalty", self.presence_penalty, "-2 to 2")
        _require(-2 <= self.frequency_penalty <= 2, "frequency-penalty", self.frequency_penalty, "-2 to 2")
        for token, bias in self.logit_bias:
            _require(token >= 0, "logit-bias", token, "token ids")
            _require(-100 <= bias <= 100, "logit-bias", bias, "-100 to 100")
        biased = [token for token, _ in self.logit_bias]
        _require(len(set(biased)) == len(biased), "logit-bias", biased, "each token id once")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def counts_sequence(self) -> bool:
        """Whether it matters which tokens stand in prompt and answer so far."""
        return self.repetition_penalty != 1

    @property
    def counts_answer(self) -> bool:
        """Whether it matters how often each token stands in the answer so far."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class Speculation:
    """The hierarchy. At most `gamma` tokens are drafted per target pass, None for `GAMMA`, or as many as pay where such
    passes wait for the full cache anyway; `inner_gamma` per retrieval pass. Where lookup finds a long passage being
    copied it may draft up to `LONGEST_DRAFT` for the target.

    `budget` = tokens per layer and KV head in the retrieval cache, in chunks of `chunk_size`, None as many as suit the
    prompt; `sinks` + `window` bound the draft model's cache. `enabled` False is plain decoding.

    `retrieval` False leaves the retrieval level out. `drafter` is what drafts below it, or for the full cache without
    it; "merged" is lookup where it finds a long match, else the draft model, and "auto" is that where there is a
    draft model, else lookup. Beside the newest tokens the draft model sees the start of the text ("streaming", as in
    StreamingLLM) or as much of it in chunks that the target's attention chooses ("retrieval", as in SpecExtend).
    """

    gamma: int | None = None
    inner_gamma: int = 2
    budget: int | None = None
    chunk_size: int = 8
    sinks: int = 16
    window: int = 240
    enabled: bool = True
    retrieval: bool = True
    drafter: DrafterChoice = "auto"
    draft_cache: DraftCacheChoice = "streaming"

    def __post_init__(self) -> None:
        gamma_allowed = self.gamma is None or 0 <= self.gamma <= LONGEST_DRAFT
        _require(gamma_allowed, "gamma", self.gamma, f"0 to {LONGEST_DRAFT}")
        _require(0 <= self.inner_gamma <= LONGEST_DRAFT, "inner-gamma", self.inner_gamma, f"0 to {LONGEST_DRAFT}")
        _require(1 <= self.chunk_size <= 4096, "chunk-size", self.chunk_size, "1 to 4096")
        has_chunks = self.budget is None or self.budget >= 2 * self.chunk_size
        _require(has_chunks, "budget", self.budget, "at least two chunks")
        _require(self.sinks >= 0 and self.window >= 1, "window", self.window, "at least 1")
        _require(self.drafter in get_args(DrafterChoice), "drafter", self.drafter, ", ".join(get_args(DrafterChoice)))
        caches = get_args(DraftCacheChoice)
        _require(self.draft_cache in caches, "draft-cache", self.draft_cache, " or ".join(caches))

    @property
    def drafts(self) -> bool:
        return self.enabled and self.gamma != 0

    def most_drafted(self, streams: bool) -> int:
        """Tokens drafted per target pass at most; `streams`: whether the full cache crosses a bus in each."""
        if self.gamma is not None:
            return self.gamma
        return LONGEST_DRAFT if streams else GAMMA

    def budget_for(self, n_tokens: int) -> int:
        """The budget for a sequence of `n_tokens`. Of the starter's 32,768, 2,048 drafted best; of 16,384, 1,024 and
        2,048 alike; TriForce takes 4,096 of 122,880 (arXiv 2404.11912, figure 6)."""
        return self.budget or max(1024, self.chunk_size * 2, min(4096, n_tokens // 16))

    @property
    def draft_sinks(self) -> int:
        """Tokens that the draft model's cache holds besides its window."""
        if self.draft_cache == "streaming":
            return self.sinks
        return max(2, (self.sinks + self.window) // DRAFT_CHUNK) * DRAFT_CHUNK

    def chosen_drafter(self, has_draft_model: bool) -> DrafterChoice:
        """What "auto" stands for; raises `InvalidSetting` for a drafter that needs a draft model without one."""
        if self.drafter == "auto":
            return "merged" if has_draft_model else "lookup"
        needs_model = self.drafter in ("model", "merged")
        allowed = "auto, none or lookup, unless a draft model is named (draft-model)"
        _require(has_draft_model or not needs_model, "drafter", self.drafter, allowed)
        return self.drafter


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person says about where and how a model runs; "auto" leaves it to the plan. `gpus` share the model."""

    device: DeviceChoice = "auto"
    dtype: DtypeChoice = "auto"
    mode: ModeChoice = "auto"
    speculation: Speculation = field(default_factory=Speculation)
    gpus: int = 1

    def __post_init__(self) -> None:
        _require(self.gpus >= 1, "gpus", self.gpus, "at least 1")
        on_processor = "cpu" in (self.device, self.mode)
        _require(self.gpus == 1 or not on_processor, "gpus", self.gpus, "1 on the CPU")
        _require(self.mode in get_args(ModeChoice), "mode", self.mode, ", ".join(get_args(ModeChoice)))
        on_card, device = self.mode in ("gpu", "offload"), self.device
        agree = device == "auto" or self.mode == "auto" or on_card == (device == "cuda")
        _require(agree, "mode", self.mode, f"one that runs on the device {device}")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Which model, where and how. `context` None = what the model was trained for.

    `cache_dir` holds downloaded models. `allow_download` False turns a missing model into an error. `hardware` is a
    file that describes the machine in place of what is found (`runtime.hardware_file`). `gpus` cards share the heads.
    """

    cache_dir: Path
    model: str = "starter"
    draft_model: str | None = None
    context: int | None = None
    device: DeviceChoice = "auto"
    dtype: DtypeChoice = "auto"
    threads: int | None = None
    speculation: Speculation = field(default_factory=Speculation)
    allow_download: bool = True
    mode: ModeChoice = "auto"
    hardware: Path | None = None
    gpus: int = 1

    def __post_init__(self) -> None:
        _require(self.context is None or self.context >= 64, "context", self.context, "at least 64 tokens")
        _require(self.threads is None or self.threads >= 1, "threads", self.threads, "at least 1")
        self.speculation.chosen_drafter(self.draft_model is not None)
        _ = self.wishes  # which checks them

    @property
    def wishes(self) -> Wishes:
        return Wishes(self.device, self.dtype, self.mode, self.speculation, self.gpus)


@dataclass(frozen=True, slots=True)
class Request:
    """One question put to the engine: how to sample, when to stop.

    `stop` strings end the answer and are not part of it. `evidence_spans` are the prompt token ranges
    `[start, end)` (document pages) over which attention is recorded; empty records nothing. `logprobs` N gives each
    token's log-probability and the N most probable alternatives; None computes nothing.
    """

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    evidence_spans: tuple[tuple[int, int], ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _require(self.max_tokens >= 1, "max-tokens", self.max_tokens, "at least 1")
        _require(all(self.stop), "stop", self.stop, "non-empty strings")
        _require(self.logprobs is None or self.logprobs >= 0, "logprobs", self.logprobs, "0 or more")
