"""The engine: the only place that chooses implementations, and the one worker that owns the device."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from runtime.config import EngineConfig, Request, Speculation
from runtime.errors import ContextExceeded, HardwareRefused, InvalidSetting, VocabularyMismatch
from runtime.events import Event, Progress
from runtime.footprint import BUFFERED_LAYERS, Pair, layer_kv_bytes
from runtime.hardware import count_cores, free_bytes
from runtime.hardware_file import known_hardware
from runtime.kv.full import FullStore
from runtime.kv.host import HostStore
from runtime.memory import Placed, placed, plan, plan_longest
from runtime.models.decoder import Decoder
from runtime.models.load import Model, ModelFacts, load_model, packed_bytes, read_facts
from runtime.models.rope import longest_context, planned_length, rope_kind, stretch
from runtime.models.sources import Source, locate
from runtime.passes import pass_costs
from runtime.prefix import common_prefix
from runtime.session import Session
from runtime.tokenizer import Tokenizer
from runtime.ways import Mode, Plan

KEPT_SESSIONS = 2
STARTER_NOTE = (
    "The starter model has 135 million parameters: it shows that everything works. It finds a fact in about three "
    "pages, and is no reader of books; choose a larger model for real work."
)
PACKED_NOTE = (
    "Weights that are stored in four or eight bits answer in that form, rounded to bfloat16; --dtype float32 is exact."
)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a person should always be able to see. `context` is the most tokens of prompt and answer together; `placed`
    what was planned, None where the model runs elsewhere."""

    model: str
    architecture: str
    parameters: int
    mode: Mode
    mode_reason: str
    device: str
    dtype: str
    threads: int
    context: int
    trained_context: int
    draft_model: str | None
    notes: tuple[str, ...]
    placed: Placed | None = None


def assemble(config: EngineConfig, progress: Callable[[Progress], None]) -> "Engine":
    """Find, download where allowed, and load what `config` names; raises `EngineError`."""
    threads = config.threads or count_cores()
    torch.set_num_threads(threads)
    source = locate(config.model, config.cache_dir, config.allow_download, progress)
    draft_source = None
    if config.draft_model is not None:
        draft_source = locate(config.draft_model, config.cache_dir, config.allow_download, progress)
    facts = read_facts(source, config.cache_dir)
    draft_facts = read_facts(draft_source, config.cache_dir) if draft_source else None
    if draft_facts is not None:
        _check_vocabularies(config, facts.tokenizer, draft_facts.tokenizer)
    most = longest_context(facts.config, facts.spec.trained_context)
    if config.context is not None and config.context > most:
        raise InvalidSetting("context", config.context, f"at most {most:,} tokens with this model")
    place = _planned(config, pair_of(source, facts, draft_source, draft_facts), most)
    chosen = place.chosen
    packs = config.wishes.packs
    target = load_model(source, facts, chosen.dtype, chosen.device, progress, packs)
    target = _measured(target, source, config, threads)
    draft = None
    if draft_source is not None and draft_facts is not None:
        draft = load_model(draft_source, draft_facts, chosen.dtype, chosen.device, progress, packs)
        draft = _measured(draft, draft_source, config, threads)
    described = EngineFacts(
        model=source.name,
        architecture=facts.spec.architecture,
        parameters=facts.spec.n_parameters,
        mode=chosen.mode,
        mode_reason=chosen.reason,
        device=str(chosen.device),
        dtype=str(chosen.dtype).removeprefix("torch."),
        threads=threads,
        context=chosen.context,
        trained_context=facts.spec.trained_context,
        draft_model=draft_source.name if draft_source else None,
        notes=_notes(source, target.decoder),
        placed=place,
    )
    return Engine(described, target, draft, config.speculation, chosen)


def _notes(source: Source, decoder: Decoder) -> tuple[str, ...]:
    is_packed = decoder.precision != decoder.dtype
    return (STARTER_NOTE,) * (source.kind == "starter") + (PACKED_NOTE,) * is_packed


def pair_of(source: Source, facts: ModelFacts, draft_source: Source | None, draft_facts: ModelFacts | None) -> Pair:
    """What a plan must know of two models that were found."""
    packed = packed_bytes(source, facts)
    if draft_source is None or draft_facts is None:
        return Pair(facts.spec, packed_bytes=packed)
    return Pair(facts.spec, draft_facts.spec, packed, packed_bytes(draft_source, draft_facts))


def _planned(config: EngineConfig, pair: Pair, most: int) -> Placed:
    """What runs here; raises `HardwareRefused` where that is planned for a card that is in a file alone."""
    hardware = known_hardware(config.hardware, config.cache_dir)
    if config.context is None:
        chosen = plan_longest(hardware, pair, most, config.wishes)
    else:
        chosen = plan(hardware, pair, config.context, config.wishes)
    if config.hardware is not None and chosen.device.type == "cuda" and not torch.cuda.is_available():
        raise HardwareRefused(str(config.hardware), "it describes a GPU that this machine does not have")
    return placed(chosen, hardware, pair, config.wishes)


def _measured(model: Model, source: Source, config: EngineConfig, threads: int) -> Model:
    return replace(model, passes=pass_costs(model.decoder, str(source.path), config.cache_dir, threads))


