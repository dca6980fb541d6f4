"""Captured passes against those of the decoder itself: the same logits, and the store left alike.

CUDA graphs are stood in for twice. `run_eagerly` runs the static code as it is. `Recorded` is as strict as a graph: the
operations of the first run are noted and repeated on the very same tensors, whatever the host has learnt since.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runtime import hierarchy, session
from runtime.config import Request
from runtime.graphs import MOST_TOKENS, Capture, CapturedDecoder, CudaCapture, captured_on_gpu, run_eagerly
from runtime.kv.full import FullStore
from runtime.kv.queries import RecentQueries
from runtime.kv.retrieval import RetrievalStore
from runtime.kv.store import FixedStore
from runtime.kv.streaming import StreamingStore
from runtime.models.attention import attend_on_cpu
from runtime.models.decoder import Decoder
from runtime.session import Session
from tests.runtime.sessions import GREEDY, HIERARCHY, PLAIN, ask, draft_always, prompt, tiny
from tests.runtime.tiny import KINDS, Kind, random_ids, tiny_decoder

TOLERANCE = 1e-5
LONGEST = 200
READS = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal")
# Tokens of each pass, how many of them stand, and whether they are committed then.
WALK = (
    (1, 1, False),
    (4, 2, True),
    (1, 1, False),
    (1, 0, True),
    (4, 4, True),
    (2, 1, True),
    (7, 7, True),
    (4, 0, False),
)


class Recording(TorchDispatchMode):
    """Notes operations; one that gives a value to the host cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in READS, f"{func} in a capture"
        result = func(*args, **(kwargs or {}))
        self.steps.append((func, args, kwargs or {}, result))
        return result


class Recorded:
    """A capture on the CPU: each replay repeats the noted operations into the tensors they gave the first time."""

    def __init__(self) -> None:
        self.n_captures = self.n_replays = 0

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.n_captures += 1
        recording = Recording()
        with recording:
            output = run()

        def replay() -> Tensor:
            self.n_replays += 1
            for func, args, kwargs, result in recording.steps:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
            return output.clone()

        return replay


class Walk:
    """A store after a prompt of 129 tokens, and what it takes to go on: for a retrieval cache, the full one."""

    def __init__(self, decoder: Decoder, kind: str) -> None:
        spec, device = decoder.spec, decoder.device
        shape = (spec.n_layers, spec.n_kv_heads, spec.head_dim, decoder.dtype, device)
        ids = random_ids(129).to(device)
        self.full: FullStore | None = None
        self.store: FixedStore
        if kind == "streaming":
            self.store = StreamingStore(*shape, 4, 24)
            for part in ids.split(64):
                decoder.forward(part, self.store, n_logits=0)
                self.store.commit()
            return
        self.full, recent = FullStore(*shape), RecentQueries()
        self.full.reserve(LONGEST)
        decoder.forward(ids, self.full, 0, recent)
        self.full.commit()
        self.store = RetrievalStore(self.full, recent, 48, 8, spec.attention_scale, 5, spec.windows)
        self.store.select(recent.latest())
        self._recent = recent

    def go(self, decoder: Decoder, model: Decoder | CapturedDecoder) -> list[Tensor]:
        """The logits of all passes of the walk, by `model`; `decoder` keeps the full store in step."""
        logits, settled = [], 0
        for step, (n_tokens, n_kept, commits) in enumerate(WALK):
            ids = random_ids(n_tokens, seed=step).to(decoder.device)
            logits.append(model.forward(ids, self.store, n_logits=n_tokens))
            self.store.trim(self.store.length - n_tokens + n_kept)
            settled = self.store.length
            if commits and self.full is not None:
                decoder.forward(
                    random_ids(settled - self.full.length, 9).to(decoder.device), self.full, 0, self._recent
                )
                self.full.commit()
            if commits:
                self.store.commit()
        return logits

    def state(self) -> list[Tensor]:
        lengths = torch.tensor([self.store.length, self.store.committed])
        return [lengths, *(part for layer in range(3) for part in self.store.read(layer))]


