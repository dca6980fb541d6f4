"""The contract of every drafter, whatever drafts inside it."""

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from math import prod

import pytest
import torch

from runtime import speculation
from runtime.choices import SeededChoices
from runtime.config import Sampling
from runtime.drafter import Draft, Drafter, NoDrafter
from runtime.drafters.context import DraftContext
from runtime.drafters.counted import CountedDrafter, DraftCounts
from runtime.drafters.lookup import LookupDrafter
from runtime.drafters.model import ModelDrafter
from runtime.drafters.paced import FirstDrafter, PacedDrafter
from runtime.drafters.speculative import SpeculativeDrafter
from runtime.kv.full import FullStore
from runtime.kv.queries import RecentQueries
from runtime.kv.ranking import ChunkRanking
from runtime.kv.retrieval import RetrievalStore
from runtime.kv.streaming import StreamingStore
from runtime.models.attention import attend_on_cpu
from runtime.models.decoder import Decoder
from runtime.pacing import FixedPacing
from runtime.scorer import Scorer
from tests.runtime.replay import MIDDLE, SMALL, TARGET, ReplayedChoices, TableScorer, distance, output_law, sequence_law
from tests.runtime.tiny import N_TOKENS, random_ids, tiny_decoder

SAMPLING = Sampling(temperature=1.0, top_p=1.0)
GAMMA = 4


@cache
def decoder(seed: int) -> Decoder:
    return tiny_decoder("llama", seed, attend=attend_on_cpu, vocab_size=N_TOKENS)[0]


def shape(model: Decoder) -> tuple[int, int, int, torch.dtype, torch.device]:
    return model.spec.n_layers, model.spec.n_kv_heads, model.spec.head_dim, model.dtype, model.device


def prompt(n_tokens: int, repeats: bool) -> list[int]:
    """Random ids; the last twenty repeat earlier ones, so that lookup finds a long match."""
    ids = (random_ids(n_tokens, 5) % (N_TOKENS - 3) + 3).tolist()
    return [*ids[:-20], *ids[10:30]] if repeats else ids


class Situation:
    """A prompt that the target has read, and what its drafters need."""

    def __init__(self, n_tokens: int, repeats: bool = True) -> None:
        self.tokens = prompt(n_tokens, repeats)
        self.ids = list(self.tokens)
        self.target, self.draft = decoder(0), decoder(1)
        self.queries = RecentQueries()
        self.full = FullStore(*shape(self.target))
        self.scorer = Scorer(self.target, self.full, SAMPLING, self.queries, answer_start=0)
        self.choices = SeededChoices(0)
        self.target.forward(torch.tensor(self.ids[:-1]), self.full, 0, self.queries)
        self.full.commit()

    def ranking(self, chunk_size: int = 8) -> ChunkRanking:
        return ChunkRanking(self.full, self.queries, chunk_size, self.target.spec.attention_scale)

    def model(self, sinks: int, window: int, ranking: ChunkRanking | None = None, draft: Decoder | None = None):
        draft = draft or self.draft
        store = StreamingStore(*shape(draft), sinks, window)
        context = DraftContext(draft, store, ranking)
        context.follow(self.ids, len(self.ids) - 1)
        return ModelDrafter(Scorer(draft, store, SAMPLING, answer_start=0), self.choices, context)

    def over(self, drafter: Drafter, budget: int) -> SpeculativeDrafter:
        store = RetrievalStore(self.full, self.queries, budget, 8, self.target.spec.attention_scale)
        store.select(self.queries.latest())
        return SpeculativeDrafter(
            "retrieval", Scorer(self.target, store, SAMPLING, answer_start=0), drafter, 2, self.choices
        )

    def round(self, drafter: Drafter, draft: Draft, accepted: int) -> None:
        """As if the target had kept `accepted` tokens of the draft, and added one of its own."""
        self.scorer.score(self.tokens, draft.tokens)
        kept = len(self.tokens) + accepted
        for level in (self.scorer, drafter):
            level.trim(kept)
            level.commit()
        self.tokens += [*draft.tokens[:accepted], 7]

    def next_draft(self, drafter: Drafter) -> Draft:
        """A draft by choices that start anew."""
        self.choices._generator.manual_seed(3)
        return drafter.propose(self.tokens, GAMMA)


Make = Callable[[Situation], Drafter]


def lookup(at: Situation) -> Drafter:
    return LookupDrafter(at.ids)


def streaming(at: Situation) -> Drafter:
    return at.model(16, 64)


