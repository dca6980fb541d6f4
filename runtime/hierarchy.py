"""Which levels draft for which: the composition is chosen here, once an answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.choices import Choices
from runtime.config import DRAFT_CHUNK, GAMMA, LONGEST_DRAFT, Sampling, Speculation
from runtime.drafter import Drafter
from runtime.drafters.context import DraftContext
from runtime.drafters.counted import CountedDrafter, DraftCounts
from runtime.drafters.grams import Grams
from runtime.drafters.lookup import LookupDrafter
from runtime.drafters.model import ModelDrafter
from runtime.drafters.paced import FirstDrafter, PacedDrafter
from runtime.drafters.speculative import SpeculativeDrafter
from runtime.graphs import captured_on_gpu
from runtime.kv.full import FullStore
from runtime.kv.queries import RecentQueries
from runtime.kv.ranking import ChunkRanking
from runtime.kv.retrieval import RetrievalStore
from runtime.kv.streaming import StreamingStore
from runtime.models.decoder import Decoder, Forward
from runtime.models.load import Model
from runtime.models.spec import Spec
from runtime.pacing import AdaptivePacing, Costs, PassCosts
from runtime.scorer import Scorer

# Acceptances assumed before any is counted.
RETRIEVAL_ACCEPTANCE = 0.8
MODEL_ACCEPTANCE = 0.6
LOOKUP_ACCEPTANCE = 0.5
LONG_LOOKUP_ACCEPTANCE = 0.9
# Where passes have not been measured: what a byte of KV cache costs to attend to against a byte of weights to multiply
# by, and what each further token costs in a pass against its first.
KV_BYTE_COST = 1.5
EXTRA_TOKEN_COST = 0.08
# What an answer's small steps (sampling, verification, choosing chunks) cost in a retrieval pass, against the pass.
SMALL_STEPS_COST = 0.15
# Matches of so many tokens go on as surely as other drafters guess, and cost nothing.
LONG_MATCH = 8


@dataclass(frozen=True, slots=True)
class TargetCaches:
    """What is held of the target: its full KV cache, its newest queries, and a retrieval cache where one pays.

    `over_retrieval` is the target with its passes over that cache captured, where they are.
    """

    full: FullStore
    queries: RecentQueries
    retrieval: RetrievalStore | None
    over_retrieval: Forward | None = None


@dataclass(frozen=True, slots=True)
class LevelCosts:
    """What drafting for the full cache costs, by what drafts; `most` tokens are drafted at a time."""

    retrieval: Costs
    model: Costs
    lookup: Costs
    most: int = GAMMA


def compose(
    target: Decoder,
    draft: Decoder | None,
    caches: TargetCaches,
    ids: Sequence[int],
    speculation: Speculation,
    sampling: Sampling,
    choices: Choices,
    costs: LevelCosts,
    answer_start: int | None = None,
) -> Drafter:
    """The drafter for the target over its full cache, after `ids`; raises `InvalidSetting`.

    `answer_start`: how many of `ids` are the prompt, where the answer was begun; else all.

    A long match of lookup comes first. Else, with a retrieval cache, the target over that cache drafts, drafted for
    in turn. While that is switched off, and without one, what lies below it drafts for the full cache directly: the
    draft model, else lookup. Each has its own pacing.
    """
    chosen = speculation.chosen_drafter(draft is not None)
    start = len(ids) if answer_start is None else answer_start
    long = lookup = model = None
    if chosen in ("lookup", "merged"):
        grams, counts = Grams(ids), DraftCounts("lookup")
        long = CountedDrafter(LookupDrafter(ids, LONG_MATCH, grams), counts)
        lookup = CountedDrafter(LookupDrafter(ids, grams=grams), counts)
    if draft is not None and chosen in ("model", "merged"):
        model = _model(draft, caches, ids, speculation, sampling, choices, target.spec, start)
    levels: list[Drafter] = []
    if long is not None:
        levels.append(PacedDrafter(long, AdaptivePacing(LONGEST_DRAFT, costs.lookup, LONG_LOOKUP_ACCEPTANCE)))
    if caches.retrieval is not None:
        below = FirstDrafter(*filter(None, (long, model) if model else (lookup,)))
        scorer = Scorer(caches.over_retrieval or target, caches.retrieval, sampling, answer_start=start)
        middle = SpeculativeDrafter("retrieval", scorer, below, speculation.inner_gamma, choices)
        levels.append(PacedDrafter(middle, AdaptivePacing(costs.most, costs.retrieval, RETRIEVAL_ACCEPTANCE)))
    if draft is not None and model is not None:
        levels.append(PacedDrafter(model, AdaptivePacing(costs.most, costs.model, MODEL_ACCEPTANCE)))
    if lookup is not None:
        levels.append(PacedDrafter(lookup, AdaptivePacing(costs.most, costs.lookup, LOOKUP_ACCEPTANCE)))
    return FirstDrafter(*levels)


def level_costs(
    target: Model,
    draft: Model | None,
    speculation: Speculation,
    n_tokens: int,
    bus_seconds: float = 0.0,
    weight_seconds: float = 0.0,
) -> LevelCosts:
    """For a sequence of `n_tokens`: by the passes measured for a model, else from its size.

    `bus_seconds`: how long what a pass over the full cache brings to the device takes to get there. For
    `weight_seconds` of them, those of weights, passes over the retrieval cache wait too; a draft model for none.
    """
    most = speculation.most_drafted(bus_seconds > 0)
    plain = target.passes.seconds(1, n_tokens) if target.passes else math.inf
    carried = bus_seconds / plain
    retrieval = retrieval_costs(target, n_tokens, speculation.budget_for(n_tokens))
    return LevelCosts(
        retrieval=retrieval.beside_bus(carried, most, weight_seconds / plain),
        model=_model_costs(target, draft or target, speculation, n_tokens).beside_bus(carried, most),
        lookup=_costs(target.passes, n_tokens, 0.0).beside_bus(carried, LONGEST_DRAFT),
        most=most,
    )


def gains_by_retrieval(costs: LevelCosts) -> bool:
    """Whether a retrieval cache is expected to pay, before anything is counted."""
    return costs.retrieval.best_gamma(costs.most, RETRIEVAL_ACCEPTANCE) > 0


def retrieval_costs(target: Model, n_tokens: int, budget: int) -> Costs:
    """A pass over the retrieval cache against one over the full cache: both read all weights, and as much in layers
    that slide."""
    passes, spec, n_held = target.passes, target.spec, min(budget, n_tokens)
    if len(spec.sliding_layers) == spec.n_layers:
        return _costs(passes, n_tokens, 1 + SMALL_STEPS_COST)
    if passes is not None:
        return _costs(passes, n_tokens, passes.seconds(1, n_held) / passes.seconds(1, n_tokens))
    weights = spec.n_parameters / spec.kv_bytes_per_token(1) / KV_BYTE_COST  # in tokens of KV cache
    draft = (weights + spec.seen_tokens(n_tokens, budget)) / (weights + spec.seen_tokens(n_tokens, n_tokens))
    return _costs(None, n_tokens, draft * (1 + SMALL_STEPS_COST))


def _model_costs(target: Model, draft: Model, speculation: Speculation, n_tokens: int) -> Costs:
    passes = target.passes
    if passes is None or draft.passes is None:
        return _costs(passes, n_tokens, draft.spec.n_parameters / target.spec.n_parameters)
    n_held = speculation.sinks + speculation.window
    return _costs(passes, n_tokens, draft.passes.seconds(1, n_held) / passes.seconds(1, n_tokens))


def _costs(passes: PassCosts | None, n_tokens: int, draft: float) -> Costs:
    """Of drafts that cost `draft` plain steps a token."""
    if passes is None:
        return Costs(draft, EXTRA_TOKEN_COST)
    most, plain = passes.tokens[-1], passes.seconds(1, n_tokens)
    verify = [passes.seconds(1 + gamma, n_tokens) / plain for gamma in range(most)]
    return Costs(draft, (verify[-1] - 1) / (most - 1), tuple(verify))


def _model(
    draft: Decoder,
    caches: TargetCaches,
    ids: Sequence[int],
    speculation: Speculation,
    sampling: Sampling,
    choices: Choices,
    target: Spec,
    answer_start: int,
) -> Drafter:
    """The draft model over its cache, which stands after all of `ids` but the last."""
    ranking = None
    if speculation.draft_cache == "retrieval":
        ranking = ChunkRanking(caches.full, caches.queries, DRAFT_CHUNK, target.attention_scale, target.windows)
    spec = draft.spec
    shape = (spec.n_layers, spec.n_kv_heads, spec.head_dim)
    store = StreamingStore(*shape, draft.dtype, draft.device, speculation.draft_sinks, speculation.window)
    context = DraftContext(draft, store, ranking)
    context.follow(ids, len(ids) - 1)
    captured = captured_on_gpu(draft, store, store.capacity)
    scorer = Scorer(captured, store, sampling, answer_start=answer_start)
    return CountedDrafter(ModelDrafter(scorer, choices, context), DraftCounts("model"))
