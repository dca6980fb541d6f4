"""The full KV cache in host memory: the bits of one on the device, whenever its copies run and wherever a pass breaks
off."""

import gc
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from runtime.config import DraftCacheChoice, DrafterChoice, Request, Sampling, Speculation
from runtime.kv import host
from runtime.kv.copying import Copy, ThreadCopyStream
from runtime.kv.full import FullStore
from runtime.kv.host import HostStore
from runtime.kv.queries import Observer
from runtime.models.attention import attend_on_cpu
from runtime.models.decoder import Decoder
from runtime.models.load import Model
from runtime.pacing import PassCosts
from runtime.session import Session
from tests.runtime.copy_streams import Fault, NeverWaits, SlowThread, SteppedStream
from tests.runtime.host_stores import LAYERS, everything, five_layers, in_host, on_device, same
from tests.runtime.sessions import GREEDY, HIERARCHY, ask, draft_always, kept_keys, prompt, tiny
from tests.runtime.tiny import KINDS, Kind, random_ids, tiny_decoder

SEEDS = [None, 0, 1, 2]
WIDE = replace(HIERARCHY, budget=160)  # some of its drafts stand


def walk(decoder: Decoder, store: FullStore) -> list[Tensor]:
    """All logits of a prompt in blocks, drafts of which some stand, cuts and growth, and what is held in the end."""
    device, logits, step = decoder.device, [], 0

    def feed(n_tokens: int, n_kept: int) -> None:
        nonlocal step
        step += 1
        logits.append(decoder.forward(random_ids(n_tokens, step).to(device), store, n_logits=n_tokens).cpu())
        store.trim(store.length - n_tokens + n_kept)

    store.reserve(60)
    for n_tokens in (30, 1, 29):
        feed(n_tokens, n_tokens)
        store.commit()
    for n_tokens, n_kept in [(5, 2), (1, 1), (4, 0), (7, 7), (3, 1)]:
        feed(n_tokens, n_kept)
        store.commit()
    store.cut(41)
    feed(9, 9)
    feed(4, 2)
    store.trim(45)
    feed(3, 3)
    logits.extend(half.cpu() for half in everything(store))
    feed(300, 300)  # more than there is room for
    return [*logits, *(half.cpu() for half in everything(store))]


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_over_a_store_on_the_device(kind: Kind) -> None:
    """Bit for bit, for every family, however many layers stay on the device."""
    decoder, _ = tiny_decoder(kind, attend=attend_on_cpu)
    expected = walk(decoder, on_device(decoder))
    for n_on_device in range(decoder.spec.n_layers + 1):
        assert same(walk(decoder, in_host(decoder, SteppedStream(), n_on_device)), expected)
    assert same(walk(decoder, in_host(decoder)), expected)


@pytest.mark.parametrize("n_on_device", range(LAYERS + 1))
def test_it_does_not_matter_when_copies_run(n_on_device: int) -> None:
    """As late as they may, at random before, in a thread, in a slow one, beside slow layers."""
    decoder = five_layers()
    slow = five_layers(lambda *given: (time.sleep(0.0005), attend_on_cpu(*given))[1])
    expected = walk(decoder, on_device(decoder))
    for seed in SEEDS:
        assert same(walk(decoder, in_host(decoder, SteppedStream(seed), n_on_device)), expected)
    assert same(walk(decoder, in_host(decoder, ThreadCopyStream(), n_on_device)), expected)
    assert same(walk(decoder, in_host(decoder, SlowThread(0.001), n_on_device)), expected)
    assert same(walk(slow, in_host(slow, ThreadCopyStream(), n_on_device)), expected)