def retrieval_cache(at: Situation) -> Drafter:
    return at.model(16, 64, at.ranking())


def merged(at: Situation) -> Drafter:
    return FirstDrafter(
        CountedDrafter(LookupDrafter(at.ids, 8), DraftCounts("lookup")),
        CountedDrafter(at.model(16, 64), DraftCounts("model")),
    )


BOTTOMS: dict[str, Make] = {
    "none": lambda at: NoDrafter(),
    "lookup": lookup,
    "model, streaming": streaming,
    "model, retrieval": retrieval_cache,
    "merged": merged,
}


def middle(make: Make) -> Make:
    return lambda at: PacedDrafter(at.over(make(at), 64), FixedPacing(64))


DRAFTERS = BOTTOMS | {f"speculative over {name}": middle(make) for name, make in BOTTOMS.items()}
every_drafter = pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)


def same(first: Draft, second: Draft) -> bool:
    if first.tokens != second.tokens or (first.probs is None) != (second.probs is None):
        return False
    return first.probs is None or torch.allclose(first.probs, second.probs, atol=1e-4)


@every_drafter
@pytest.mark.parametrize("gamma", [0, 1, GAMMA, 30])
def test_a_draft_is_at_most_gamma_long_and_leaves_the_sequence_alone(make: Make, gamma: int) -> None:
    at = Situation(120)
    draft = make(at).propose(at.tokens, gamma)
    assert len(draft.tokens) <= gamma
    assert at.tokens == at.ids
    assert draft.probs is None or draft.probs.shape == (len(draft.tokens), N_TOKENS)


LAWS: dict[str, Callable[[Situation], Scorer]] = {
    "model, streaming": lambda at: at.model(16, 64)._scorer,
    "model, retrieval": lambda at: at.model(16, 64, at.ranking())._scorer,
    "merged": lambda at: at.model(16, 64)._scorer,
} | {f"speculative over {name}": lambda at: at.over(NoDrafter(), 64)._scorer for name in BOTTOMS}


@pytest.mark.parametrize("name", LAWS)
def test_the_distributions_reported_are_those_of_one_pass_over_the_draft(name: str) -> None:
    """However it was drafted, token by token or in rounds, with what inside."""
    draft = DRAFTERS[name](at := Situation(120, repeats=False)).propose(at.tokens, GAMMA)
    assert len(draft.tokens) == GAMMA
    expected = LAWS[name](Situation(120, repeats=False)).score(at.tokens, draft.tokens)[:-1]
    assert torch.allclose(draft.probs, expected, atol=1e-5)


@every_drafter
def test_a_rejected_draft_leaves_no_trace(make: Make) -> None:
    """Nothing of it is kept: the next draft is that of a drafter which never drafted before."""
    at, fresh = Situation(120), Situation(120)
    drafter, untouched = make(at), make(fresh)
    for _ in range(2):
        drafter.propose(at.tokens, GAMMA)
        drafter.trim(len(at.tokens) - 1)
    assert same(at.next_draft(drafter), fresh.next_draft(untouched))


@every_drafter
@pytest.mark.parametrize("accepted", range(GAMMA + 1))
def test_an_accepted_draft_is_as_good_as_tokens_that_came_from_elsewhere(make: Make, accepted: int) -> None:
    """At every point of a draft: trimmed and committed there, the next draft is as if others had drafted so far."""
    at, fresh = Situation(60), Situation(60)
    drafter, untouched = make(at), make(fresh)
    for _ in range(2):
        draft = drafter.propose(at.tokens, GAMMA)
        kept = min(accepted, len(draft.tokens))
        at.round(drafter, draft, kept)
        fresh.round(untouched, Draft(draft.tokens), kept)
    assert at.tokens == fresh.tokens
    assert same(at.next_draft(drafter), fresh.next_draft(untouched))


@every_drafter
def test_whatever_came_while_others_drafted_is_caught_up_with(make: Make) -> None:
    """Rounds of long drafts by others, more tokens than a draft model's cache has room for, then a draft of its own."""
    at = Situation(120)
    drafter = make(at)
    for i in range(6):
        at.round(drafter, Draft(tuple(range(40 + i, 100 + i))), 60)
    draft = drafter.propose(at.tokens, GAMMA)
    at.round(drafter, draft, len(draft.tokens))
    assert len(drafter.propose(at.tokens, GAMMA).tokens) <= GAMMA


