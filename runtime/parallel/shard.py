"""Which rank holds which part of a model, and a layer's weights cut down to it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import linear

from runtime.errors import InvalidSetting
from runtime.models.decoder import Weights
from runtime.models.layer import Layer
from runtime.models.linear import Linear
from runtime.models.spec import Spec

COLUMNS = 32  # of a feed-forward network stay together where its size allows: kernels like round numbers

Total = Callable[[Tensor], None]
"""Replaces a tensor by its sum over all ranks."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank holds of every layer: KV heads, with the query heads that read them, and columns of the
    feed-forward network."""

    kv_heads: range
    columns: range

    def spec_of(self, spec: Spec) -> Spec:
        """The model as the rank sees it."""
        group = spec.n_heads // spec.n_kv_heads
        n_kv_heads = len(self.kv_heads)
        return replace(spec, n_heads=group * n_kv_heads, n_kv_heads=n_kv_heads, intermediate_size=len(self.columns))


def shares(spec: Spec, n_ranks: int) -> tuple[Share, ...]:
    """One share a rank, as even as whole KV heads allow; raises `InvalidSetting` where there are too few of them.

    What is left over goes to the last ranks: the first holds the output head, too.
    """
    if n_ranks > spec.n_kv_heads:
        raise InvalidSetting("gpus", n_ranks, f"at most {spec.n_kv_heads}, one for each KV head of this model")
    is_round = spec.intermediate_size % COLUMNS == 0 and spec.intermediate_size >= COLUMNS * n_ranks
    unit = COLUMNS if is_round else 1
    heads, blocks = _parts(spec.n_kv_heads, n_ranks), _parts(spec.intermediate_size // unit, n_ranks)
    return tuple(
        Share(kv_heads, range(unit * columns.start, unit * columns.stop))
        for kv_heads, columns in zip(heads, blocks, strict=True)
    )


def largest(spec: Spec, n_ranks: int) -> Spec:
    """The model as the rank with the most of it sees it; raises as `shares` does."""
    return shares(spec, n_ranks)[-1].spec_of(spec)


def cut_layer(layer: Layer, spec: Spec, share: Share, total: Total) -> Layer:
    """Of a layer of the model `spec` what `share` says, its sums over the ranks made by `total`."""
    size, group = spec.head_dim, spec.n_heads // spec.n_kv_heads
    heads, columns = share.kv_heads, share.columns
    queries = range(group * size * heads.start, group * size * heads.stop)
    first_key, first_value = spec.n_heads * size, (spec.n_heads + spec.n_kv_heads) * size
    keys = range(size * heads.start, size * heads.stop)
    up = _moved(columns, spec.intermediate_size)
    return replace(
        layer,
        qkv=_rows(layer.qkv, (queries, _moved(keys, first_key), _moved(keys, first_value))),
        output=_Summed(layer.output, queries, total),
        gate_up=_rows(layer.gate_up, (columns, up)),
        down=_Summed(layer.down, columns, total),
    )


def without_head(weights: Weights) -> Weights:
    """For a rank that is not asked for logits."""
    head = Linear(torch.empty(0, weights.head.weight.shape[1]).to(weights.embeddings))
    return replace(weights, head=head)


class _Summed(Linear):
    """Some columns of a layer, whose product is summed over the ranks before the bias is added, once."""

    def __init__(self, whole: Linear, columns: range, total: Total) -> None:
        super().__init__(whole.weight[:, columns.start : columns.stop].clone(), whole.bias)
        self._total = total

    def __call__(self, hidden: Tensor) -> Tensor:
        product = linear(hidden, self.weight)
        self._total(product)
        return product if self.bias is None else product + self.bias


def _rows(whole: Linear, parts: tuple[range, ...]) -> Linear:
    def kept(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[part.start : part.stop] for part in parts])

    return Linear(kept(whole.weight), None if whole.bias is None else kept(whole.bias))


def _moved(part: range, by: int) -> range:
    return range(part.start + by, part.stop + by)


def _parts(n_things: int, n_ranks: int) -> list[range]:
    bounds = [rank * n_things // n_ranks for rank in range(n_ranks + 1)]
    return [range(start, stop) for start, stop in pairwise(bounds)]
