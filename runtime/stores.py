"""What holds a sequence's keys and values and looks at them, for whoever runs a model: a session makes them here."""

from typing import Protocol

import torch
from torch import Tensor

from runtime.evidence import attention_used
from runtime.kv.full import FullStore
from runtime.kv.host import HostStore
from runtime.kv.queries import AnswerQueries, RecentQueries
from runtime.kv.retrieval import RetrievalStore
from runtime.models.decoder import Decoder
from runtime.models.spec import Spec


class Stores(Protocol):
    def full(self, decoder: Decoder, n_on_device: int | None = None) -> FullStore:
        """An empty store for the decoder; in main memory but for `n_on_device` layers, where that is not None."""
        ...

    def retrieval(
        self, full: FullStore, queries: RecentQueries, spec: Spec, budget: int, chunk_size: int
    ) -> RetrievalStore: ...

    def attention_used(self, full: FullStore, queries: AnswerQueries, end: int, spec: Spec) -> Tensor:
        """As `evidence.attention_used`, of the queries seen before position `end`."""
        ...


class OwnStores:
    """All heads are here."""

    def full(self, decoder: Decoder, n_on_device: int | None = None) -> FullStore:
        shape = kv_shape(decoder)
        return FullStore(*shape) if n_on_device is None else HostStore(*shape, n_on_device)

    def retrieval(
        self, full: FullStore, queries: RecentQueries, spec: Spec, budget: int, chunk_size: int
    ) -> RetrievalStore:
        return RetrievalStore(full, queries, budget, chunk_size, spec.attention_scale, windows=spec.windows)

    def attention_used(self, full: FullStore, queries: AnswerQueries, end: int, spec: Spec) -> Tensor:
        seen = queries.upto(end)
        return attention_used(full, seen, queries.start, spec.attention_scale, spec.windows)


Shape = tuple[int, int, int, torch.dtype, torch.device]


def kv_shape(decoder: Decoder) -> Shape:
    """Layers, KV heads, head_dim, dtype and device, as stores take them."""
    spec = decoder.spec
    return spec.n_layers, spec.n_kv_heads, spec.head_dim, decoder.dtype, decoder.device


OWN = OwnStores()
