"""`launch.py verify`: whether speculation changes what the model says, checked on this machine and this model.

Greedy answers are compared token by token with plain decoding's. Drawn tokens are compared with the distribution that
plain decoding draws from: the first tokens of many rounds, drafted for at both levels.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from runtime.audit import NEAR_TIE, deviations
from runtime.bench import standard_library_source
from runtime.choices import SeededChoices
from runtime.config import Request, Sampling, Speculation
from runtime.drafters.lookup import LookupDrafter
from runtime.drafters.speculative import SpeculativeDrafter
from runtime.engine import Engine
from runtime.errors import InvalidSetting
from runtime.events import Finished
from runtime.kv.store import Store
from runtime.pacing import FixedPacing
from runtime.sampling import SeenTokens, probabilities
from runtime.scorer import Scorer
from runtime.session import Session
from runtime.speculation import Tally, decode, speculate
from runtime.stats import LevelStats

PROMPT_TOKENS = 400
ANSWER_TOKENS = 64
CONTEXT = PROMPT_TOKENS + ANSWER_TOKENS
LOOKED_AT, SAMPLED_PROMPTS = 4, 2  # prompts in which a place to sample at is looked for; the best of them are taken
ROUNDS = 10_000
DELTA = 1e-6  # how often chance alone makes a right decoder fail, for each prompt that is sampled after
OUTCOMES = 9  # the eight most probable tokens, and all others as one
CANDIDATES, TRIED = 96, 8  # places within a prompt that are looked at, and those that are looked at closely
MATCH = 3  # tokens of a match of lookup
# The budget is far below the prompt, so that the retrieval cache is a part of the full one and is wrong now and then.
SMALL = Speculation(gamma=4, inner_gamma=2, budget=96, chunk_size=8)
SAMPLED_GAMMA, SAMPLED_INNER_GAMMA = 2, 1
SAMPLED_TOP_K = 16  # of so few tokens drafts are soon the same again, and a pass is computed once
REMEMBERED_BYTES = 2**28

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Difference:
    """Token `position` of the answer to a prompt (both from 1): `token` where plain decoding has `best`."""

    prompt: int
    position: int
    token: int
    best: int
    gap: float


@dataclass(frozen=True, slots=True)
class Sampled:
    """How far drawn tokens lay from their distribution (total variation), and how far they may by chance and rounding;
    what the full cache's level and the retrieval cache's level accepted meanwhile."""

    distance: float
    bound: float
    levels: tuple[LevelStats, LevelStats]


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found. `near_tie` is the largest gap of logits that counts as one; greedy answers may differ by
    near-ties, and by nothing that is `wrong`."""

    prompts: int
    greedy_equal: bool
    near_ties: tuple[Difference, ...]
    wrong: tuple[Difference, ...]
    near_tie: float
    sampled: tuple[Sampled, ...]

    @property
    def worst(self) -> Sampled:
        return max(self.sampled, key=lambda each: each.distance / each.bound)

    @property
    def ok(self) -> bool:
        return not self.wrong and self.worst.distance < self.worst.bound


def check(engine: Engine, speculation: Speculation, sampling: Sampling, n_prompts: int, say: Say) -> Report:
    """Compare after `n_prompts` prompts; the first of them are sampled after as well."""
    prompts = _prompts(engine, n_prompts)
    session = engine.new_session(CONTEXT)
    session.speculation = SMALL
    session.eos_ids = frozenset()  # an early end of a turn would leave less to compare
    near_tie = NEAR_TIE[session.decoder.dtype]
    greedy = replace(sampling, temperature=0.0)
    given = replace(speculation, budget=SMALL.budget, chunk_size=SMALL.chunk_size, enabled=True)
    greedy_equal = True
    differences: set[Difference] = set()
    for number, ids in enumerate(prompts, 1):
        say(f"greedy: prompt {number} of {n_prompts}")
        session.caches(ids)  # which all ways share, so that of different answers the drafted one deviates
        plain = _answer(session, replace(SMALL, enabled=False), ids, greedy)
        for tokens in (_answer(session, given, ids, greedy), _drafted_always(session, ids, greedy)):
            if tokens != plain:
                greedy_equal = False
                full, _ = session.caches(ids)
                for found in deviations(session.decoder, full, ids, tokens, greedy):
                    place = found.position + 1
                    differences.add(Difference(number, place, found.token, found.best, found.gap))
    ordered = sorted(differences, key=lambda each: (each.prompt, each.position))
    near_ties = tuple(each for each in ordered if each.gap <= near_tie)
    wrong = tuple(each for each in ordered if each.gap > near_tie)
    top_k = min(sampling.top_k or SAMPLED_TOP_K, SAMPLED_TOP_K)
    drawn = replace(sampling, temperature=sampling.temperature or 1.0, top_k=top_k)
    say("sampled: looking for places where drafts are now accepted and now rejected")
    places = sorted((_uncertain_place(session, ids, drawn) for ids in prompts[:LOOKED_AT]), reverse=True)
    sampled = [
        _sampled(session, list(ids), drawn, number, say) for number, (_, ids) in enumerate(places[:SAMPLED_PROMPTS], 1)
    ]
    return Report(n_prompts, greedy_equal, near_ties, wrong, near_tie, tuple(sampled))


