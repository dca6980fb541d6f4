"""One run: every system and rival in turn over the same prompts, so that a machine that drifts drifts for all."""

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import TypeVar

import torch

from runtime.bench import plot
from runtime.bench.plan import Plan, Rival, Task
from runtime.bench.rivals.process import RivalProcess, require
from runtime.bench.rivals.rival import Job
from runtime.bench.rows import HEADING, Row, Sample, describe, describe_overlap, ratio_table, ratios, summed
from runtime.bench.runner import Ours, Runner
from runtime.bench.systems import speculation_of
from runtime.bench.tasks import CHARACTERS_PER_TOKEN, copied, looped, prompts, slices
from runtime.bench.text import standard_library_source, text_of
from runtime.bench.twin import BUS, twin_session
from runtime.config import EngineConfig, Sampling
from runtime.engine import Engine, assemble
from runtime.errors import RivalFailed
from runtime.models.load import read_facts
from runtime.models.rope import rope_kind, stretch
from runtime.models.sources import locate
from runtime.session import Session

WARM_PROMPT_TOKENS, WARM_ANSWER_TOKENS = 64, 4
# Between an untimed token and the timed answer. A session decodes with as many threads as find a core to themselves, by
# what other processes did since it last looked: until then that is the rival which has just answered.
SETTLE_SECONDS = 0.15
TWIN_NOTE = (
    "offload: there is no CUDA GPU here, so this is its twin on the processor. A thread copies each layer of the\n"
    f"KV cache while the one before computes, slowed to a bus of {BUS / 1e9:g} GB a second. Tokens, bytes moved and\n"
    "overlap are real; speeds are those of this bus and this processor, and say nothing of a card."
)

_T = TypeVar("_T")
NewSession = Callable[[int], Session]
Start = Callable[[Rival, int], Runner]  # a rival for sequences of up to so many tokens; may raise `RivalFailed`


def run(config: EngineConfig, plan: Plan, sampling: Sampling) -> tuple[Row, ...]:
    """Measure, print a table as it grows and ratios last, write what the plan asks for; raises `EngineError`.

    What is not installed is told before the model is loaded. JSON is written whenever a context is done.
    """
    for rival in plan.against:
        require(rival)
    if plan.plot_path is not None:
        plot.require()
    for system in plan.systems:
        speculation_of(system, config.speculation).chosen_drafter(config.draft_model is not None)
    chains = [replace(sampling, temperature=value) for value in plan.temperatures or (sampling.temperature,)]
    is_twin = config.mode == "offload" and not torch.cuda.is_available()
    if is_twin:
        config = replace(config, mode="cpu")
    engine = assemble(replace(config, context=max(64, max(plan.contexts) + plan.answer_tokens)), lambda _: None)
    new_session = partial(twin_session, engine) if is_twin else engine.new_session
    rows: list[Row] = []
    try:
        facts = engine.facts
        print(f"{facts.model}: {facts.parameters / 1e6:,.0f}M parameters, {facts.dtype}, {facts.threads} threads")
        print(TWIN_NOTE if is_twin else f"{facts.mode}: {facts.mode_reason}")
        print(
            f"{plan.n_prompts} prompts x {plan.n_seeds} seeds, {plan.answer_tokens} tokens each\n\n{HEADING}",
            flush=True,
        )
        for row in measure(engine, config, plan, chains, new_session, lambda *which: _start(engine, config, *which)):
            if row.overlaps and row.context not in {other.context for other in rows}:
                print(*(f"{row.context:>8,}  {describe_overlap(overlap)}" for overlap in row.overlaps), sep="\n")
            rows.append(row)
            print(describe(row), flush=True)
            if plan.json_path is not None:
                plan.json_path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", "utf-8")
    finally:
        engine.close()
    print("", *ratio_table(ratios(rows, plan.against)), sep="\n")
    if plan.plot_path is not None:
        plot.draw(rows, plan.plot_path)
    return tuple(rows)


