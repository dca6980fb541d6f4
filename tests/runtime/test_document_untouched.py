"""A document's keys and values are bit-identical after any answer, any Stop and any error, with drafting on."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from runtime.config import Request, Sampling, Speculation
from runtime.kv.queries import RecentQueries
from runtime.models.attention import attend_on_cpu
from runtime.session import Session
from tests.runtime.sessions import GREEDY, HIERARCHY, PLAIN, ask, draft_always, kept_keys, prompt, tiny

DOCUMENT, QUESTION = prompt(100), prompt(20, seed=5)
SAMPLED = Sampling(1.0, seed=8, repetition_penalty=1.1)


class Fault(Exception):
    """What goes wrong on purpose."""


class Failing:
    """Lets `n_left` calls pass and raises at the next."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.n_left: int | None = None

    def count(self) -> None:
        self.n_calls += 1
        if self.n_left is not None:
            if self.n_left == 0:
                raise Fault
            self.n_left -= 1

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None) -> Tensor:
        self.count()
        return attend_on_cpu(queries, keys, values, scale, window)


@pytest.fixture(autouse=True)
def _drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, has_retrieval=True)


class Untouched:
    """A session over a document whose keys and values must stay as they were prefilled."""

    def __init__(self, failing: Failing | None = None) -> None:
        attend = failing.attend if failing else attend_on_cpu
        self.session = Session(tiny(attend=attend), tiny(seed=1, attend=attend), HIERARCHY, 512)
        ask(self.session, DOCUMENT, Request(GREEDY, 1))
        self._expected = ask(Session(tiny(), None, PLAIN, 512), DOCUMENT, Request(GREEDY, 20)).token_ids
        self._before = kept_keys(self.session, len(DOCUMENT) - 1)

    def events(self, sampling: Sampling, cancel: threading.Event, max_tokens: int = 12) -> Iterator[object]:
        return self.session.answer([*DOCUMENT, *QUESTION], Request(sampling, max_tokens), cancel, time.perf_counter())

    def check(self) -> None:
        n_kept = len(DOCUMENT) - 1
        assert self.session.tokens[:n_kept] == DOCUMENT[:-1], "the document is still held"
        after = kept_keys(self.session, n_kept)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(after, self._before, strict=True))

    def check_answers(self, max_tokens: int, speculation: Speculation) -> None:
        """What is asked next is answered as by a session that nothing happened to."""
        self.session.speculation = speculation
        end = ask(self.session, DOCUMENT, Request(GREEDY, max_tokens))
        assert end.stats.cached_tokens == len(DOCUMENT) - 1
        assert end.token_ids == self._expected[:max_tokens]
        self.session.speculation = HIERARCHY


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("way", ["stopped", "closed"])
def test_a_stop_at_any_event_leaves_the_document(sampling: Sampling, way: str) -> None:
    untouched = Untouched()
    n_events = len(list(untouched.events(sampling, threading.Event())))
    untouched.check()
    assert n_events > 5
    for stop_at in range(n_events):
        cancel = threading.Event()
        events = untouched.events(sampling, cancel)
        for number, _ in enumerate(events):
            if number == stop_at:
                if way == "closed":
                    events.close()
                    break
                cancel.set()
        untouched.check()
    untouched.check_answers(20, HIERARCHY)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("place", ["attention", "observer"])
def test_an_error_at_any_call_leaves_the_document(
    sampling: Sampling, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attention of the target at both its levels and of the draft model, or an observer, raises at each call."""
    failing = Failing()
    untouched = Untouched(failing if place == "attention" else None)
    if place == "observer":
        observe = RecentQueries.observe
        monkeypatch.setattr(RecentQueries, "observe", lambda *given: (failing.count(), observe(*given))[1])
    failing.n_calls = 0
    list(untouched.events(sampling, threading.Event(), max_tokens=4))
    n_calls = failing.n_calls
    assert n_calls > 10
    for n_left in range(n_calls):
        untouched.check_answers(1, PLAIN)  # and the question is prefilled anew
        failing.n_left = n_left
        with pytest.raises(Fault):
            list(untouched.events(sampling, threading.Event(), max_tokens=4))
        failing.n_left = None
        untouched.check()
    untouched.check_answers(20, HIERARCHY)


def test_a_touched_document_is_found_out() -> None:
    """Negative control: one changed bit in one layer is seen."""
    untouched = Untouched()
    list(untouched.events(GREEDY, threading.Event()))
    _, values = untouched.session._full.read(2)
    values[1, 70, 3] = torch.nextafter(values[1, 70, 3], torch.tensor(9.0))
    with pytest.raises(AssertionError):
        untouched.check()