def _prompts(engine: Engine, n_prompts: int) -> list[list[int]]:
    """Pieces of the standard library's own source, one after the other, as the beginning of a chat."""
    opening = engine.tokenizer.chat_frame("Continue the text.").opening
    size = PROMPT_TOKENS - len(opening)
    ids = engine.tokenizer.encode(standard_library_source(n_prompts * PROMPT_TOKENS * 8))
    if len(ids) < n_prompts * size:
        raise InvalidSetting("prompts", n_prompts, f"at most {len(ids) // size:,}, which is all the text there is")
    return [[*opening, *ids[start : start + size]] for start in range(0, n_prompts * size, size)]


def _answer(session: Session, speculation: Speculation, ids: list[int], sampling: Sampling) -> list[int]:
    """As every answer is given."""
    session.speculation = speculation
    events = session.answer(ids, Request(sampling, ANSWER_TOKENS), threading.Event(), time.perf_counter())
    return list(next(event for event in events if isinstance(event, Finished)).token_ids)


def _drafted_always(session: Session, ids: list[int], sampling: Sampling) -> list[int]:
    """With drafts at both levels in every round, whether they pay or not."""
    full, retrieval = session.caches(ids)
    choices, tokens = SeededChoices(0), list(ids)
    middle = Scorer(session.decoder, retrieval, sampling, answer_start=len(ids))
    drafter = SpeculativeDrafter("retrieval", middle, LookupDrafter(ids, MATCH), SMALL.inner_gamma, choices)
    target = Scorer(session.decoder, full, sampling, answer_start=len(ids))
    for _ in decode(target, drafter, tokens, FixedPacing(SMALL.most_drafted(streams=False)), choices):
        if len(tokens) >= len(ids) + ANSWER_TOKENS:
            break
    return tokens[len(ids) : len(ids) + ANSWER_TOKENS]


class _RememberingScorer(Scorer):
    """Computes each distinct pass once: a pass is a function of its tokens, and only the draws are repeated."""

    _kept_bytes = 0

    def __init__(self, session: Session, store: Store, sampling: Sampling, n_prompt: int) -> None:
        super().__init__(session.decoder, store, sampling, answer_start=n_prompt)
        self._n_prompt = n_prompt
        self._passes: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}

    def score(self, tokens: Sequence[int], draft: Sequence[int] = ()) -> Tensor:
        key = tuple(tokens[self._n_prompt :]), tuple(draft)
        if key in self._passes:
            return self._passes[key]
        probs = super().score(tokens, draft)
        if self._kept_bytes < REMEMBERED_BYTES:
            self._passes[key] = probs
            self._kept_bytes += probs.nbytes
        return probs