def measure(
    engine: Engine, config: EngineConfig, plan: Plan, chains: Sequence[Sampling], new_session: NewSession, start: Start
) -> Iterator[Row]:
    """Rows context by context; `chains` are the sampling options, one for each temperature.

    A rival that cannot run the model is told of and left out.
    """
    longest = max(plan.contexts)
    n_characters = CHARACTERS_PER_TOKEN * longest * plan.n_prompts
    text = text_of(plan.files, n_characters) if plan.files else standard_library_source(n_characters)
    ids = engine.tokenizer.encode(text)
    made = {
        context: [prompts(engine.tokenizer, part, plan) for part in slices(ids, context, plan.n_prompts)]
        for context in plan.contexts
    }
    able = list(plan.against)
    for context in plan.contexts:
        n_tokens = context + plan.answer_tokens
        with ExitStack() as stack:
            runners: list[Runner] = [Ours(new_session, plan.systems, config.speculation, n_tokens)]
            stack.callback(runners[0].close)
            for rival in tuple(able):
                try:
                    runners.append(start(rival, n_tokens))
                    stack.callback(runners[-1].close)
                except RivalFailed as error:
                    able.remove(rival)
                    print(f"{rival} cannot run this model: {error.reason}", flush=True)
            yield from _compare(context, runners, made[context], plan, chains)


def _compare(
    context: int,
    runners: Sequence[Runner],
    made: Sequence[dict[Task, list[int]]],
    plan: Plan,
    chains: Sequence[Sampling],
) -> Iterator[Row]:
    """The rows of one context; each prompt is prefilled once by each runner, and who goes first changes every time."""
    prefills: dict[str, list[float]] = defaultdict(list)
    samples: dict[tuple[Task, float, str], list[Sample]] = defaultdict(list)
    contestants = [(runner, system) for runner in runners for system in runner.systems]
    warm = made[0][plan.tasks[0]][-WARM_PROMPT_TOKENS:]
    for runner, system in contestants:
        runner.prefill(warm)
        runner.answer(system, warm, replace(chains[0], seed=0), WARM_ANSWER_TOKENS)
    for number, by_task in enumerate(made):
        for runner in _from(number, runners):
            seconds = runner.prefill(by_task[plan.tasks[0]])
            prefills[runner.name].append(seconds)
            note = f"{context:,} tokens, prompt {number + 1} of {len(made)}: {runner.name} prefilled in {seconds:.1f} s"
            print(note, file=sys.stderr, flush=True)
        answers = product(by_task.items(), chains, plan.seeds)
        for turn, ((task, ids), chain, seed) in enumerate(answers, start=number):
            for runner, system in _from(turn, contestants):
                runner.answer(system, ids, replace(chain, seed=0), 1)
                time.sleep(SETTLE_SECONDS)
                timed = runner.answer(system, ids, replace(chain, seed=seed), plan.answer_tokens)
                sample = Sample(
                    timed.tokens_per_second,
                    timed.levels,
                    copied(ids, timed.ids),
                    looped(timed.ids),
                    timed.moved_bytes_per_token,
                )
                samples[task, chain.temperature, system].append(sample)
    overlaps = {runner.name: runner.overlaps() for runner in runners if isinstance(runner, Ours)}
    for task, chain, (runner, system) in product(plan.tasks, chains, contestants):
        taken = samples[task, chain.temperature, system]
        speeds = tuple(sample.tokens_per_second for sample in taken)
        yield Row(
            context=context,
            task=task,
            system=system,
            temperature=chain.temperature,
            prefill_seconds=statistics.median(prefills[runner.name]),
            tokens_per_second=statistics.median(speeds),
            levels=summed(sample.levels for sample in taken),
            answer_tokens=plan.answer_tokens,
            copied_tokens=statistics.median_low(sample.copied.total for sample in taken),
            looped_tokens=statistics.median_low(sample.looped.total for sample in taken),
            longest_copy=statistics.median_low(sample.copied.longest for sample in taken),
            peak_rss_bytes=runner.peak_bytes(),
            prefills=tuple(prefills[runner.name]),
            speeds=speeds,
            moved_bytes_per_token=statistics.median(sample.moved_bytes_per_token for sample in taken),
            overlaps=overlaps.get(runner.name, ()),
        )


def _from(turn: int, each: Sequence[_T]) -> list[_T]:
    """All of `each` in their order, another one first every turn."""
    first = turn % len(each)
    return [*each[first:], *each[:first]]


def _start(engine: Engine, config: EngineConfig, rival: Rival, n_tokens: int) -> Runner:
    """`rival` with our model, threads and number format, and with our stretch of the rotary embedding."""
    source = locate(config.model, config.cache_dir, False, lambda _: None)
    if rival != "transformers" and source.path.is_dir():
        raise RivalFailed(rival, "it is no GGUF file")
    model, facts = read_facts(source, config.cache_dir).config, engine.facts
    factor = stretch(n_tokens, model, facts.trained_context) if rope_kind(model) == "default" else 1.0
    job = Job(source.path, facts.threads, facts.dtype, facts.device, n_tokens, facts.trained_context, factor)
    return RivalProcess(rival, job)
