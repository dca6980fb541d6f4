"""Which prompt tokens an answer's attention really used.

The attention mass summed over an answer favours the newest pages whatever they say. Single weights above a threshold do
not: they are heads that look something up.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from runtime.events import Span
from runtime.kv.full import FullStore

THRESHOLD = 0.3
ROWS = 256  # query rows scored at once, which bounds the scores held in memory


@torch.inference_mode()
def attention_used(
    store: FullStore,
    queries: Sequence[Tensor],
    start: int,
    scale: float,
    windows: Sequence[int | None],
    threshold: float = THRESHOLD,
) -> Tensor:
    """Of each token held, the sum of the single attention weights above `threshold` that it got, [tokens].

    `queries` [heads, tokens, head_dim], one a layer, belong to the positions from `start` on; the store holds at least
    these positions. Each layer sees the newest of its `windows` tokens, or all.
    """
    used = torch.zeros(store.length)
    for layer, (layer_queries, window) in enumerate(zip(queries, windows, strict=False)):
        first = 0 if window is None else max(0, start - window + 1)
        keys = store.keys(layer, first, store.length)
        weights = _weights_above(layer_queries, keys, start - first, scale, window, threshold)
        used[first:] += weights.cpu()
    return used


def used_runs(used: Tensor, spans: Sequence[tuple[int, int]]) -> tuple[Span, ...]:
    """Runs of tokens within `spans` of which `used` [tokens] is not zero, with their sums."""
    return tuple(_runs(used, spans))


def _weights_above(
    queries: Tensor, keys: Tensor, start: int, scale: float, window: int | None, threshold: float
) -> Tensor:
    """Per key, the sum over heads and tokens of attention weights above the threshold, [held]."""
    n_kv_heads, n_held, _ = keys.shape
    n_tokens = queries.shape[1]
    grouped = queries.unflatten(0, (n_kv_heads, -1))  # [kv_heads, group, tokens, head_dim]
    positions = torch.arange(n_held, device=keys.device)
    total = torch.zeros(n_held, device=keys.device)
    for head in range(n_kv_heads):
        rows = grouped[head].flatten(0, 1)
        own = torch.arange(start, start + n_tokens, device=keys.device).repeat(grouped.shape[1])
        for at in range(0, len(rows), ROWS):
            scores = (rows[at : at + ROWS] @ keys[head].T).float() * scale
            places = own[at : at + ROWS, None]
            scores.masked_fill_(positions > places, -torch.inf)
            if window is not None:
                scores.masked_fill_(positions <= places - window, -torch.inf)
            weights = scores.softmax(-1)
            total += weights.masked_fill_(weights < threshold, 0).sum(0)
    return total


def _runs(used: Tensor, spans: Sequence[tuple[int, int]]) -> Iterator[Span]:
    for first, end in spans:
        inside = used[first:end]
        places = torch.nonzero(inside).flatten().tolist()
        begin = 0
        for i in range(1, len(places) + 1):
            if i == len(places) or places[i] != places[i - 1] + 1:
                run = inside[places[begin] : places[i - 1] + 1]
                yield Span(first + places[begin], first + places[i - 1] + 1, float(run.sum()))
                begin = i
