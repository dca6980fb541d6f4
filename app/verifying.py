"""`verify` in words: what was compared, what was found, and whether it is good."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TextIO

from app.arguments import Verify
from app.naming import shown
from app.settings import Settings
from app.terminal import ProgressLine
from runtime import lossless
from runtime.engine import EngineFacts, assemble
from runtime.lossless import Difference, Report

NOT_GOOD = 1


def verify(command: Verify, settings: Settings, stdout: TextIO, stderr: TextIO) -> int:
    """Check, print the verdict on `stdout`, and give the exit status: 0 where all is well, else 1."""
    line = ProgressLine(stderr)
    line.say("Loading the model")
    try:
        engine = assemble(replace(settings.engine_config(), context=lossless.CONTEXT), line.report)
        try:
            speculation = settings.engine_config().speculation
            report = lossless.check(engine, speculation, settings.sampling(), command.n_prompts, line.say)
        finally:
            engine.close()
    finally:
        line.clear()
    text = to_json(report) if command.as_json else describe(report, engine.facts, engine.tokenizer.decode)
    print(text, file=stdout, flush=True)
    return 0 if report.ok else NOT_GOOD


def to_json(report: Report) -> str:
    """The report as one JSON object on a line."""
    record = {
        "greedy_equal": report.greedy_equal,
        "near_ties": [asdict(each) for each in report.near_ties],
        "prompts": report.prompts,
        "sampled_distance": report.worst.distance,
        "bound": report.worst.bound,
        "ok": report.ok,
    }
    return json.dumps(record)


def describe(report: Report, facts: EngineFacts, decode: Callable[[list[int]], str]) -> str:
    """The report in a few lines."""
    verdict = "gives the model's own answers" if report.ok else "does NOT give the model's own answers"
    lines = [f"Speculative decoding {verdict} ({shown(facts.model)}, {facts.dtype}, {facts.device}).", ""]
    lines += _greedy(report, facts.dtype, decode)
    lines += _sampled(report)
    if not report.ok:
        lines += ["", "Answers can still be had without it: --plain. Please report what is above."]
    return "\n".join(lines)


def _greedy(report: Report, dtype: str, decode: Callable[[list[int]], str]) -> list[str]:
    def told(difference: Difference) -> str:
        token, best = (shown(decode([i])) for i in (difference.token, difference.best))
        place = f"prompt {difference.prompt}, token {difference.position}"
        return f"  {place}: “{token}”, where “{best}” is ahead by {difference.gap:.3g}"

    counted = f"{report.prompts} prompts of {lossless.PROMPT_TOKENS} tokens, answers of {lossless.ANSWER_TOKENS}"
    found = "equal with and without drafts, token for token"
    if report.wrong:
        found = "NOT equal with and without drafts"
    elif not report.greedy_equal:
        found = f"equal with and without drafts, but for near-ties ({len(report.near_ties)})"
    lines = [f"Greedy ({counted}): {found}."]
    if report.wrong:
        lines += ["These tokens are not what plain decoding takes:", *map(told, report.wrong)]
    if report.near_ties:
        lines += [f"Logits this close (up to {report.near_tie:g} in {dtype}) change places by rounding:"]
        lines += map(told, report.near_ties)
    return lines


def _sampled(report: Report) -> list[str]:
    lines = []
    for number, each in enumerate(report.sampled, 1):
        full, retrieval = each.levels
        lines += [
            f"Sampled (place {number}, {full.rounds:,} first tokens): {each.distance:.4f} away from the model's own "
            f"distribution; allowed are {each.bound:.4f}.",
            f"  Of {full.proposed:,} tokens drafted over the retrieval cache {full.accepted:,} were accepted; "
            f"of {retrieval.proposed:,} found by lookup for it, {retrieval.accepted:,}.",
        ]
        if full.accepted in (0, full.proposed):
            lines.append("  Drafts were all accepted or all rejected there, which puts little to the test.")
    alarm = f"{1 / lossless.DELTA:,.0f}"
    return [*lines, f"A right decoder exceeds what is allowed less than once in {alarm} such checks."]
