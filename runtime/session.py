"""A sequence of tokens whose KV cache is kept, and the answers given from it."""

import math
import threading
import time
from collections.abc import Iterator, Sequence

import torch

from runtime.answer import Answer
from runtime.config import LONGEST_DRAFT, Request, Speculation
from runtime.drafter import Drafter, NoDrafter
from runtime.errors import InvalidSetting
from runtime.events import Event, Finished, Span
from runtime.evidence import used_runs
from runtime.graphs import captured_on_gpu
from runtime.hardware import CoresTaken, free_cores
from runtime.hierarchy import LevelCosts, TargetCaches, compose, gains_by_retrieval, level_costs
from runtime.kv.full import BytesMoved, FullStore
from runtime.kv.queries import AnswerQueries, Observers, RecentQueries
from runtime.kv.retrieval import RetrievalStore
from runtime.models.decoder import Forward
from runtime.models.load import Model
from runtime.pacing import FixedPacing
from runtime.prefill import block_length, prefill
from runtime.prefix import common_prefix
from runtime.scorer import Scorer
from runtime.speculation import Tally, decode
from runtime.stats import Spent
from runtime.stores import OWN, Stores

# Tokens whose attention is looked at: the newest of the prompt, which look up what they ask for, and the first of the
# answer. On ten planted facts the page was first or second ten times, eight times by the answer's tokens alone.
QUESTION_TOKENS = 24
ANSWER_TOKENS = 64
# Tokens of further questions and answers there is room for: buffers that grew a little each time would find none among
# what those before leave free, and the process would hold the cache twice.
ROOM = 1024
LOOK_AROUND_EVERY = 16  # rounds after which it is asked again how busy the machine is


