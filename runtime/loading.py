"""Models found, and loaded in the best way that works: on from one way to the next where memory runs out."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from runtime.config import EngineConfig
from runtime.errors import HardwareRefused, InvalidSetting, OutOfMemory, VocabularyMismatch
from runtime.events import Progress
from runtime.footprint import Pair
from runtime.hardware import Hardware, free_bytes, is_out_of_memory, release_cached
from runtime.hardware_file import known_hardware
from runtime.kv.copying import CopyStream, copy_stream
from runtime.memory import Placed, placed, plan, plan_longest, worse
from runtime.models.load import Model, ModelFacts, load_model, packed_bytes, read_facts
from runtime.models.rope import longest_context
from runtime.models.sources import Source, locate
from runtime.parallel.collective import Backend
from runtime.parallel.start import Shared, load_shared
from runtime.passes import pass_costs
from runtime.plan import Plan
from runtime.stores import OWN, Stores
from runtime.tokenizer import Tokenizer

STARTER_NOTE = (
    "The starter model has 135 million parameters: it shows that everything works. It finds a fact in about three "
    "pages, and is no reader of books; choose a larger model for real work."
)

Report = Callable[[Progress], None]


def _nothing() -> None:
    """All is in this process."""


@dataclass(frozen=True, slots=True)
class Found:
    """A model that is on the disk."""

    source: Source
    facts: ModelFacts


@dataclass(frozen=True, slots=True)
class Loaded:
    """The models, loaded as a plan says; `notes` are what a person must be told of them, `placed` the ways beside.

    `stores` makes what holds the target's keys and values; `release` lets go of other processes that hold its parts.
    """

    plan: Plan
    target: Model
    draft: Model | None = None
    notes: tuple[str, ...] = ()
    placed: Placed | None = None
    stores: Stores = OWN
    release: Callable[[], None] = _nothing

    @property
    def dtype_name(self) -> str:
        return str(self.plan.dtype).removeprefix("torch.")


NextWay = Callable[[Loaded, int, Report], Loaded | None]
"""The next worse way than one that ran out of memory, for sequences of so many tokens; None where there is none."""


def find(config: EngineConfig, threads: int, progress: Report, backend: Backend = "nccl") -> "Loader":
    """What `config` names, downloaded where allowed; raises `EngineError`. `backend` as for `assemble`."""
    target = _find(config, config.model, progress)
    draft = _find(config, config.draft_model, progress) if config.draft_model is not None else None
    if draft is not None:
        _check_vocabularies(config, target.facts.tokenizer, draft.facts.tokenizer)
    return Loader(config, target, draft, threads, backend)


def _find(config: EngineConfig, model: str, progress: Report) -> Found:
    source = locate(model, config.cache_dir, config.allow_download, progress)
    return Found(source, read_facts(source, config.cache_dir))


class Loader:
    """Loads a target and its draft model, in one way after another."""

    def __init__(
        self, config: EngineConfig, target: Found, draft: Found | None, threads: int, backend: Backend
    ) -> None:
        self.target, self.draft = target, draft
        self._config, self._threads, self._backend = config, threads, backend
        self._wishes = config.wishes
        if config.gpus > 1 and backend == "gloo":
            self._wishes = replace(config.wishes, gpus=1, device="cpu")
        drafts = (draft.source, draft.facts) if draft is not None else (None, None)
        self._pair = pair_of(target.source, target.facts, *drafts)

    def first(self, progress: Report) -> Loaded:
        """In the best way that fits, by the plan and in truth; raises `EngineError`."""
        best = self._planned()
        chosen = best.chosen
        try:
            return self._load(best, progress)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        following = self._next(chosen, chosen.context, progress, None)
        if following is None:
            raise OutOfMemory(chosen.bytes.total, free_bytes(chosen.device), f"the model in mode {chosen.name}")
        return following

    def next(self, loaded: Loaded, n_tokens: int, progress: Report) -> Loaded | None:
        """In the next worse way that fits `n_tokens` now and as wished; weights that lie right stay where they are."""
        return self._next(loaded.plan, n_tokens, progress, loaded)

    def _next(self, failed: Plan, n_tokens: int, progress: Report, loaded: Loaded | None) -> Loaded | None:
        hardware, wishes = self._hardware(loaded), self._wishes
        for way in worse(hardware, self._pair, n_tokens, wishes, failed):
            if way.is_on_disk and self._config.gpus > 1:
                continue  # the ranks of a team hold their parts in memory
            place = placed(way, hardware, self._pair, wishes)
            release_cached()
            try:
                if loaded is not None and (loaded.plan.device, loaded.plan.dtype) == (way.device, way.dtype):
                    return self._from_there(loaded, place)
                return self._load(place, progress)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
        return None

    def _from_there(self, loaded: Loaded, place: Placed) -> Loaded:
        """The models where they are, but for weights of the target that are to be streamed."""
        target = loaded.target
        if place.chosen.streamed.weights and not loaded.plan.streamed.weights:
            streaming = replace(target, decoder=target.decoder.streaming())
            target = self._measured(streaming, self.target.source, OWN)
        return replace(loaded, plan=place.chosen, target=target, placed=place)

    def _hardware(self, loaded: Loaded | None) -> Hardware:
        """What there is, with what the loaded models take of it counted as free."""
        hardware = known_hardware(self._config.hardware, self._config.cache_dir)
        if loaded is None or self._config.hardware is not None:
            return hardware
        held = loaded.plan.bytes.weights + loaded.plan.bytes.draft
        if loaded.plan.device.type == "cpu":
            return replace(hardware, ram_free_bytes=hardware.ram_free_bytes + held)
        used = hardware.used_gpus[: loaded.plan.n_gpus]
        cards = tuple(
            replace(card, free_bytes=card.free_bytes + held) if card in used else card for card in hardware.gpus
        )
        return replace(hardware, gpus=cards)

    def _load(self, place: Placed, progress: Report) -> Loaded:
        chosen, source = place.chosen, self.target.source
        if self._config.gpus > 1:
            shared = self._shared(chosen, progress)
            model, stores, release = shared.model, shared.stores, shared.team.close
            loaded = Loaded(chosen, model, None, _notes(source), place, stores, release)
        else:
            stream = copy_stream(chosen.device) if chosen.streamed.weights else None
            model = self._model(self.target, chosen, progress, stream)
            loaded = Loaded(chosen, model, None, _notes(source), place)
        try:
            target = self._measured(loaded.target, source, loaded.stores)
            return replace(loaded, target=target, draft=self._loaded_draft(chosen, progress))
        except BaseException:
            loaded.release()
            raise

    def _loaded_draft(self, chosen: Plan, progress: Report) -> Model | None:
        if self.draft is None:
            return None
        return self._measured(self._model(self.draft, chosen, progress), self.draft.source, OWN)

    def _shared(self, chosen: Plan, progress: Report) -> Shared:
        source, facts = self.target.source, self.target.facts
        return load_shared(source, facts, chosen.dtype, self._config.gpus, self._threads, progress, self._backend)

    def _model(self, found: Found, chosen: Plan, progress: Report, stream: CopyStream | None = None) -> Model:
        return load_model(found.source, found.facts, chosen.dtype, chosen.device, progress, stream)

    def _measured(self, model: Model, source: Source, stores: Stores) -> Model:
        costs = pass_costs(model.decoder, str(source.path), self._config.cache_dir, self._threads, stores)
        return replace(model, passes=costs)

    def _planned(self) -> Placed:
        """What runs here; raises `HardwareRefused` where that is planned for a card that is in a file alone."""
        config, facts = self._config, self.target.facts
        most = longest_context(facts.config, facts.spec.trained_context)
        if config.context is not None and config.context > most:
            raise InvalidSetting("context", config.context, f"at most {most:,} tokens with this model")
        hardware = known_hardware(config.hardware, config.cache_dir)
        if config.context is None:
            chosen = plan_longest(hardware, self._pair, most, self._wishes)
        else:
            chosen = plan(hardware, self._pair, config.context, self._wishes)
        if config.hardware is not None and chosen.device.type == "cuda" and torch.cuda.device_count() < chosen.n_gpus:
            raise HardwareRefused(str(config.hardware), "it describes a GPU that this machine does not have")
        return placed(chosen, hardware, self._pair, self._wishes)


def _notes(source: Source) -> tuple[str, ...]:
    return (STARTER_NOTE,) * (source.kind == "starter")


def pair_of(source: Source, facts: ModelFacts, draft_source: Source | None, draft_facts: ModelFacts | None) -> Pair:
    """What a plan must know of two models that were found."""
    packed = packed_bytes(source, facts)
    if draft_source is None or draft_facts is None:
        return Pair(facts.spec, packed_bytes=packed)
    return Pair(facts.spec, draft_facts.spec, packed, packed_bytes(draft_source, draft_facts))


def _check_vocabularies(config: EngineConfig, target: Tokenizer, draft: Tokenizer) -> None:
    ours, theirs = target.vocabulary, draft.vocabulary
    if ours == theirs:
        return
    differing = sum(ours.get(token) != index for token, index in theirs.items())
    reason = f"{len(ours):,} and {len(theirs):,} tokens, of which {differing:,} differ"
    raise VocabularyMismatch(config.model, str(config.draft_model), reason)
