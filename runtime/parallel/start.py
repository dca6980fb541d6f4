"""From a located model to one that several ranks run together."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.events import Progress
from runtime.models.load import Model, ModelFacts
from runtime.models.rope import build_ropes, planned_length
from runtime.models.sources import Source
from runtime.parallel import messages as told
from runtime.parallel.collective import Backend, device_of
from runtime.parallel.following import load_share
from runtime.parallel.led import LedDecoder, LedStores
from runtime.parallel.shard import shares
from runtime.parallel.team import Team


@dataclass(frozen=True, slots=True)
class Shared:
    """A model of which this process holds the first part, what makes its stores, and the ranks that hold the rest:
    whoever has it closes them."""

    model: Model
    stores: LedStores
    team: Team


def load_shared(
    source: Source,
    facts: ModelFacts,
    dtype: torch.dtype,
    n_ranks: int,
    threads: int,
    progress: Callable[[Progress], None],
    backend: Backend,
) -> Shared:
    """Start the other ranks and load the model, each rank its part, with `threads` CPU threads each.

    Progress counts this rank's layers. Raises `InvalidSetting` where the model has fewer KV heads than there are
    ranks, `ModelDamaged`, `UnsupportedModel`, `RankLost`.
    """
    spec, n_tokens = facts.spec, facts.tokenizer.n_tokens
    shares(spec, n_ranks)  # which refuses before anything is started
    nowhere = Path()
    job = told.Job(source, spec, n_tokens, dtype, backend, 0, n_ranks, nowhere, threads)
    team = Team(job)
    try:
        progress(Progress("load", 0, spec.n_layers))
        part = load_share(job, team.total, lambda done: progress(Progress("load", done, spec.n_layers)))
        team.wait_until_loaded()
        shortest = planned_length(1, facts.config, spec.trained_context)
        ropes = build_ropes(facts.config, spec.trained_context, shortest, device_of(backend, 0))
        decoder = LedDecoder.leading(team, part, ropes)
        return Shared(Model(decoder, facts.config, facts.tokenizer), LedStores(team), team)
    except BaseException:
        team.close()
        raise
