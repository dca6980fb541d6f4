"""Claim A for the hierarchy as it is composed for an answer: adaptive pacing, lookup, draft model, retrieval level."""

from collections.abc import Hashable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from runtime import verify
from runtime.config import LONGEST_DRAFT, DrafterChoice, Sampling, Speculation
from runtime.hierarchy import LevelCosts, TargetCaches, compose
from runtime.kv.queries import RecentQueries
from runtime.kv.store import Store
from runtime.pacing import Costs, FixedPacing
from runtime.scorer import Scorer
from runtime.speculation import decode
from tests.runtime.replay import (
    AS_IT_IS,
    MIDDLE,
    SMALL,
    TARGET,
    FedTokens,
    ReplayedChoices,
    distance,
    output_law,
    sequence_law,
)

COPYING = (0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2)  # lookup finds a long match
FOREIGN = (0, 0, 1, 1, 2, 2, 0)  # it finds none
PENALISED = Sampling(0.9, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3)

CHEAP = LevelCosts(retrieval=Costs(0.3, 0.1), model=Costs(0.1, 0.1), lookup=Costs(0.0, 0.1))  # all of them pay


@dataclass(frozen=True)
class TableSpec:
    n_parameters: int
    n_layers: int = 1
    n_kv_heads: int = 1
    head_dim: int = 2
    attention_scale: float = 1.0


class TableDecoder:
    """Logits follow from the last token, by one table over the full cache and by another over any else."""

    device = torch.device("cpu")
    dtype = torch.float64

    def __init__(self, n_parameters: int, full: Store | None, over_full: Tensor, otherwise: Tensor) -> None:
        self.spec = TableSpec(n_parameters)
        self._full, self._over_full, self._otherwise = full, over_full.log(), otherwise.log()
        self.n_passes = 0

    def forward(self, ids: Tensor, store: Store, n_logits: int = 1, observer: object = None) -> Tensor:
        self.n_passes += store is not self._full
        store.extend(len(ids))
        logits = self._over_full if store is self._full else self._otherwise
        return logits[ids[len(ids) - n_logits :]]


class CountingStore(FedTokens):
    """Knows how many tokens it holds, not which."""

    def extend(self, n_tokens: int) -> None:
        self.tokens += [0] * n_tokens


def answers_law(
    prompt: tuple[int, ...], speculation: Speculation, sampling: Sampling, length: int
) -> tuple[dict[Hashable, float], int, int]:
    """The law of an answer's first tokens; passes over the retrieval cache and of the draft model, over all paths."""
    n_retrieval = n_draft = 0

    def draw(choices: ReplayedChoices) -> Hashable:
        nonlocal n_retrieval, n_draft
        tokens, full = list(prompt), CountingStore()
        target, draft = TableDecoder(10, full, TARGET, MIDDLE), None
        if speculation.drafter in ("model", "merged"):
            draft = TableDecoder(1, None, SMALL, SMALL)
        caches = TargetCaches(full, RecentQueries(), CountingStore() if speculation.retrieval else None)
        drafter = compose(target, draft, caches, prompt, speculation, sampling, choices, CHEAP)
        n_fed = draft.n_passes if draft else 0
        scorer = Scorer(target, full, sampling, answer_start=len(prompt))
        for _ in decode(scorer, drafter, tokens, FixedPacing(LONGEST_DRAFT), choices):
            if len(tokens) >= len(prompt) + length:
                break
        n_retrieval += target.n_passes
        n_draft += draft.n_passes - n_fed if draft else 0
        return tuple(tokens[len(prompt) : len(prompt) + length])

    return output_law(draw), n_retrieval, n_draft


def levels(drafter: DrafterChoice, has_retrieval: bool) -> Speculation:
    return Speculation(2, 1, budget=2, chunk_size=1, sinks=2, window=4, retrieval=has_retrieval, drafter=drafter)


@pytest.mark.parametrize("sampling", [AS_IT_IS, PENALISED], ids=["as it is", "penalised"])
@pytest.mark.parametrize("prompt", [COPYING, FOREIGN], ids=["copying", "foreign"])
@pytest.mark.parametrize("has_retrieval", [True, False], ids=["retrieval", "direct"])
@pytest.mark.parametrize("drafter", ["none", "lookup", "model", "merged"])
def test_every_hierarchy_emits_the_targets_law(
    drafter: DrafterChoice, has_retrieval: bool, prompt: tuple[int, ...], sampling: Sampling
) -> None:
    law, n_retrieval, n_draft = answers_law(prompt, levels(drafter, has_retrieval), sampling, 2)
    assert distance(law, sequence_law(TARGET, 2, sampling, prompt)) < 1e-12
    assert (n_retrieval > 0) == has_retrieval, "the retrieval level really drafts"
    assert (n_draft > 0) == (drafter in ("model", "merged")), "the draft model really drafts"


def test_redrawing_from_p_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a rule that is nearly right is told from the right one through the whole hierarchy."""
    monkeypatch.setattr(verify, "residual", lambda p, q: p)
    law, _, _ = answers_law(FOREIGN, levels("model", True), AS_IT_IS, 2)
    assert distance(law, sequence_law(TARGET, 2, AS_IT_IS, FOREIGN)) > 0.01
