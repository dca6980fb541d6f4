"""A rank that does what rank 0 does, in its order, with its own heads."""

from collections.abc import Callable, Mapping

import torch

from runtime.kv.full import FullStore
from runtime.kv.queries import AnswerQueries, Observer, Observers, RecentQueries
from runtime.kv.retrieval import RetrievalStore
from runtime.models.attention import choose_attend
from runtime.models.decoder import Decoder
from runtime.models.load import open_weights
from runtime.models.weights import WeightReader
from runtime.parallel import messages as told
from runtime.parallel.collective import Collective, device_of
from runtime.parallel.shard import Total, cut_layer, shares, without_head
from runtime.stores import OWN


def load_share(job: told.Job, total: Total, progress: Callable[[int], None]) -> Decoder:
    """The rank's part of the model, without rotary embeddings; `progress` is told the layers done.

    Its weights are dense, also where the file stores them in four-bit groups: several ranks are for GPUs, which have
    no kernel for those.
    """
    spec, device = job.spec, device_of(job.backend, job.rank)
    share = shares(spec, job.n_ranks)[job.rank]
    reader = WeightReader(open_weights(job.source, spec), spec, job.dtype, device)
    layers = []
    for index in range(spec.n_layers):
        layers.append(cut_layer(reader.layer(index), spec, share, total))
        progress(index + 1)
    weights = reader.whole(tuple(layers), job.n_tokens)
    if job.rank > 0:
        weights = without_head(weights)
    return Decoder(share.spec_of(spec), weights, (), choose_attend(device, job.dtype))


def follow(receive: Callable[[], object], reply: Callable[[told.Reply], None]) -> None:
    """Load what the first message says, then do as the others say, for ever."""
    job = receive()
    if not isinstance(job, told.Job):
        raise TypeError(job)
    torch.set_num_threads(job.threads)
    reply(told.Started())
    collective = Collective(job.backend, job.rank, job.n_ranks, job.meeting)
    follower = Follower(load_share(job, collective.total, lambda _: None), collective.total)
    reply(told.Loaded())
    while True:
        follower.do(receive())


class Follower:
    """Holds the counterparts of what rank 0 holds, by their keys."""

    def __init__(self, model: Decoder, total: Total) -> None:
        self._model, self._total = model, total
        self._decoders: dict[int, Decoder] = {}
        self._full: dict[int, FullStore] = {}
        self._retrieval: dict[int, RetrievalStore] = {}
        self._recent: dict[int, RecentQueries] = {}
        self._answer: dict[int, AnswerQueries] = {}

    @torch.inference_mode()
    def do(self, message: object) -> None:
        """What rank 0 does at the same time."""
        match message:
            case told.Forward():
                self._forward(message)
            case told.Length(key=key, method=method, length=length):
                getattr(self._store(key), method)(length)
            case told.Commit(key=key):
                self._store(key).commit()
            case told.Select(key=key, queries=queries):
                self._retrieval[key].select(() if queries is None else self._recent[queries].latest())
            case told.NewDecoder(key=key, ropes=ropes):
                self._decoders[key] = self._model.with_rope(tuple(rope.on(self._model.device) for rope in ropes))
            case told.NewFull(key=key, n_on_device=n_on_device):
                self._full[key] = OWN.full(self._model, n_on_device)
            case told.NewRecent(key=key):
                self._recent[key] = RecentQueries()
            case told.NewAnswer(key=key, start=start, n_tokens=n_tokens):
                self._answer[key] = AnswerQueries(start, n_tokens)
            case told.NewRetrieval(key=key, full=full, queries=queries, budget=budget, chunk_size=chunk_size):
                recent, spec = self._recent[queries], self._model.spec
                self._retrieval[key] = OWN.retrieval(self._full[full], recent, spec, budget, chunk_size)
            case told.Used(full=full, queries=queries, end=end):
                used = OWN.attention_used(self._full[full], self._answer[queries], end, self._model.spec)
                self._total(used.to(self._model.device))
            case told.Forget(key=key):
                for held in (self._decoders, self._full, self._retrieval, self._recent, self._answer):
                    held.pop(key, None)
            case _:
                raise TypeError(message)

    def _store(self, key: int) -> FullStore | RetrievalStore:
        return self._full[key] if key in self._full else self._retrieval[key]

    def _observer(self, key: int) -> Observer:
        held: tuple[Mapping[int, Observer], ...] = (self._recent, self._answer, self._retrieval)
        return next(observers[key] for observers in held if key in observers)

    def _forward(self, message: told.Forward) -> None:
        observers = Observers(*(self._observer(key) for key in message.observers)) if message.observers else None
        ids = torch.tensor(message.ids, device=self._model.device)
        decoder, store = self._decoders[message.decoder], self._store(message.store)
        decoder.forward(ids, store, n_logits=0, observer=observers)
