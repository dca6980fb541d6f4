"""A decoder and stores that the other ranks follow: what is done to them here is done there to their counterparts."""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.kv.full import FullStore
from runtime.kv.host import HostStore
from runtime.kv.queries import AnswerQueries, Observer, Observers, RecentQueries
from runtime.kv.retrieval import RetrievalStore
from runtime.kv.store import Store
from runtime.models.attention import Attend
from runtime.models.decoder import Decoder, Weights
from runtime.models.rope import Rope
from runtime.models.spec import Spec
from runtime.parallel import messages as told
from runtime.parallel.team import Team
from runtime.stores import OWN, kv_shape


class LedDecoder(Decoder):
    """Rank 0's part of a model; a pass through it is one through all parts. `spec` is that of the part."""

    def __init__(self, team: Team, spec: Spec, weights: Weights, ropes: tuple[Rope, ...], attend: Attend) -> None:
        super().__init__(spec, weights, ropes, attend)
        self._team = team
        cpu = torch.device("cpu")
        team.note(told.NewDecoder(team.new_key(self), tuple(rope.on(cpu) for rope in ropes)))

    @classmethod
    def leading(cls, team: Team, part: Decoder, ropes: tuple[Rope, ...]) -> "LedDecoder":
        """Of rank 0's part of the model."""
        return cls(team, part.spec, part._weights, ropes, part._attend)

    @property
    def can_be_captured(self) -> bool:
        """Never: other ranks must be told of every pass."""
        return False

    def with_rope(self, ropes: tuple[Rope, ...]) -> "LedDecoder":
        return LedDecoder(self._team, self.spec, self._weights, ropes, self._attend)

    def forward(self, ids: Tensor, store: Store, n_logits: int = 1, observer: Observer | None = None) -> Tensor:
        """As `Decoder.forward`, over a store of `LedStores`; raises `RankLost`."""
        team = self._team
        key, store_key = team.key(self), team.key(store)
        if key is None or store_key is None:
            raise TypeError(store)
        observers = tuple(observer_key(team, part) for part in _parts(observer))
        with team.together(told.Forward(key, store_key, observers, tuple(ids.tolist()))):
            return super().forward(ids, store, n_logits, observer)


def _parts(observer: Observer | None) -> tuple[Observer, ...]:
    if observer is None:
        return ()
    return observer.parts if isinstance(observer, Observers) else (observer,)


def observer_key(team: Team, observer: Observer) -> int:
    """Of a retrieval cache, or of queries: these have seen nothing before they first come here, so they need no making
    of their own."""
    if (known := team.key(observer)) is not None:
        return known
    if isinstance(observer, RecentQueries):
        team.note(told.NewRecent(key := team.new_key(observer)))
    elif isinstance(observer, AnswerQueries):
        team.note(told.NewAnswer(key := team.new_key(observer), observer.start, observer.n_tokens))
    else:
        raise TypeError(observer)
    return key


class LedStores:
    """Makes stores that the other ranks follow."""

    def __init__(self, team: Team) -> None:
        self.team = team

    def full(self, decoder: Decoder, n_on_device: int | None = None) -> FullStore:
        shape = kv_shape(decoder)
        store: _Led = _LedFull(*shape) if n_on_device is None else _LedHost(*shape, n_on_device)
        store.team, store.key = self.team, self.team.new_key(store)
        self.team.note(told.NewFull(store.key, n_on_device))
        return store

    def retrieval(
        self, full: FullStore, queries: RecentQueries, spec: Spec, budget: int, chunk_size: int
    ) -> RetrievalStore:
        return _LedRetrieval(self.team, full, queries, spec, budget, chunk_size)

    def attention_used(self, full: FullStore, queries: AnswerQueries, end: int, spec: Spec) -> Tensor:
        team = self.team
        full_key, seen_key = team.key(full), observer_key(team, queries)
        if full_key is None:
            raise TypeError(full)
        with team.together(told.Used(full_key, seen_key, end)):
            used = OWN.attention_used(full, queries, end, spec)
            total = used.to(team.device)
            team.total(total)
        return total.cpu()


class _Led(FullStore):
    """What other ranks follow of a full store; `extend`, `write` and `read` are parts of a pass."""

    team: Team
    key: int

    def reserve(self, capacity: int) -> None:
        self.team.note(told.Length(self.key, "reserve", capacity))
        super().reserve(capacity)

    def trim(self, length: int) -> None:
        self.team.note(told.Length(self.key, "trim", length))
        super().trim(length)

    def cut(self, length: int) -> None:
        self.team.note(told.Length(self.key, "cut", length))
        super().cut(length)

    def commit(self) -> None:
        self.team.note(told.Commit(self.key))
        super().commit()


class _LedFull(_Led):
    pass


class _LedHost(_Led, HostStore):
    pass


class _LedRetrieval(RetrievalStore):
    def __init__(
        self, team: Team, full: FullStore, queries: RecentQueries, spec: Spec, budget: int, chunk_size: int
    ) -> None:
        super().__init__(full, queries, budget, chunk_size, spec.attention_scale, windows=spec.windows)
        full_key = team.key(full)
        if full_key is None:
            raise TypeError(full)
        self._team, self._recent_key, self._key = team, observer_key(team, queries), team.new_key(self)
        team.note(told.NewRetrieval(self._key, full_key, self._recent_key, budget, chunk_size))

    def trim(self, length: int) -> None:
        self._team.note(told.Length(self._key, "trim", length))
        super().trim(length)

    def cut(self, length: int) -> None:
        self._team.note(told.Length(self._key, "cut", length))
        super().cut(length)

    def commit(self) -> None:
        self._team.note(told.Commit(self._key))
        super().commit()

    def select(self, queries: Sequence[Tensor]) -> None:
        """For the newest queries seen, which `queries` must be, or for none."""
        self._team.note(told.Select(self._key, self._recent_key if queries else None))
        super().select(queries)
