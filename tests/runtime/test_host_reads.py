"""What the host reads from the device while it drafts, counted on the CPU: on a GPU a read waits for the work so far.

One read says which tokens of a draft stand, one which token follows, and one which tokens a draft model proposes.
Nothing else is read, but that sampling which counts tokens asks for each of them.
"""

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from runtime import sampling, speculation
from runtime.choices import SeededChoices
from runtime.config import Sampling
from runtime.drafter import Draft
from runtime.drafters.lookup import LookupDrafter
from runtime.drafters.model import ModelDrafter
from runtime.drafters.speculative import SpeculativeDrafter
from runtime.kv.full import FullStore
from runtime.kv.queries import RecentQueries
from runtime.kv.retrieval import RetrievalStore
from runtime.kv.streaming import StreamingStore
from runtime.pacing import FixedPacing
from runtime.sampling import probabilities
from runtime.scorer import Scorer
from runtime.speculation import decode
from runtime.verify import verify
from tests.runtime.tiny import random_ids, tiny_decoder

GIVES_A_VALUE = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "unique")
COPIES_TO_HOST = (Tensor.tolist, Tensor.cpu, Tensor.numpy)
WHOLE_CHAIN = Sampling(
    0.9,
    top_p=0.8,
    min_p=0.01,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    logit_bias=((7, 1.5),),
)