def assert_same(ours: Sequence[Tensor], theirs: Sequence[Tensor], tolerance: float = TOLERANCE) -> None:
    """Within `tolerance`, or as much of a number above 1."""
    for one, other in zip(ours, theirs, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("store", ["streaming", "retrieval"])
@pytest.mark.parametrize("kind", KINDS)
def test_captured_passes_are_those_of_the_decoder(kind: Kind, store: str) -> None:
    """Of every family, over either store, through drafts, trims, commits, evictions and new choices of chunks.

    In float64, where different orders of summation do not show; logits are float32.
    """
    decoder, _ = tiny_decoder(kind, dtype=torch.float64, attend=attend_on_cpu)
    ours, theirs = Walk(decoder, store), Walk(decoder, store)
    capture = Recorded()
    for layer in range(3):
        for buffer in ours.store.buffers(layer):
            buffer[:, ours.store.held(layer) :] = torch.nan  # whatever lay in memory

    logits = ours.go(decoder, CapturedDecoder(decoder, ours.store, LONGEST, capture))

    expected = theirs.go(decoder, decoder)
    assert expected[0].std() > 0.5, "logits this flat would hide a fault"
    assert_same(logits, expected, 1e-6)
    assert_same(ours.state(), theirs.state(), 1e-12)
    assert (capture.n_captures, capture.n_replays) == (len({n for n, _, _ in WALK}), len(WALK))


def test_the_twin_runs_the_same_code() -> None:
    """Recorded or run as it is, bit for bit."""
    decoder, _ = tiny_decoder("gemma3_text")
    walks = [Walk(decoder, "retrieval") for _ in range(2)]
    captures: list[Capture] = [Recorded(), run_eagerly]
    first, second = (
        walk.go(decoder, CapturedDecoder(decoder, walk.store, LONGEST, capture))
        for walk, capture in zip(walks, captures, strict=True)
    )
    assert all(map(torch.equal, first, second))


def test_a_recording_shows_what_only_the_host_knows() -> None:
    """Control: a length that the host reads is the same in each replay, so a pass made of it would be found out."""
    length, numbers = [3], torch.arange(5)
    replay = Recorded()(lambda: numbers[: length[0]].sum())
    length[0] = 5
    assert int(replay()) == 3
    numbers += 1
    assert int(replay()) == 6
    with pytest.raises(AssertionError, match="in a capture"):
        Recorded()(lambda: numbers[: int(numbers[0])])


@pytest.mark.parametrize("case", ["long", "far", "observed", "another store"])
def test_what_is_not_captured_goes_to_the_decoder(case: str) -> None:
    """With the same logits, and nothing captured for it."""
    decoder, _ = tiny_decoder("llama")
    ours, theirs = Walk(decoder, "retrieval"), Walk(decoder, "retrieval")
    capture = Recorded()
    longest = ours.store.length + 2 if case == "far" else LONGEST
    model = CapturedDecoder(decoder, theirs.store if case == "another store" else ours.store, longest, capture)
    ids = random_ids(MOST_TOKENS + 1 if case == "long" else 3)
    observer = RecentQueries() if case == "observed" else None

    logits = model.forward(ids, ours.store, 2, observer)

    assert torch.equal(logits, decoder.forward(ids, theirs.store, 2))
    assert all(map(torch.equal, ours.state(), theirs.state()))
    assert capture.n_captures == 0
    assert observer is None or len(observer.latest()) == 3


def test_an_error_leaves_the_store_as_it_was() -> None:
    def fails(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        run()
        raise MemoryError

    decoder, _ = tiny_decoder("llama")
    ours, theirs = Walk(decoder, "streaming"), Walk(decoder, "streaming")
    with pytest.raises(MemoryError):
        CapturedDecoder(decoder, ours.store, 100, fails).forward(random_ids(3), ours.store)
    assert_same(ours.go(decoder, decoder), theirs.go(decoder, decoder), 0)


def test_an_answer_is_the_same_with_captured_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retrieval and draft model through captures, answer after answer: plain decoding's tokens, and drafts accepted as
    often as without. What was captured over the retrieval cache serves the next answer as well."""
    draft_always(monkeypatch, has_retrieval=True)
    model, ids, request = tiny(), prompt(200), Request(GREEDY, max_tokens=40)
    without = Session(model, tiny(seed=1), HIERARCHY, 512)
    expected = [ask(without, ids, request) for _ in range(2)]
    captures: list[Recorded] = []

    def captured(decoder: Decoder, store: FixedStore, longest: int) -> CapturedDecoder:
        captures.append(Recorded())
        return CapturedDecoder(decoder, store, longest, captures[-1])

    monkeypatch.setattr(hierarchy, "captured_on_gpu", captured)
    monkeypatch.setattr(session, "captured_on_gpu", captured)
    ours = Session(model, tiny(seed=1), HIERARCHY, 512)

    for plain in expected:
        end = ask(ours, ids, request)
        assert end.token_ids == plain.token_ids == ask(Session(model, None, PLAIN, 512), ids, request).token_ids
        assert end.stats.levels == plain.stats.levels
    assert len(captures) == 3, "one over the retrieval cache, and one over each answer's draft cache"
    assert all(0 < capture.n_captures < capture.n_replays for capture in captures)


def test_on_a_cpu_nothing_is_captured() -> None:
    """There shapes that are just needed are faster than static ones."""
    decoder, _ = tiny_decoder("llama")
    assert captured_on_gpu(decoder, Walk(decoder, "streaming").store, 100) is decoder


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("store", ["streaming", "retrieval"])
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_graphs_give_what_the_decoder_gives(kind: Kind, store: str) -> None:
    decoder, _ = tiny_decoder(kind, device="cuda")
    ours, theirs = Walk(decoder, store), Walk(decoder, store)
    logits = ours.go(decoder, CapturedDecoder(decoder, ours.store, LONGEST, CudaCapture()))
    assert_same(logits, theirs.go(decoder, decoder), 1e-3)
    assert_same(ours.state(), theirs.state(), 1e-3)
