"""The engine: the only place that chooses implementations, and the one worker that owns the device."""

import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from runtime.answer import Answer
from runtime.apart import apart
from runtime.config import EngineConfig, Request, Speculation
from runtime.errors import ContextExceeded, InvalidSetting, KvDiskFull, MemoryRanOut
from runtime.events import Event, Notice, Progress
from runtime.footprint import BUFFERED_LAYERS, layer_kv_bytes
from runtime.hardware import count_cores, free_bytes, is_out_of_memory, release_cached
from runtime.kv.full import FullStore
from runtime.kv.mapped import MappedStore, free_disk_bytes
from runtime.loading import Loaded, NextWay, find
from runtime.memory import Placed
from runtime.models.rope import planned_length, rope_kind, stretch
from runtime.parallel.collective import Backend
from runtime.plan import Mode
from runtime.prefix import common_prefix
from runtime.session import Session
from runtime.stores import Shape, kv_shape

KEPT_SESSIONS = 2


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


def assemble(config: EngineConfig, progress: Callable[[Progress], None], backend: Backend = "nccl") -> "Engine":
    """Find, download where allowed, and load what `config` names; raises `EngineError`.

    `backend` joins the processes that share a model: by "gloo" they do without GPUs.
    """
    threads = config.threads or max(1, count_cores() // config.gpus)
    torch.set_num_threads(threads)
    loader = find(config, threads, progress, backend)
    loaded = apart(loader.first, progress)
    facts = loader.target.facts
    described = EngineFacts(
        model=loader.target.source.name,
        architecture=facts.spec.architecture,
        parameters=facts.spec.n_parameters,
        mode=loaded.plan.mode,
        mode_reason=loaded.plan.reason,
        device=str(loaded.plan.device),
        dtype=loaded.dtype_name,
        threads=threads,
        context=loaded.plan.context,
        trained_context=facts.spec.trained_context,
        draft_model=loader.draft.source.name if loader.draft else None,
        notes=loaded.notes,
        placed=loaded.placed,
    )
    return Engine(described, loaded, config.speculation, loader.next, config.cache_dir)


class Engine:
    """Answers prompts one at a time, in the order they came, keeping the KV of the last ones."""

    def __init__(
        self,
        facts: EngineFacts,
        loaded: Loaded,
        speculation: Speculation,
        next_way: NextWay,
        folder: Path | None = None,
    ) -> None:
        """`next_way` loads what to go on with where memory runs out. A KV cache on disk lies in `folder`, None: the
        system's own for temporary files."""
        self.facts = facts
        self.tokenizer = loaded.target.tokenizer
        self._loaded, self._next_way = loaded, next_way
        self._speculation = speculation
        self._folder = folder or Path(tempfile.gettempdir())
        self._sessions: list[Session] = []  # the one used last comes last
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._work, name="fullread-engine", daemon=True)
        self._worker.start()

    def rope_note(self, n_tokens: int) -> str | None:
        """What to tell a person about a sequence longer than the model was trained on; None where there is nothing."""
        trained = self.facts.trained_context
        factor = stretch(n_tokens, self._loaded.target.config, trained)
        if factor == 1 or n_tokens <= trained:
            return None
        kind = "YaRN" if rope_kind(self._loaded.target.config) == "default" else "Dynamic scaling"
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
        loaded = self._loaded
        planned = planned_length(n_tokens, loaded.target.config, self.facts.trained_context)
        full = full or self._new_store()
        bus, speculation = bus or loaded.plan.bus, self._speculation
        return Session(loaded.target, loaded.draft, speculation, planned, full, bus, loaded.stores)

    @property
    def kv_shape(self) -> Shape:
        """What a store for the target's KV cache is made for."""
        return kv_shape(self._loaded.target.decoder)

    def _new_store(self) -> FullStore:
        """For the target's KV cache, where the plan wants it."""
        loaded = self._loaded
        if loaded.plan.is_on_disk:
            return MappedStore(*self.kv_shape, self._folder, loaded.target.spec.windows)
        return loaded.stores.full(loaded.target.decoder, loaded.plan.n_on_device)

    def close(self) -> None:
        """Let the running answer end and the worker stop."""
        self._jobs.put(None)
        self._worker.join()
        self._loaded.release()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                for event in self._answer(job):
                    job.events.put(event)
                job.events.put(None)
            except BaseException as error:  # the consumer's thread raises it
                job.events.put(error)

    def _answer(self, job: "_Job") -> Iterator[Event]:
        """The events of an answer, through whatever memory it takes.

        Where that runs out, all is let go but the tokens of this question, and it is tried once more; then the next
        worse way goes on behind what has been emitted. Raises `MemoryRanOut` where there is none, and `KvDiskFull`.
        """
        answer = Answer(self.tokenizer.decode, self._loaded.target.tokenizer.eos_ids, job.request)
        n_tokens = len(job.ids) + job.request.max_tokens
        session, was_tried = None, False
        while True:
            try:
                session = session or self._session_for(job.ids + answer.ids, n_tokens)
                yield from session.answer(job.ids, job.request, job.cancel, job.asked_at, answer)
                return
            except (MemoryError, RuntimeError, KvDiskFull) as error:
                if not is_out_of_memory(error) or (was_tried and isinstance(error, KvDiskFull)):
                    raise
            # Out of the handler, whose error holds the frames of the pass and all their tensors.
            self._let_go_beside(session)
            if was_tried:
                session = None
                yield self._fall(n_tokens, len(answer.ids), job.events.put)
            was_tried = not was_tried

    def _let_go_beside(self, session: Session | None) -> None:
        """Keep nothing but the tokens of this session."""
        self._sessions = [kept for kept in self._sessions if kept is session]
        if session is not None:
            session.let_go()
        release_cached()

    def _fall(self, n_tokens: int, n_emitted: int, progress: Callable[[Progress], None]) -> Notice:
        """Go over to the next way for `n_tokens`, and say so; raises `MemoryRanOut`."""
        before = self._loaded.plan
        self._sessions.clear()
        release_cached()
        loaded = self._next_way(self._loaded, n_tokens, progress)
        if loaded is None:
            raise MemoryRanOut(n_tokens, before.name, free_bytes(self._loaded.target.decoder.device))
        self._loaded, now = loaded, loaded.plan
        release_cached()
        self.facts = replace(
            self.facts,
            mode=now.mode,
            mode_reason=f"Memory ran out before ({before.name}). {now.reason}",
            device=str(now.device),
            dtype=loaded.dtype_name,
            notes=loaded.notes,
            placed=loaded.placed,
        )
        return Notice(
            f"Memory ran out in mode {before.name} after {n_emitted:,} tokens of this answer, so it went on in mode "
            f"{now.name}, and so will the next: {now.reason}"
        )

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
        plan, decoder = self._loaded.plan, self._loaded.target.decoder
        layer_bytes = n_tokens * layer_kv_bytes(decoder.spec, decoder.dtype)
        n_here, n_beside = decoder.spec.n_layers, 0
        if plan.mode == "offload" or plan.is_on_disk:
            n_here, n_beside = plan.layers_on_gpu + BUFFERED_LAYERS, n_here - plan.layers_on_gpu
        while self._sessions:
            beside = free_disk_bytes(self._folder) if plan.is_on_disk else free_bytes(torch.device("cpu"))
            if n_here * layer_bytes <= free_bytes(decoder.device) and n_beside * layer_bytes <= beside:
                break
            del self._sessions[0]

    def _factor(self, n_tokens: int) -> float:
        return stretch(n_tokens, self._loaded.target.config, self.facts.trained_context)


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