class HostReads:
    """Counts, while it is entered, what would make the host wait for a GPU."""

    def __init__(self) -> None:
        self.count = 0
        reads = self

        class Operations(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                reads.count += func.overloadpacket.__name__ in GIVES_A_VALUE or is_masked(func, args)
                return func(*args, **(kwargs or {}))

        class Calls(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                to_host = func is Tensor.to and any(str(given) == "cpu" for given in args[1:]) and not kwargs
                reads.count += func in COPIES_TO_HOST or to_host
                return func(*args, **(kwargs or {}))

        self._modes = (Operations(), Calls())

    def __enter__(self) -> "HostReads":
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


def is_masked(func: Any, args: Any) -> bool:
    """Whether `func` is indexing by a mask, of which the host must know how many places it has."""
    if func.overloadpacket.__name__ not in ("index", "index_put_", "_index_put_impl_"):
        return False
    return any(index is not None and index.dtype == torch.bool for index in args[1])


class CountedChoices(SeededChoices):
    """Its numbers come from Python: those of a generator on the CPU are no reads from a device."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._random = random.Random(seed)
        self.n_draws = self.n_picks = 0

    def draw(self, probs: Tensor) -> int:
        self.n_draws += 1
        return super().draw(probs)

    def pick(self, probs: Tensor) -> Tensor:
        self.n_picks += 1
        return super().pick(probs)

    def _uniform(self) -> float:
        return self._random.random()


class CountedDrafter(ModelDrafter):
    n_drafts = 0

    def propose(self, tokens: list[int], gamma: int) -> Draft:
        self.n_drafts += gamma > 0
        return super().propose(tokens, gamma)


READS = {
    "item": lambda t: t.sum().item(),
    "float": lambda t: float(t[0]),
    "int": lambda t: int(t[0]),
    "bool": lambda t: bool((t > 1).all()),
    "if": lambda t: 1 if t[0] > 0 else 0,
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "to": lambda t: t.to("cpu", torch.float64),
    "to device": lambda t: t.to(torch.device("cpu")),
    "nonzero": lambda t: torch.nonzero(t),
    "where": lambda t: t[t > 1],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_every_way_to_read_is_counted_once(read: Any) -> None:
    """Control: the count below is of all there is."""
    numbers = torch.tensor([1.0, 2.0, 3.0])
    with HostReads() as reads:
        numbers.softmax(0).argmax()
    assert reads.count == 0
    with reads:
        read(numbers)
    assert reads.count == 1


def law(n_rows: int, seed: int) -> Tensor:
    return torch.rand(n_rows, 50, generator=torch.Generator().manual_seed(seed)).softmax(-1)


@pytest.mark.parametrize("n_draft", [0, 1, 7])
@pytest.mark.parametrize("is_certain", [True, False])
def test_a_verdict_is_two_reads(n_draft: int, is_certain: bool) -> None:
    """However long the draft and whatever becomes of it; without one the token alone is read."""
    target, proposed = law(n_draft + 1, 0), law(n_draft, 1)
    tokens = tuple(proposed.argmax(-1).tolist())
    draft = Draft(tokens, None if is_certain or not tokens else proposed)
    accepted = set()
    for seed in range(30):
        with HostReads() as reads:
            accepted.add(verify(draft, target, CountedChoices(seed)).accepted)
        assert reads.count == 1 + (n_draft > 0)
    assert accepted > {0} or n_draft == 0 or is_certain


def test_a_gpu_sorts_the_whole_vocabulary_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a CPU sorts a few, looks, and sorts more: the same distribution, and no read."""
    logits = law(3, 2) * 5
    monkeypatch.setattr(sampling, "FIRST_CANDIDATES", 4)
    with HostReads() as reads:
        expected = probabilities(logits, Sampling(1.0, top_p=0.9))
    assert reads.count == 2, "4 of the tokens do not hold enough, nor do 32"
    assert sampling._first_candidates(0, 50, torch.device("cpu")) == 4
    assert sampling._first_candidates(0, 50, torch.device("cuda")) == 50
    assert sampling._first_candidates(20, 50, torch.device("cuda")) == 20
    monkeypatch.setattr(sampling, "_first_candidates", lambda top_k, vocab, device: vocab)
    with HostReads() as reads:
        whole = probabilities(logits, Sampling(1.0, top_p=0.9))
    assert reads.count == 0
    assert torch.equal(whole, expected)


@pytest.mark.parametrize("chain", [Sampling(0.0), Sampling(0.8, 20), WHOLE_CHAIN])
@pytest.mark.parametrize("inner", ["lookup", "model"])
def test_a_whole_answer_reads_verdicts_draws_and_drafts_alone(
    inner: str, chain: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two levels over caches that evict and choose anew."""
    monkeypatch.setattr(sampling, "_first_candidates", lambda top_k, vocab, device: top_k or vocab)
    target, small = tiny_decoder("llama")[0], tiny_decoder("gemma3_text", seed=1)[0]
    ids, recent, choices = random_ids(129), RecentQueries(), CountedChoices(5)
    full = FullStore(3, 2, 16, target.dtype, target.device)
    target.forward(ids[:-1], full, 0, recent)
    full.commit()
    retrieval = RetrievalStore(full, recent, 48, 8, 0.25, refresh_every=8)
    retrieval.select(recent.latest())
    bottom: LookupDrafter | CountedDrafter = LookupDrafter(ids.tolist(), 1)
    if inner == "model":
        cache = StreamingStore(3, 2, 16, small.dtype, small.device, 4, 124)
        small.forward(ids[:-1], cache, 0)
        cache.commit()
        bottom = CountedDrafter(Scorer(small, cache, chain, answer_start=129), choices)
    middle = SpeculativeDrafter("retrieval", Scorer(target, retrieval, chain, answer_start=129), bottom, 2, choices)
    scorer = Scorer(target, full, chain, recent, answer_start=129)
    n_drafted = 0

    def counted(draft: Draft, *given: Any) -> Any:
        nonlocal n_drafted
        n_drafted += len(draft.tokens) > 0
        return verify(draft, *given)

    monkeypatch.setattr(speculation, "verify", counted)
    tokens = ids.tolist()
    rounds = decode(scorer, middle, tokens, FixedPacing(4), choices)
    with HostReads() as reads:
        for _ in range(12):
            next(rounds)

    assert n_drafted > 12, "both levels drafted"
    expected = choices.n_draws + n_drafted
    if isinstance(bottom, CountedDrafter):
        assert bottom.n_drafts < choices.n_picks - choices.n_draws, "it drafts more than one token at a time"
        expected += bottom.n_drafts + (choices.n_picks - choices.n_draws if chain is WHOLE_CHAIN else 0)
    assert reads.count == expected
