"""Queries seen in passage: what chunk selection and evidence are computed from."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

WINDOW = 32  # newest tokens whose queries choose chunks


class Observer(Protocol):
    """Sees the queries of each layer, after RoPE, as they pass."""

    def observe(self, layer: int, start: int, queries: Tensor) -> None:
        """`queries` [heads, tokens, head_dim] of the tokens from sequence position `start`. The store of the pass holds
        their keys and values."""
        ...


class RecentQueries:
    """The queries of the newest tokens of the last forward pass, at most `window` of them, a layer."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._layers: list[Tensor] = []  # of the pass that is or was last
        self._whole: list[Tensor] = []  # of the last pass that went through all layers before it

    def observe(self, layer: int, start: int, queries: Tensor) -> None:
        if layer == 0:
            self._whole = list(self.latest())
            self._layers = []
        self._layers.append(queries[:, -self._window :].clone())

    def latest(self) -> Sequence[Tensor]:
        """[heads, tokens, head_dim] a layer; empty before the first pass. A pass that broke off does not count."""
        return self._layers if len(self._layers) >= len(self._whole) else self._whole


class AnswerQueries:
    """The queries of the first `n_tokens` tokens from position `start`, kept while an answer grows.

    A position seen again (its first token was a rejected draft) replaces what was seen before.
    """

    def __init__(self, start: int, n_tokens: int) -> None:
        self.start, self.n_tokens = start, n_tokens
        self._layers: dict[int, Tensor] = {}

    def observe(self, layer: int, start: int, queries: Tensor) -> None:
        first = max(start, self.start)
        last = min(start + queries.shape[1], self.start + self.n_tokens)
        if last <= first:
            return
        if layer not in self._layers:
            n_heads, _, head_dim = queries.shape
            self._layers[layer] = queries.new_zeros(n_heads, self.n_tokens, head_dim)
        seen = queries[:, first - start : last - start]
        self._layers[layer][:, first - self.start : last - self.start] = seen

    def upto(self, end: int) -> Sequence[Tensor]:
        """Queries of the positions from `start` to before `end`, [heads, tokens, head_dim] a layer."""
        n_tokens = max(0, min(self.n_tokens, end - self.start))
        return [self._layers[layer][:, :n_tokens] for layer in sorted(self._layers)]


class Observers:
    """Lets several watch one pass, one after the other."""

    def __init__(self, *parts: Observer) -> None:
        self.parts = parts

    def observe(self, layer: int, start: int, queries: Tensor) -> None:
        for part in self.parts:
            part.observe(layer, start, queries)