def _sampled(session: Session, ids: list[int], sampling: Sampling, seed: int, say: Say) -> Sampled:
    """The first tokens of many rounds at one place, against the distribution that plain decoding draws from there."""
    full, retrieval = session.caches(ids)
    before = len(ids) - 1
    plain_logits = session.decoder.forward(torch.tensor(ids[before:], device=session.decoder.device), full)
    full.trim(before)
    plain = _law(plain_logits, sampling, ids)
    best = plain.topk(OUTCOMES - 1).indices.tolist()
    exact = _binned(plain, best)

    choices = SeededChoices(seed)
    target = _RememberingScorer(session, full, sampling, len(ids))
    middle = _RememberingScorer(session, retrieval, sampling, len(ids))
    drafter = SpeculativeDrafter("retrieval", middle, LookupDrafter(ids, MATCH), SAMPLED_INNER_GAMMA, choices)
    counts, tally, rounding = [0] * OUTCOMES, Tally("full"), 0.0
    for number in range(ROUNDS):
        if number % 2000 == 0:
            say(f"sampled: place {seed}, {number:,} of {ROUNDS:,} rounds")
        result = speculate(target, drafter, list(ids), SAMPLED_GAMMA, choices)
        target.trim(before)
        drafter.trim(before)
        tally.count(result)
        first = result.tokens[0]
        counts[best.index(first) if first in best else OUTCOMES - 1] += 1
        if number == 0:
            # A pass of several tokens rounds differently from a pass of one. That is granted as far as their logits
            # agree: a wrong pass is granted nothing.
            moved = (target.logits[:1] - plain_logits)[0, best].abs().max()
            if moved <= NEAR_TIE[session.decoder.dtype]:
                rounding = _distance(_binned(_law(target.logits[:1], sampling, ids), best), exact)
    drawn = torch.tensor(counts, dtype=torch.float64) / ROUNDS
    bound = chance_bound(ROUNDS, OUTCOMES, DELTA) + rounding
    return Sampled(_distance(drawn, exact), bound, (tally.stats(), drafter.levels()[0]))


def _law(logits: Tensor, sampling: Sampling, ids: Sequence[int]) -> Tensor:
    """The distribution [vocab] after the prompt `ids`, of its logits [1, vocab]."""
    return probabilities(logits, sampling, SeenTokens(sampling, len(ids)).before(ids, (), 0, logits))[0]


Worth = tuple[float, float]  # how uncertain it is whether drafts of both levels, and of the upper, are accepted


def _uncertain_place(session: Session, ids: list[int], sampling: Sampling) -> tuple[Worth, tuple[int, ...]]:
    """The beginning of `ids` after which drafts of both levels are now accepted and now rejected, and its worth."""
    start = len(ids) - CANDIDATES
    full, _ = session.caches(ids[:start])
    scorer = Scorer(session.decoder, full, sampling, answer_start=len(ids))
    rows = scorer.score(ids[:start], ids[start:])
    scorer.trim(start - 1)

    def lookup_chance(length: int, row: Tensor) -> float:
        """How probable `row` [vocab] holds what lookup finds."""
        found = LookupDrafter(ids[:length], MATCH).propose(ids[:length], 1).tokens
        return float(row[found[0]]) if found else 0.0

    def worth(length: int) -> Worth:
        _, retrieval = session.caches(ids[:length])
        middle = Scorer(session.decoder, retrieval, sampling, answer_start=length)
        row = middle.score(ids[:length])[0]
        middle.trim(length - 1)
        accepted = _spread(float(torch.minimum(row, rows[length - start]).sum()))
        return accepted * _spread(lookup_chance(length, row)), accepted

    def promise(length: int) -> float:
        return _spread(lookup_chance(length, rows[length - start]))

    tried = sorted(range(start, len(ids) + 1), key=promise)[-TRIED:]
    return max((worth(length), tuple(ids[:length])) for length in tried)


def _spread(chance: float) -> float:
    """Largest where the chance is one half, 0 where it is none or certain."""
    return chance * (1 - chance)


def chance_bound(n_draws: int, n_outcomes: int, delta: float) -> float:
    """The total variation that draws exceed with a probability of at most `delta`: for each set of outcomes by
    Hoeffding's inequality, and for all 2^k sets together by the union bound."""
    return math.sqrt((n_outcomes * math.log(2) - math.log(delta)) / (2 * n_draws))


def _binned(probs: Tensor, best: list[int]) -> Tensor:
    """The probabilities of the `best` tokens and of all others together, [outcomes]."""
    kept = probs[best].double().cpu()
    return torch.cat([kept, (probs.double().sum().cpu() - kept.sum())[None]])


def _distance(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().sum() / 2)
