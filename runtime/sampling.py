"""From logits to probabilities: the whole chain in one place, for target and drafts alike.

Order as in transformers: logit bias, repetition penalty, (presence and frequency penalty, which it has not,)
temperature, top-k, top-p, min-p.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.config import Sampling

FIRST_CANDIDATES = 256


@dataclass(frozen=True, slots=True)
class History:
    """What stands before each row: `seen` bool [tokens, vocab], in prompt or answer; `counts` [tokens, vocab], how
    often in the answer. None where the sampling does not ask."""

    seen: Tensor | None = None
    counts: Tensor | None = None


class SeenTokens:
    """Counts a growing sequence for the penalties: each settled token once, and the few newer ones anew each time."""

    def __init__(self, sampling: Sampling, answer_start: int) -> None:
        """`answer_start` is the prompt's length: tokens from there on are the answer's."""
        self._counts_sequence, self._counts_answer = sampling.counts_sequence, sampling.counts_answer
        self._answer_start = answer_start
        self._n_settled = 0 if sampling.counts_sequence else answer_start
        self._seen = torch.empty(0, dtype=torch.bool)
        self._counts = torch.empty(0)

    def before(self, tokens: Sequence[int], draft: Sequence[int], n_settled: int, logits: Tensor) -> History:
        """The history of each row of `logits` [len(draft) + 1, vocab]: all of `tokens`, and of `draft` what comes
        before. The first `n_settled` of `tokens` never change again."""
        if len(self._seen) == 0:
            self._seen = logits.new_zeros(logits.shape[1], dtype=torch.bool)
            self._counts = logits.new_zeros(logits.shape[1])
        if n_settled > self._n_settled:
            self._settle(tokens[self._n_settled : n_settled])
        seen, counts = (base.repeat(len(logits), 1) for base in (self._seen, self._counts))
        for position, token in enumerate([*tokens[self._n_settled :], *draft], self._n_settled):
            first_row = max(0, position + 1 - len(tokens))
            seen[first_row:, token] = True
            if position >= self._answer_start:
                counts[first_row:, token] += 1
        return History(seen if self._counts_sequence else None, counts if self._counts_answer else None)

    def _settle(self, tokens: Sequence[int]) -> None:
        ids = torch.tensor(tokens, dtype=torch.long).to(self._seen.device, non_blocking=True)
        self._seen[ids] = True
        answered = ids[max(0, self._answer_start - self._n_settled) :]
        self._counts.index_add_(0, answered, torch.ones_like(answered, dtype=self._counts.dtype))
        self._n_settled += len(tokens)


def probabilities(logits: Tensor, sampling: Sampling, history: History | None = None) -> Tensor:
    """Distributions to draw from, [tokens, vocab] in float32 or wider, for logits of the same shape.

    Greedy is a one-hot at the first largest logit. `history` is needed only where `sampling` counts tokens.
    """
    logits = adjusted(logits, sampling, history)
    if sampling.is_greedy:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    probs = torch.softmax(logits / sampling.temperature, -1)
    if sampling.top_k == 0 and sampling.top_p == 1:
        return _above_min_p(probs, sampling.min_p)
    return _above_min_p(_truncated(probs, sampling.top_k, sampling.top_p), sampling.min_p)


def adjusted(logits: Tensor, sampling: Sampling, history: History | None = None) -> Tensor:
    """The logits [tokens, vocab] with bias and penalties, in float32 or wider; those given are left as they are.

    The repetition penalty divides positive and multiplies negative logits (CTRL, arXiv 1909.05858, with the sign rule
    of transformers).
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if sampling.logit_bias:
        ids, biases = zip(*sampling.logit_bias, strict=True)
        added = torch.tensor(biases, dtype=logits.dtype).to(logits.device, non_blocking=True)
        columns = torch.tensor(ids).to(logits.device, non_blocking=True)
        logits = logits.index_add(1, columns, added.expand(len(logits), -1))
    if not (sampling.counts_sequence or sampling.counts_answer):
        return logits
    if history is None:
        raise ValueError("penalties need the history of every row")
    if history.seen is not None:
        penalty = sampling.repetition_penalty
        logits = torch.where(history.seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    if history.counts is not None:
        logits = logits - sampling.frequency_penalty * history.counts
        logits = torch.where(history.counts > 0, logits - sampling.presence_penalty, logits)
    return logits


def _truncated(probs: Tensor, top_k: int, top_p: float) -> Tensor:
    """Top-k, then top-p: the smallest set of most probable tokens whose mass reaches `top_p`.

    On a CPU a full sort of a large vocabulary costs more than a decoder layer, so the most probable few are sorted and
    more only when these do not hold enough mass. On a GPU to ask whether they do costs more than the sort.
    """
    vocab = probs.shape[-1]
    n_candidates = _first_candidates(top_k, vocab, probs.device)
    while True:
        values, ids = probs.topk(n_candidates, -1)
        total = values.sum(-1, keepdim=True) if top_k else torch.ones_like(values[..., :1])
        mass = values.cumsum(-1)
        if top_k or n_candidates == vocab or bool((mass[..., -1:] >= top_p).all()):
            break
        n_candidates = min(n_candidates * 8, vocab)
    if top_p < 1:
        values = values.masked_fill(mass - values >= top_p * total, 0.0)
    return torch.zeros_like(probs).scatter_(-1, ids, values / values.sum(-1, keepdim=True))


def _first_candidates(top_k: int, vocab: int, device: torch.device) -> int:
    """How many of the most probable tokens are sorted at first."""
    if top_k:
        return min(top_k, vocab)
    return min(FIRST_CANDIDATES, vocab) if device.type == "cpu" else vocab


def _above_min_p(probs: Tensor, min_p: float) -> Tensor:
    """Only tokens at least `min_p` times as probable as the most probable one, renormalised."""
    if min_p == 0:
        return probs
    kept = probs.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), 0.0)
    return kept / kept.sum(-1, keepdim=True)