def _check_vocabularies(config: EngineConfig, target: Tokenizer, draft: Tokenizer) -> None:
    ours, theirs = target.vocabulary, draft.vocabulary
    if ours == theirs:
        return
    differing = sum(ours.get(token) != index for token, index in theirs.items())
    reason = f"{len(ours):,} and {len(theirs):,} tokens, of which {differing:,} differ"
    raise VocabularyMismatch(config.model, str(config.draft_model), reason)


class Engine:
    """Answers prompts one at a time, in the order they came, keeping the KV of the last ones."""

    def __init__(
        self, facts: EngineFacts, target: Model, draft: Model | None, speculation: Speculation, chosen: Plan
    ) -> None:
        self.facts = facts
        self._plan = chosen
        self.tokenizer = target.tokenizer
        self._target, self._draft = target, draft
        self._speculation = speculation
        self._sessions: list[Session] = []  # the one used last comes last
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._work, name="fullread-engine", daemon=True)
        self._worker.start()

    def rope_note(self, n_tokens: int) -> str | None:
        """What to tell a person about a sequence longer than the model was trained on; None where there is nothing."""
        trained = self.facts.trained_context
        factor = stretch(n_tokens, self._target.config, trained)
        if factor == 1 or n_tokens <= trained:
            return None
        kind = "YaRN" if rope_kind(self._target.config) == "default" else "Dynamic scaling"
        return f"{kind} x{factor:g} is on: {n_tokens:,} tokens are more than the {trained:,} the model was trained on."

    def answer(self, ids: Sequence[int], request: Request, cancel: threading.Event) -> Iterator[Event]:
        """`Progress` while prefilling, `Emission` while decoding, one `Finished` last.

        What an earlier prompt and its answer have in common with `ids` from the first id on is not prefilled again.
        Setting `cancel`, or closing the iterator, ends the work within one prompt block or one round.
        Raises `ContextExceeded` at once, before any work.
        """
        if not ids:
            raise InvalidSetting("prompt", "", "at least one token")
        if len(ids) + request.max_tokens > self.facts.context:
            raise ContextExceeded(len(ids), request.max_tokens, self.facts.context)
        job = _Job(list(ids), request, cancel, time.perf_counter(), queue.SimpleQueue())
        self._jobs.put(job)
        return _events(job)

    def new_session(self, n_tokens: int, full: FullStore | None = None, bus: float | None = None) -> Session:
        """An empty session for sequences of up to `n_tokens`, or more where that costs nothing. `full` and `bus` as for
        `Session`, None as planned."""
        planned = planned_length(n_tokens, self._target.config, self.facts.trained_context)
        return Session(
            self._target, self._draft, self._speculation, planned, full or self._new_store(), bus or self._plan.bus
        )

    @property
    def kv_shape(self) -> tuple[int, int, int, torch.dtype, torch.device]:
        """What a store for the target's KV cache is made for."""
        decoder, spec = self._target.decoder, self._target.spec
        return spec.n_layers, spec.n_kv_heads, spec.head_dim, decoder.dtype, decoder.device

    def _new_store(self) -> FullStore:
        """For the target's KV cache, where the plan wants it."""
        if self._plan.mode == "offload":
            return HostStore(*self.kv_shape, self._plan.layers_on_gpu)
        return FullStore(*self.kv_shape)

    def close(self) -> None:
        """Let the running answer end and the worker stop."""
        self._jobs.put(None)
        self._worker.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                session = self._session_for(job.ids, len(job.ids) + job.request.max_tokens)
                for event in session.answer(job.ids, job.request, job.cancel, job.asked_at):
                    job.events.put(event)
                job.events.put(None)
            except BaseException as error:  # the consumer's thread raises it
                job.events.put(error)

    def _session_for(self, ids: list[int], n_tokens: int) -> Session:
        """The session that shares most of the prompt, or a new one when none shares enough."""
        factor = self._factor(n_tokens)
        best, shared = None, 0
        for session in self._sessions:
            common = common_prefix(session.tokens, ids)
            if common > shared and self._factor(session.n_tokens) >= factor:
                best, shared = session, common
        if best is not None and 2 * shared >= min(len(best.tokens), len(ids)):
            self._sessions.remove(best)
        else:
            self._make_room(n_tokens)
            best = self.new_session(n_tokens)
        self._sessions.append(best)
        del self._sessions[:-KEPT_SESSIONS]
        return best

    def _make_room(self, n_tokens: int) -> None:
        """Let go of kept sessions, the oldest first, while a new one of `n_tokens` would not fit beside them."""
        decoder = self._target.decoder
        layer_bytes = n_tokens * layer_kv_bytes(decoder.spec, decoder.dtype)
        n_here, n_beside = decoder.spec.n_layers, 0
        if self._plan.mode == "offload":
            n_here, n_beside = self._plan.layers_on_gpu + BUFFERED_LAYERS, n_here - self._plan.layers_on_gpu
        needed = ((decoder.device, n_here), (torch.device("cpu"), n_beside))
        while self._sessions and any(n_layers * layer_bytes > free_bytes(device) for device, n_layers in needed):
            del self._sessions[0]

    def _factor(self, n_tokens: int) -> float:
        return stretch(n_tokens, self._target.config, self.facts.trained_context)


@dataclass(frozen=True, slots=True)
class _Job:
    ids: list[int]
    request: Request
    cancel: threading.Event
    asked_at: float
    events: "queue.SimpleQueue[Event | BaseException | None]"


def _events(job: _Job) -> Iterator[Event]:
    try:
        while (event := job.events.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event
    finally:
        job.cancel.set()
