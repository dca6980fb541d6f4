"""From logits to probabilities: the whole chain in one place, for target and drafts alike.

Order as in transformers' warpers: repetition penalty, temperature, top-k, top-p, min-p.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.config import Sampling

FIRST_CANDIDATES = 256


def probabilities(logits: Tensor, sampling: Sampling, histories: Sequence[Tensor] | None = None) -> Tensor:
    """Distributions to draw from, [tokens, vocab] in float32, for logits of the same shape.

    Greedy is a one-hot at the first largest logit. `histories[i]` holds the ids (int64, may repeat) that row i's
    repetition penalty applies to; it is needed only when the penalty is not 1.
    """
    logits = logits.float()
    if sampling.repetition_penalty != 1 and histories is not None:
        logits = _penalised(logits, sampling.repetition_penalty, histories)
    if sampling.is_greedy:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    probs = torch.softmax(logits / sampling.temperature, -1)
    if sampling.top_k == 0 and sampling.top_p == 1:
        return _above_min_p(probs, sampling.min_p)
    return _above_min_p(_truncated(probs, sampling.top_k, sampling.top_p), sampling.min_p)


def _penalised(logits: Tensor, penalty: float, histories: Sequence[Tensor]) -> Tensor:
    """Logits of tokens seen before, divided by the penalty where positive and multiplied where negative
    (CTRL, arXiv 1909.05858, with the sign rule of transformers)."""
    logits = logits.clone()
    for row, history in zip(logits, histories, strict=True):
        seen = row[history]
        row[history] = torch.where(seen > 0, seen / penalty, seen * penalty)
    return logits


def _truncated(probs: Tensor, top_k: int, top_p: float) -> Tensor:
    """Top-k, then top-p: the smallest set of most probable tokens whose mass reaches `top_p`.

    A full sort of a large vocabulary costs more than a decoder layer, so the most probable few are sorted and
    more only when these do not hold enough mass.
    """
    vocab = probs.shape[-1]
    n_candidates = min(top_k, vocab) if top_k else min(FIRST_CANDIDATES, vocab)
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


def _above_min_p(probs: Tensor, min_p: float) -> Tensor:
    """Only tokens at least `min_p` times as probable as the most probable one, renormalised."""
    if min_p == 0:
        return probs
    kept = probs.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), 0.0)
    return kept / kept.sum(-1, keepdim=True)