@pytest.mark.parametrize("ranked", [False, True], ids=["streaming", "retrieval"])
def test_a_draft_model_that_is_the_target_and_sees_all_is_always_right(ranked: bool) -> None:
    """Window >= sequence, draft = target: every round emits gamma + 1 tokens."""
    at = Situation(120)
    drafter = at.model(16, 600, at.ranking() if ranked else None, at.target)
    rounds = speculation.decode(at.scorer, drafter, at.tokens, FixedPacing(GAMMA), at.choices)
    assert [len(next(rounds).tokens) for _ in range(12)] == [GAMMA + 1] * 12


def test_a_merged_drafter_says_what_came_from_where() -> None:
    at = Situation(120)
    drafter = merged(at)
    draft = drafter.propose(at.tokens, 30)
    assert (draft.tokens, draft.probs) == (tuple(at.ids[30 : 30 + len(draft.tokens)]), None)
    at.round(drafter, draft, 5)
    assert drafter.propose(at.tokens, 3).probs is not None
    drafter.trim(len(at.tokens) + 1)
    lookup_level, model_level = drafter.levels()
    assert (lookup_level.name, lookup_level.rounds, lookup_level.proposed, lookup_level.accepted) == (
        "lookup", 1, len(draft.tokens), 5,
    )  # fmt: skip
    assert (model_level.name, model_level.rounds, model_level.proposed, model_level.accepted) == ("model", 1, 3, 1)


PROMPT = [2, 1, 0, 2, 0, 2]
Compose = Callable[[ReplayedChoices], Drafter]


def merged_tables(choices: ReplayedChoices) -> Drafter:
    return FirstDrafter(LookupDrafter(PROMPT, 2), ModelDrafter(TableScorer(SMALL), choices))


def over_tables(bottom: Compose, inner_gamma: int) -> Compose:
    return lambda choices: SpeculativeDrafter("middle", TableScorer(MIDDLE), bottom(choices), inner_gamma, choices)


def decoded(compose: Compose, gamma: int, length: int) -> Callable[[ReplayedChoices], Hashable]:
    def decode(choices: ReplayedChoices) -> Hashable:
        tokens = list(PROMPT)
        for _ in speculation.decode(TableScorer(TARGET), compose(choices), tokens, FixedPacing(gamma), choices):
            if len(tokens) >= len(PROMPT) + length:
                return tuple(tokens[len(PROMPT) : len(PROMPT) + length])
        raise AssertionError("rounds never end by themselves")

    return decode


@pytest.mark.parametrize(
    ("compose", "gamma", "length"),
    [
        pytest.param(merged_tables, 2, 4, id="merged"),
        pytest.param(over_tables(merged_tables, 1), 2, 2, id="middle over merged, 2 and 1"),
        pytest.param(over_tables(merged_tables, 2), 3, 2, id="middle over merged, 3 and 2"),
    ],
)
def test_merged_drafts_keep_the_targets_law(compose: Compose, gamma: int, length: int) -> None:
    law = output_law(decoded(compose, gamma, length))
    assert distance(law, sequence_law(TARGET, length, prompt=PROMPT)) < 1e-12


class Misreporting(ModelDrafter):
    """Says that it drew from other distributions than it did."""

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        draft = super().propose(tokens, gamma)
        return Draft(draft.tokens, draft.probs.flip(1))


def test_a_draft_that_misreports_its_distribution_is_found_out() -> None:
    """Negative control: the law depends on probs[i] being what tokens[i] was drawn from."""
    law = output_law(decoded(lambda choices: Misreporting(TableScorer(SMALL), choices), 2, 2))
    assert distance(law, sequence_law(TARGET, 2, prompt=PROMPT)) > 0.01


@pytest.mark.parametrize("start", [PROMPT, [1, 2, 2]], ids=["lookup finds", "lookup finds nothing"])
@pytest.mark.parametrize("compose", [merged_tables, over_tables(merged_tables, 1)], ids=["merged", "middle"])
def test_a_draft_is_drawn_from_the_distributions_it_reports(compose: Compose, start: Sequence[int]) -> None:
    """The probability of a draft, over all random paths, is the product of what it reports for its tokens."""
    reported = {}

    def decode(choices: ReplayedChoices) -> Hashable:
        draft = compose(choices).propose(list(start), 2)
        rows = torch.ones(len(draft.tokens)) if draft.probs is None else draft.probs[range(2), list(draft.tokens)]
        reported[draft.tokens] = prod(rows.tolist())
        return draft.tokens

    assert output_law(decode) == pytest.approx(reported)