class Session:
    """One prompt and its conversation tail. Used by one thread at a time."""

    def __init__(
        self,
        target: Model,
        draft: Model | None,
        speculation: Speculation,
        n_tokens: int,
        full: FullStore | None = None,
        bus: float | None = None,
        stores: Stores = OWN,
    ) -> None:
        """For sequences of up to `n_tokens`, by which the rotary embedding is fixed. `full`: an empty store for the
        target's KV cache; None for one on the model's device. `bus`: bytes a second that reach the device from where
        such a store, and weights that are streamed, lie. `stores` makes what holds keys and
        values."""
        self.n_tokens = n_tokens
        self.eos_ids = target.tokenizer.eos_ids
        self.tokens: list[int] = []  # those whose keys and values the full store holds
        self._target = target
        self._draft = draft
        self.speculation = speculation
        self.decoder = target.decoder.with_rope(target.rope(n_tokens))
        self._stores = stores
        self._full = stores.full(self.decoder) if full is None else full
        self._bus = bus
        self._recent = RecentQueries()
        self._retrieval: RetrievalStore | None = None
        self._over_retrieval: Forward | None = None  # kept with the cache: what is captured serves all answers
        self._taken = CoresTaken()

    def answer(
        self,
        ids: Sequence[int],
        request: Request,
        cancel: threading.Event,
        asked_at: float,
        begun: Answer | None = None,
    ) -> Iterator[Event]:
        """Prefill what is new of `ids`, then decode; `asked_at` is when the question came, by `perf_counter`.

        `begun`: an answer to `ids` that a session broke off, to be gone on with behind the tokens it has.
        Raises `InvalidSetting` for a biased token that the model does not have.
        """
        ids = list(ids)
        self._check(request)
        answer = begun or Answer(self._target.tokenizer.decode, self.eos_ids, request)
        sequence, spent = [*ids, *answer.ids], answer.spent
        cached = min(common_prefix(self.tokens, sequence), len(sequence) - 1)
        if spent.cached_tokens is not None and request.evidence_spans:
            # A session was at it before: the queries that evidence is computed from are seen again.
            cached = max(0, min(cached, len(ids) - 1 - QUESTION_TOKENS))
        self._cut(cached)
        spent.find_cached(min(cached, len(ids)))
        prefilling = time.perf_counter()
        decoding: float | None = None
        before = self._moved
        prefilled: BytesMoved | None = None
        tally = Tally("full")
        drafter: Drafter = NoDrafter()
        asked_from = max(cached, len(ids) - 1 - QUESTION_TOKENS)
        n_watched = len(ids) - 1 - asked_from + ANSWER_TOKENS if request.evidence_spans else 0
        watched = AnswerQueries(asked_from, n_watched)
        observer = Observers(self._recent, watched)
        try:
            self._use_threads(is_decoding=False)
            if (needed := len(ids) + request.max_tokens + LONGEST_DRAFT + 1) > self._full.capacity:
                self._full.reserve(needed + ROOM)
            yield from prefill(self.decoder, self._full, sequence[:-1], cancel, observer, self._block)
            decoding = time.perf_counter()
            prefilled = self._moved
            self._use_threads(is_decoding=True)
            if answer.reason is None and not cancel.is_set():
                drafts = self.speculation.drafts
                if drafts:
                    costs = self._costs(len(sequence))
                    retrieval = self._refreshed_retrieval(costs)
                    if retrieval is not None:
                        observer = Observers(self._recent, watched, retrieval)
                    drafter = compose(
                        self.decoder,
                        self._draft.decoder if self._draft else None,
                        TargetCaches(self._full, self._recent, retrieval, self._over_retrieval),
                        sequence,
                        self.speculation,
                        request.sampling,
                        answer.choices,
                        costs,
                        answer_start=len(ids),
                    )
                scorer = Scorer(self.decoder, self._full, request.sampling, observer, answer_start=len(ids))
                pacing = FixedPacing(LONGEST_DRAFT if drafts else 0)
                for result in decode(scorer, drafter, list(sequence), pacing, answer.choices):
                    tally.count(result)
                    if tally.rounds % LOOK_AROUND_EVERY == 0:
                        self._use_threads(is_decoding=True)
                    emission = answer.take(result.tokens, scorer.logits)
                    spent.emit(time.perf_counter())
                    yield emission
                    if answer.reason is not None or cancel.is_set():
                        break
            if answer.reason is None:
                yield answer.end("cancelled")
        finally:
            self._use_threads(is_decoding=False)
            # Whatever happened, the tokens noted are those the store holds.
            self._full.cut(len(ids) + len(answer.ids))
            self.tokens = [*ids, *answer.ids][: self._full.length]
            spent.prefill_seconds += (decoding or time.perf_counter()) - prefilling
            spent.count_levels((tally.stats(), *drafter.levels()))
            decoded = self._moved
            spent.decode_moved_bytes += sum(decoded.since(prefilled)) if prefilled else 0
            self._count_bytes(spent, before)
        evidence = self._evidence(len(ids), answer, watched, request)
        self._count_bytes(spent, decoded)
        stats = spent.stats(len(ids), len(answer.ids), asked_at, decoding)
        yield Finished(answer.reason or "cancelled", answer.text, tuple(answer.ids), stats, evidence)

    def _costs(self, n_tokens: int) -> LevelCosts:
        """Of drafting after `n_tokens`, by what their passes must bring to the device."""
        kv, weights = self._full.carried_bytes(n_tokens), self.decoder.carried_bytes
        bus = self._bus or math.inf
        return level_costs(self._target, self._draft, self.speculation, n_tokens, (kv + weights) / bus, weights / bus)

    @property
    def _moved(self) -> BytesMoved:
        """What has crossed the bus so far: KV cache and weights."""
        kv = self._full.bytes_moved
        return kv._replace(to_device=kv.to_device + self.decoder.moved_bytes)

    def _count_bytes(self, spent: Spent, before: BytesMoved) -> None:
        moved = self._moved.since(before)
        spent.to_device_bytes += moved.to_device
        spent.from_device_bytes += moved.from_device

    def let_go(self) -> None:
        """Give back all memory but that of the tokens held: the retrieval cache and what was captured over it."""
        self._retrieval = self._over_retrieval = None

    def _check(self, request: Request) -> None:
        n_tokens = self._target.tokenizer.n_tokens
        for token, _ in request.sampling.logit_bias:
            if token >= n_tokens:
                raise InvalidSetting("logit-bias", token, f"token ids below {n_tokens:,}, which this model has")

    def _evidence(self, n_prompt: int, answer: Answer, watched: AnswerQueries, request: Request) -> tuple[Span, ...]:
        if not request.evidence_spans or answer.reason == "cancelled":
            return ()
        end = min(n_prompt - 1 + len(answer.ids), self._full.length)
        used = self._stores.attention_used(self._full, watched, end, self._target.spec)
        return used_runs(used, request.evidence_spans)

    def _use_threads(self, is_decoding: bool) -> None:
        """As many as are fastest, in decoding no more than have a core of their own; where that was not measured, as
        many as there are."""
        if (passes := self._target.passes) is None:
            return
        taken = self._taken.now()
        torch.set_num_threads(free_cores(passes.threads, taken) if is_decoding else passes.most_threads)

    def caches(self, ids: Sequence[int]) -> tuple[FullStore, RetrievalStore]:
        """Full and retrieval cache after all of `ids` but the last, for checks. What a check puts into them beyond is
        for it to trim; the session itself goes by its own tokens.

        The newest tokens are always fed again, in a pass of their own: chunks are chosen for their queries, and what is
        held is bit-identical from call to call.
        """
        before = max(0, len(ids) - 1 - QUESTION_TOKENS)
        self._cut(min(common_prefix(self.tokens, ids), before))
        for n_tokens in (before, len(ids) - 1):
            for _ in prefill(self.decoder, self._full, ids[:n_tokens], threading.Event(), self._recent, self._block):
                pass
        self.tokens = list(ids[:-1])
        return self._full, self._chosen_retrieval()

    @property
    def full(self) -> FullStore:
        """The full KV cache of the target, for measurements."""
        return self._full

    @property
    def _block(self) -> int:
        """Tokens of a prompt block."""
        streams = self._full.streams or self.decoder.carried_bytes > 0
        return block_length(self._target.spec.n_parameters, self.decoder.device, streams)

    def _cut(self, length: int) -> None:
        self._full.cut(length)
        self.tokens = self.tokens[:length]
        if self._retrieval is not None:
            self._retrieval.cut(length)

    def _refreshed_retrieval(self, costs: LevelCosts) -> RetrievalStore | None:
        """The retrieval cache, chosen for the newest queries; None where the prompt is too short to gain by one."""
        if not self.speculation.retrieval or not gains_by_retrieval(costs):
            return None
        return self._chosen_retrieval()

    def _chosen_retrieval(self) -> RetrievalStore:
        if self._retrieval is None:
            budget, chunk_size = self.speculation.budget_for(self.n_tokens), self.speculation.chunk_size
            spec = self._target.spec
            self._retrieval = self._stores.retrieval(self._full, self._recent, spec, budget, chunk_size)
            self._over_retrieval = captured_on_gpu(self.decoder, self._retrieval, self.n_tokens + LONGEST_DRAFT)
        self._retrieval.select(self._recent.latest())
        return self._retrieval
