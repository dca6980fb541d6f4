"""What passes of a shape take in one mode: a prompt's blocks, steps over the full and the retrieval cache, copies."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from runtime.bench.roofline import Roofline, machine_rates
from runtime.bench.shape import Noise, fill, random_weights, rope_of
from runtime.bench.shape_rows import Copied, Timed, Times
from runtime.choices import SeededChoices
from runtime.config import LONGEST_DRAFT, Sampling, Speculation
from runtime.footprint import Pair, block_of, kv_tokens, weight_bytes
from runtime.graphs import captured_on_gpu
from runtime.kv.copying import Copy, CopyStream, copy_stream
from runtime.kv.full import FullStore
from runtime.kv.host import HostStore
from runtime.kv.queries import RecentQueries
from runtime.kv.retrieval import RetrievalStore
from runtime.kv.store import Store
from runtime.models.attention import choose_attend
from runtime.models.decoder import Decoder, Forward, Pass, Weights
from runtime.models.spec import Spec
from runtime.plan import Plan
from runtime.rates import seconds_of
from runtime.sampling import probabilities
from runtime.scorer import Scorer

PASSES = (1, 4, 8, 16, 64)  # tokens
REPEATS = 5
SLOW_SECONDS = 2.0  # a pass that takes longer is timed once


@dataclass(frozen=True, slots=True)
class Shape:
    """A way to run `pair`'s target, called `model`; `n_layers` of its layers are measured. With `twin` its KV cache
    crosses a bus that a processor plays."""

    model: str
    pair: Pair
    way: Plan
    n_layers: int
    twin: bool = False

    @property
    def streams(self) -> bool:
        return self.twin or self.way.streamed.full_kv > 0

    @property
    def spec(self) -> Spec:
        """Of the layers that are measured."""
        return replace(self.pair.target, n_layers=self.n_layers)


class PausableStream:
    """Copies as the stream below it does; while it `is_paused`, nothing is copied and nothing waited for."""

    def __init__(self, stream: CopyStream) -> None:
        self.is_paused = False
        self._stream = stream

    def submit(self, copy: Callable[[], None]) -> Copy:
        return _Nothing() if self.is_paused else self._stream.submit(copy)

    def drain(self) -> None:
        self._stream.drain()


class _Nothing:
    def wait(self) -> None:
        pass


@torch.inference_mode()
def measure_shape(shape: Shape, speculation: Speculation) -> Times:
    """Allocates, fills, times; raises `torch.OutOfMemoryError` where the plan was wrong."""
    way, whole = shape.way, shape.pair.target
    rates = machine_rates(way.device, way.dtype)
    clock = _Clock(shape, speculation)
    packed_bytes = shape.pair.packed_bytes if clock.packs else 0
    n_streamed = whole.n_layers - way.layers_on_gpu if shape.streams else 0
    roof = Roofline(whole, way.dtype, rates, packed_bytes, n_streamed, way.streamed.weights)

    def block(n_held: int) -> Timed:
        return Timed(clock.block, n_held, clock.block_seconds(n_held), roof.seconds(clock.block, n_held, 0))

    first, last = block(0), block(way.context - clock.block)
    passes = tuple(Timed(n, way.context, clock.pass_seconds(n), roof.seconds(n, way.context, n)) for n in PASSES)
    budget = min(speculation.budget_for(way.context), way.context)
    choosing, step = clock.retrieval_seconds()
    retrieval = Timed(1, budget, step, roof.seconds(1, budget, 1, streams=False))
    return Times(
        model=shape.model,
        mode="offload" if shape.twin else way.name,
        twin=shape.twin,
        context=way.context,
        dtype=str(way.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        n_layers=whole.n_layers,
        measured_layers=shape.n_layers,
        layers_on_gpu=way.layers_on_gpu,
        rates=rates,
        first_block=first,
        last_block=last,
        passes=passes,
        retrieval=retrieval,
        choosing_seconds=choosing,
        copied=clock.copied(passes[0].seconds) if shape.streams else None,
        predicted=None if shape.twin else way.predicted,
    )


class _Clock:
    """A random model of the layers measured, and its caches. All seconds it gives are of the whole model."""

    def __init__(self, shape: Shape, speculation: Speculation) -> None:
        way, spec = shape.way, shape.spec
        self.packs = way.bytes.weights > weight_bytes(shape.pair.target, way.dtype)
        self.block = min(block_of(shape.pair.target, way.device, shape.streams), way.context)
        self._shape, self._speculation, self._spec = shape, speculation, spec
        self._noise = Noise(way.dtype, way.device)
        self._stream = PausableStream(copy_stream(way.device))
        weights = random_weights(spec, self._noise, self.packs, self._stream if way.streamed.weights else None)
        self._layers = weights.layers
        ropes, attend = (rope_of(spec, way.device),), choose_attend(way.device, way.dtype)
        self._decoder = Decoder(spec, weights, ropes, attend)
        self._ends = Decoder(spec, Weights(weights.embeddings, (), weights.norm, weights.head), ropes, attend)
        sizes = (spec.n_layers, spec.n_kv_heads, spec.head_dim, way.dtype, way.device)
        self._full = HostStore(*sizes, way.layers_on_gpu, self._stream) if shape.streams else FullStore(*sizes)
        self._full.reserve(kv_tokens(way.context))
        self._queries = RecentQueries()

    def block_seconds(self, n_held: int) -> float:
        """A prompt block over `n_held` tokens; its queries are kept."""
        fill(self._full, self._spec, self._noise, n_held)
        ids = self._ids(self.block)

        def run() -> None:
            self._decoder.forward(ids, self._full, n_logits=0, observer=self._queries)
            self._full.trim(self._full.committed)

        return self._of_all_layers(self._median(run), 0.0)

    def pass_seconds(self, n_tokens: int) -> float:
        """A pass over the full cache with its logits, probabilities and a draw."""
        fill(self._full, self._spec, self._noise, self._shape.way.context)
        return self._of_all_layers(self._median(self._scored(self._decoder, self._full, n_tokens)), self._end(n_tokens))

    def retrieval_seconds(self) -> tuple[float, float]:
        """To choose chunks of all that is held, and to step over them."""
        spec, way = self._spec, self._shape.way
        budget, chunk_size = self._speculation.budget_for(way.context), self._speculation.chunk_size
        cache = RetrievalStore(self._full, self._queries, budget, chunk_size, spec.attention_scale)
        queries = self._queries.latest()
        choosing = self._median(lambda: cache.select(queries))
        over = captured_on_gpu(self._decoder, cache, way.context + LONGEST_DRAFT)
        step = self._median(self._scored(over, cache, 1))
        return self._of_all_layers(choosing, 0.0), self._of_all_layers(step, self._end(1))

    def copied(self, both_seconds: float) -> Copied:
        """A plain step's copies without the computing, its computing without copies."""
        before = self._moved
        self._read_all()
        n_bytes = self._moved - before
        copying = self._median(self._read_all)
        self._stream.is_paused = True
        computing = self.pass_seconds(1)
        self._stream.is_paused = False
        n_layers = self._shape.pair.target.n_layers
        share = n_layers / self._spec.n_layers
        return Copied(round(n_bytes * share), self._of_all_layers(copying, 0.0), computing, both_seconds)

    def _read_all(self) -> None:
        self._full.extend(0)  # as a pass begins: nothing is in the buffers
        for layer, _ in enumerate(self._layers):
            self._full.read(layer)

    @property
    def _moved(self) -> int:
        """Bytes that have come to the device."""
        return self._full.bytes_moved.to_device + self._decoder.moved_bytes

    def _scored(self, model: Forward, store: Store, n_tokens: int) -> Callable[[], None]:
        scorer = Scorer(model, store, Sampling(), answer_start=0)
        tokens, draft = [0] * (store.length + 1), [0] * (n_tokens - 1)

        def run() -> None:
            SeededChoices(0).draw(scorer.score(tokens, draft)[-1])
            store.trim(store.committed)

        return run

    def _end(self, n_tokens: int) -> float:
        """What is no layer's: embeddings, output head, probabilities, a draw; 0 where nothing is multiplied."""
        if self._spec.n_layers == self._shape.pair.target.n_layers:
            return 0.0
        ids = self._ids(n_tokens)
        shared = Pass(self._full, 0, (), (), None, choose_attend(self._noise.device, self._noise.dtype))

        def run() -> None:
            logits = self._ends.run(ids, shared, n_tokens)
            SeededChoices(0).draw(probabilities(logits, Sampling())[-1])

        return self._median(run)

    def _of_all_layers(self, seconds: float, end_seconds: float) -> float:
        share = self._shape.pair.target.n_layers / self._spec.n_layers
        return end_seconds + share * max(0.0, seconds - end_seconds)

    def _ids(self, n_tokens: int) -> torch.Tensor:
        return torch.arange(n_tokens, device=self._noise.device) % self._spec.vocab_size

    def _median(self, run: Callable[[], None]) -> float:
        """Of some runs after one that warms up."""
        device = self._noise.device
        run()
        first = seconds_of(device, run)
        if first > SLOW_SECONDS:
            return first
        return statistics.median([first, *(seconds_of(device, run) for _ in range(REPEATS - 1))])