def ignored(name: str, owner: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is noted there is forgotten, so that nothing waits for it."""
    monkeypatch.setattr(owner, name, property(lambda self: None, lambda self, value: None), raising=False)


@pytest.mark.parametrize("missing", ["every wait", "of arrivals", "of returns"])
def test_a_wait_that_is_missing_is_found_out(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: with copies as late as they may be, each wait of a pass matters."""
    decoder = five_layers()
    expected = walk(decoder, on_device(decoder))
    if missing == "of arrivals":
        ignored("arrived", host._Slot, monkeypatch)
    if missing == "of returns":
        ignored("returned", host._Slot, monkeypatch)
    store = in_host(decoder, NeverWaits() if missing == "every wait" else SteppedStream())
    assert not same(walk(decoder, store), expected)


class BreaksOff:
    """An observer that raises at one layer."""

    def __init__(self, layer: int) -> None:
        self._layer = layer

    def observe(self, layer: int, start: int, queries: Tensor) -> None:
        if layer == self._layer:
            raise Fault


def broken_off(decoder: Decoder, store: FullStore, n_after: int, break_off: Callable[[], Observer | None]) -> None:
    """A pass over 40 tokens of which `break_off` prevents the end; of the 40 `n_after` are kept."""
    decoder.forward(random_ids(40), store)
    store.commit()
    observer = break_off()
    with pytest.raises(Fault):
        decoder.forward(random_ids(6, 1), store, observer=observer)
    assert (store.length, store.committed) == (40, 40)
    store.cut(n_after)


def gone_on(decoder: Decoder, store: FullStore) -> list[Tensor]:
    logits = [decoder.forward(random_ids(n_tokens, 2), store, n_logits=n_tokens) for n_tokens in (4, 40, 1)]
    return [*logits, *everything(store)]


@pytest.mark.parametrize("n_after", [40, 17, 0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_pass_that_breaks_off_anywhere_leaves_no_trace(seed: int | None, n_after: int) -> None:
    """At any call of the copy stream and in any layer; the session may then cut to where copies are still under way."""
    decoder = five_layers()
    plain = on_device(decoder)
    decoder.forward(random_ids(40), plain)
    plain.cut(n_after)
    expected = gone_on(decoder, plain)
    stream = SteppedStream()
    store = in_host(decoder, stream, 1)
    decoder.forward(random_ids(40), store)
    before = stream.n_calls
    decoder.forward(random_ids(6, 1), store)
    n_calls = stream.n_calls - before
    assert n_calls > 3 * (LAYERS - 1)
    for n_left in range(n_calls):
        stream = SteppedStream(seed)

        def at_call(stream: SteppedStream = stream, n_left: int = n_left) -> None:
            stream.n_left = n_left

        store = in_host(decoder, stream, 1)
        broken_off(decoder, store, n_after, at_call)
        stream.n_left = None
        assert same(gone_on(decoder, store), expected)
    for layer in range(LAYERS):
        store = in_host(decoder, SteppedStream(seed), 1)
        broken_off(decoder, store, n_after, lambda layer=layer: BreaksOff(layer))
        assert same(gone_on(decoder, store), expected)


def test_copies_under_way_when_a_pass_breaks_off_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without it they write over what the next pass has put there."""
    decoder = five_layers()
    results = []
    for waits in (True, False):
        store = in_host(decoder, SteppedStream())
        broken_off(decoder, store, 17, lambda: BreaksOff(3))  # layer 4 is on its way to where layer 0 comes next
        if not waits:
            ignored("_last", HostStore, monkeypatch)
        results.append(gone_on(decoder, store))
    assert not same(*results)


def random_pass(stores: list[FullStore], n_tokens: int, n_layers: int, source: torch.Generator) -> None:
    """A pass through the first `n_layers` layers; one that ends before the last is trimmed, as a decoder does."""
    start = stores[0].length
    for store in stores:
        store.extend(n_tokens)
    for layer in range(n_layers):
        keys, values = torch.randn(2, 2, n_tokens, 3, generator=source)
        for store in stores:
            store.write(layer, keys, values)
        assert same(*(list(store.read(layer)) for store in stores))
    if n_layers < LAYERS:
        for store in stores:
            store.trim(start)


def random_look(stores: list[FullStore], choices: random.Random) -> None:
    """Some part of some layer, read in some way."""
    layer, end = choices.randrange(LAYERS), choices.randint(0, stores[0].length)
    start = choices.randint(0, end)
    if choices.random() < 0.5:
        assert same(*(list(store.read(layer)) for store in stores))
    assert same(*([store.keys(layer, start, end), store.values(layer, start, end)] for store in stores))
    if n_chunks := end // 4:
        chunks = torch.tensor([[choices.randrange(n_chunks) for _ in range(3)] for _ in range(2)])
        gathered = [torch.zeros(2, 2, 13, 3) for _ in stores]
        for store, (keys, values) in zip(stores, gathered, strict=True):
            store.gather(layer, chunks, 4, keys, values)
        assert torch.equal(*gathered)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_done_to_it_it_holds_what_a_store_on_the_device_holds(seed: int) -> None:
    """Passes that end and that break off, looks, trims, commits, cuts and growth, in any order."""
    choices, source = random.Random(seed), torch.Generator().manual_seed(seed)
    shape = (LAYERS, 2, 3, torch.float32, torch.device("cpu"))
    stream = SteppedStream(None if seed % 3 == 0 else seed)
    stores = [FullStore(*shape), HostStore(*shape, seed % 4, stream)]
    for _ in range(120):
        match choices.choice(["pass", "pass", "pass", "break off", "look", "look", "trim", "commit", "cut", "reserve"]):
            case "pass":
                random_pass(stores, choices.choice([1, 2, 5, 30]), LAYERS, source)
            case "break off":
                random_pass(stores, choices.choice([1, 5, 30]), choices.randrange(LAYERS), source)
            case "look":
                random_look(stores, choices)
            case "trim":
                length = choices.randint(stores[0].committed, stores[0].length)
                for store in stores:
                    store.trim(length)
            case "commit":
                for store in stores:
                    store.commit()
            case "cut":
                length = choices.randint(0, stores[0].length)
                for store in stores:
                    store.cut(length)
            case "reserve":
                for store in stores:
                    store.reserve(stores[0].length + 40)
    assert same(*map(everything, stores))


def test_layers_are_copied_while_the_layer_before_computes() -> None:
    """Each copy waits until that layer has begun, and the layer until the copy has."""
    met: list[threading.Barrier] = []

    class Meeting(ThreadCopyStream):
        n_copies = 0

        def submit(self, copy: Callable[[], None]) -> Copy:
            number, self.n_copies = self.n_copies, self.n_copies + 1

            def meets() -> None:
                if met and number % 2 and number // 2 < LAYERS - 1:  # those that return new tokens lie between
                    met[number // 2].wait()
                copy()

            return super().submit(meets)

    calls: list[int] = []

    def attend(queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None) -> Tensor:
        calls.append(len(calls))
        if met and len(calls) < LAYERS:
            met[len(calls) - 1].wait()
        return attend_on_cpu(queries, keys, values, scale, window)

    decoder, stream = five_layers(attend), Meeting()
    store = in_host(decoder, stream)
    decoder.forward(random_ids(20), store)
    store.read(0)  # all copies before it are done
    calls.clear()
    stream.n_copies = 0
    met.extend(threading.Barrier(2, timeout=20) for _ in range(LAYERS - 1))
    decoder.forward(random_ids(1), store)
    assert stream.n_copies == 2 * LAYERS
    assert not any(barrier.broken for barrier in met)


def session_in_host(
    model: Model, draft: Model | None, n_on_device: int, speculation: Speculation = WIDE, bus: float | None = None
) -> Session:
    return Session(model, draft, speculation, 512, in_host(model.decoder, ThreadCopyStream(), n_on_device), bus)


@pytest.mark.parametrize("n_on_device", [0, 1, 3])
@pytest.mark.parametrize("retrieval", [True, False], ids=["over retrieval", "alone"])
@pytest.mark.parametrize(
    ("drafter", "draft_cache"),
    [("none", "streaming"), ("lookup", "streaming"), ("model", "retrieval"), ("merged", "streaming")],
)
def test_answers_are_those_of_a_session_on_the_device(
    drafter: DrafterChoice,
    draft_cache: DraftCacheChoice,
    retrieval: bool,
    n_on_device: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever drafts, a question after the other, one of them edited, with evidence; the same tokens, counts, keys."""
    draft_always(monkeypatch, has_retrieval=True)
    model, draft, ids = tiny(), tiny(seed=1), prompt(200)
    chosen = replace(WIDE, retrieval=retrieval, drafter=drafter, draft_cache=draft_cache)
    ours, theirs = session_in_host(model, draft, n_on_device, chosen), Session(model, draft, chosen, 512)
    for sampling in (GREEDY, Sampling(1.0, seed=3)):
        request = Request(sampling, max_tokens=50, evidence_spans=((0, 90), (90, 190)))
        one, other = ask(ours, ids, request), ask(theirs, ids, request)
        assert (one.token_ids, one.stats.levels, one.evidence) == (other.token_ids, other.stats.levels, other.evidence)
        ids = [*ids[:-5], *one.token_ids, *prompt(30, seed=4)]
    if retrieval:
        assert one.stats.levels[0].accepted > 3
    assert same(kept_keys(ours, 300), kept_keys(theirs, 300))


def test_beside_a_slow_bus_as_much_is_drafted_as_pays() -> None:
    """With a retrieval cache that holds everything each draft stands: over a slow bus up to the longest, on the device
    no more than is worth it there, and where a gamma was asked for no more than that."""
    passes = PassCosts(1, 1, (256, 4096), (1, 2, 8), (0.010, 0.011, 0.017), (0.020, 0.021, 0.027))
    model, ids, request = replace(tiny(), passes=passes), prompt(200), Request(GREEDY, max_tokens=200)
    whole = Speculation(budget=512, drafter="none")
    drafted = {}
    for name, session in {
        "slow": session_in_host(model, None, 0, whole, bus=1e5),
        "fast": session_in_host(model, None, 0, whole, bus=1e12),
        "asked": session_in_host(model, None, 0, replace(whole, gamma=3), bus=1e5),
        "device": Session(model, None, whole, 512),
    }.items():
        end = ask(session, ids, request)
        full = end.stats.levels[0]
        assert full.accepted == full.proposed
        drafted[name] = full.proposed / full.rounds
    assert drafted["slow"] > 30
    assert 0 < drafted["asked"] <= 3
    assert max(drafted["fast"], drafted["device"]) <= 6


def test_a_document_survives_an_error_in_any_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """In host memory as on the device: after each the question is answered as if nothing had been."""
    draft_always(monkeypatch, has_retrieval=True)
    n_calls, n_left = 0, -1

    def attend(queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None) -> Tensor:
        nonlocal n_calls, n_left
        n_calls, n_left = n_calls + 1, n_left - 1
        if n_left == 0:
            raise Fault
        return attend_on_cpu(queries, keys, values, scale, window)

    session = session_in_host(tiny(attend=attend), None, 0)
    document, question = prompt(100), Request(GREEDY, 6)
    ask(session, document, Request(GREEDY, 1))
    before = kept_keys(session, 99)
    session._cut(99)
    n_calls = 0
    expected = ask(session, [*document, *prompt(20, seed=5)], question).token_ids
    assert n_calls > 30
    for failing_call in range(1, n_calls + 1):
        session._cut(99)
        n_left = failing_call
        with pytest.raises(Fault):
            ask(session, [*document, *prompt(20, seed=5)], question)
        assert same(kept_keys(session, 99), before)
        assert ask(session, [*document, *prompt(20, seed=5)], question).token_ids == expected


def test_copies_in_a_thread_keep_their_order() -> None:
    stream, seen = SlowThread(0.001), []
    copies = [stream.submit(lambda number=number: seen.append(number)) for number in range(9)]
    copies[4].wait()
    assert seen[:5] == [0, 1, 2, 3, 4]
    stream.drain()
    assert seen == list(range(9))


def test_a_copy_that_fails_is_told_by_all_that_follow() -> None:
    """The pass fails instead of reading what never came, and so does every later one."""
    decoder = five_layers()

    class Fails(ThreadCopyStream):
        n_good = 10**6

        def submit(self, copy: Callable[[], None]) -> Copy:
            self.n_good -= 1
            return super().submit(copy if self.n_good >= 0 else fail)

    def fail() -> None:
        raise Fault

    for n_good in range(2 * LAYERS):
        stream = Fails()
        store = in_host(decoder, stream)
        decoder.forward(random_ids(20), store)
        stream.n_good = n_good
        if n_good < 2 * LAYERS - 2:
            with pytest.raises(Fault):
                decoder.forward(random_ids(1), store)
            assert store.length == 20
        else:  # the last tokens to return are waited for by the next pass
            decoder.forward(random_ids(1), store)
        for _ in range(2):
            with pytest.raises(Fault):
                decoder.forward(random_ids(1), store)


def test_the_thread_ends_with_the_store() -> None:
    decoder, before = five_layers(), threading.enumerate()
    store = in_host(decoder)
    decoder.forward(random_ids(5), store)
    (thread,) = set(threading.enumerate()) - set(before)
    del store
    gc.collect()
    thread.join(timeout=20)
    assert not thread.is_alive()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_logits_are_those_over_a_store_there(kind: Kind) -> None:
    decoder, _ = tiny_decoder(kind, device="cuda")
    expected = walk(decoder, on_device(decoder))
    for n_on_device in range(4):
        for _ in range(5):
            assert same(walk(decoder, in_host(decoder, None, n_on_device)), expected)
