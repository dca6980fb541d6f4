"""Passes of static shape over a store whose buffers stay where they are, captured once in CUDA graphs and replayed.

A short pass is hundreds of small kernels, and starting them one by one takes longer than running them. Captured, they
start together; but what was captured runs on the same addresses and shapes for ever. So where the new tokens lie is
read on the device, attention goes over whole buffers, and a mask hides what is not held. On the CPU the same code runs
as it is (`run_eagerly`): that is how it is tested, and it is slower there than passes of the shapes just needed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from runtime.kv.queries import Observer
from runtime.kv.store import FixedStore, Store
from runtime.models.decoder import Decoder, Forward, Pass

MOST_TOKENS = 16  # longer passes are rare, and each number of tokens has a graph of its own
WARM_UPS = 2  # passes before a capture, in which libraries set themselves up


class Capture(Protocol):
    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """What does as `run` does, any number of times, and gives a tensor that later calls leave alone.

        `run` may be run for it some times over.
        """
        ...


def run_eagerly(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The CPU twin of a capture."""
    return run


class CudaCapture:
    """Captures in CUDA graphs, which share one pool of memory: no two of them run at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                run()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = run()

        def replay() -> Tensor:
            graph.replay()
            return output.clone()  # the next replay of any graph of the pool may write there

        return replay


@dataclass(frozen=True, slots=True)
class _Held:
    """Where tokens lie in the buffers of one kind of layer: the new ones at `places` [tokens]; `mask`
    [group * tokens, capacity] says what each of them sees, for each query head of a KV head."""

    places: Tensor
    mask: Tensor


class _StaticCache:
    """All of a store's buffers, as the layers of a pass see them, and the attention that goes with it.

    Layers of one window lie alike.
    """

    def __init__(self, store: FixedStore, held: dict[int | None, _Held], windows: tuple[int | None, ...]) -> None:
        self.keys_are_rotated = store.keys_are_rotated
        self._store, self._held, self._windows = store, held, windows

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        places = self._held[self._windows[layer]].places
        for buffer, new in zip(self._store.buffers(layer), (keys, values), strict=True):
            buffer.index_copy_(1, places, new)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._store.buffers(layer)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None) -> Tensor:
        """As `Attend`, but that the queries' tokens lie anywhere in the buffers. The query heads of a KV head are
        folded into rows: kernels that take a mask need not repeat the keys for them."""
        rows = queries.reshape(1, keys.shape[0], -1, queries.shape[2])  # [1, kv_heads, group * tokens, head_dim]
        mask = self._held[window].mask
        return scaled_dot_product_attention(rows, keys[None], values[None], mask, scale=scale).reshape(queries.shape)


class CapturedDecoder:
    """A decoder whose short passes over one store are captured, one for each number of tokens, when first needed.

    Longer passes, passes beyond the `longest` position, those over another store and those that are observed go to
    the decoder itself. Either way the store is left alike.
    """

    def __init__(self, decoder: Decoder, store: FixedStore, longest: int, capture: Capture) -> None:
        """`longest`: rotary positions below it can be captured."""
        self._decoder = decoder
        self._store = store
        self._capture = capture
        self._longest = longest
        self._windows = decoder.spec.windows
        # One layer of each kind, which stands for all of them.
        self._kinds = {window: self._windows.index(window) for window in self._windows}
        self._capacities = {window: store.buffers(layer)[0].shape[1] for window, layer in self._kinds.items()}
        self._passes: dict[int, _StaticPass] = {}
        for layer in range(decoder.spec.n_layers):
            for buffer in store.buffers(layer):
                buffer[:, store.held(layer) :].zero_()  # masked, it counts 0 times; but 0 times NaN is NaN

    @property
    def device(self) -> torch.device:
        return self._decoder.device

    @torch.inference_mode()
    def forward(self, ids: Tensor, store: Store, n_logits: int = 1, observer: Observer | None = None) -> Tensor:
        if store is not self._store or observer is not None or len(ids) > MOST_TOKENS:
            return self._decoder.forward(ids, store, n_logits, observer)
        start = store.length
        store.extend(len(ids))
        positions = store.positions(len(ids))
        if positions.stop > self._longest or not self._has_room():
            store.trim(start)
            return self._decoder.forward(ids, store, n_logits)
        try:
            logits = self._pass(len(ids)).run(ids, positions, self._held())
            return logits[len(logits) - n_logits :]
        except BaseException:
            store.trim(start)
            raise

    def _held(self) -> list[int]:
        return [self._store.held(layer) for layer in self._kinds.values()]

    def _has_room(self) -> bool:
        return all(held <= room for held, room in zip(self._held(), self._capacities.values(), strict=True))

    def _pass(self, n_tokens: int) -> "_StaticPass":
        if n_tokens not in self._passes:
            self._passes[n_tokens] = _StaticPass(
                self._decoder, self._store, n_tokens, self._longest, self._capacities, self._capture
            )
        return self._passes[n_tokens]


class _StaticPass:
    """A pass of `n_tokens` tokens. Its inputs are two tensors that stay where they are: the ids, and how many tokens
    come before them, by rotary positions and in the buffers of each kind of layer."""

    def __init__(
        self,
        decoder: Decoder,
        store: FixedStore,
        n_tokens: int,
        longest: int,
        capacities: dict[int | None, int],
        capture: Capture,
    ) -> None:
        device = decoder.device
        self._decoder, self._store, self._capture, self._capacities = decoder, store, capture, capacities
        self._ids = torch.zeros(n_tokens, dtype=torch.long, device=device)
        self._before = torch.zeros(1 + len(capacities), dtype=torch.long, device=device)
        self._steps = torch.arange(n_tokens, device=device)
        self._columns = {window: torch.arange(capacity, device=device) for window, capacity in capacities.items()}
        self._turns = decoder.turns(range(longest))
        self._key_turns = () if store.keys_are_rotated else decoder.turns(range(max(capacities.values())))
        self._replay: Callable[[], Tensor] | None = None

    def run(self, ids: Tensor, positions: range, held: list[int]) -> Tensor:
        """Logits [tokens, vocab] of `ids` at `positions`, the newest of the tokens `held` in each kind of layer."""
        n_tokens = len(ids)
        before = torch.tensor([positions.start, *(n_held - n_tokens for n_held in held)])
        self._ids.copy_(ids, non_blocking=True)
        self._before.copy_(before, non_blocking=True)
        if self._replay is None:
            self._replay = self._capture(self._run)
        return self._replay()

    def _run(self) -> Tensor:
        """Nothing here depends on a value that the host would have to know."""
        positions = self._before[0] + self._steps
        turns = tuple((cos.index_select(0, positions), sin.index_select(0, positions)) for cos, sin in self._turns)
        held = {window: self._lie(window, kind) for kind, window in enumerate(self._capacities)}
        cache = _StaticCache(self._store, held, self._decoder.spec.windows)
        temperatures = self._decoder.temperatures(positions)
        shared = Pass(cache, 0, turns, self._key_turns, temperatures, cache.attend)
        return self._decoder.run(self._ids, shared, len(self._ids))

    def _lie(self, window: int | None, kind: int) -> _Held:
        places = self._before[1 + kind] + self._steps
        columns = self._columns[window]
        mask = columns <= places[:, None]
        if window is not None:
            mask &= columns > places[:, None] - window
        spec = self._decoder.spec
        return _Held(places, mask.repeat(spec.n_heads // spec.n_kv_heads, 1))


def captured_on_gpu(decoder: Decoder, store: FixedStore, longest: int) -> Forward:
    """The decoder, its short passes over `store` captured where there is a GPU to gain by it."""
    gains = decoder.device.type == "cuda" and decoder.can_be_captured
    return CapturedDecoder(decoder, store, longest, CudaCapture()) if gains else decoder
