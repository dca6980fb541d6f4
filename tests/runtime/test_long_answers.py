"""Answers longer than the retrieval cache: exact to the end, and drafted as well at the end as at the start."""

import threading

import pytest
import torch

from runtime.choices import SeededChoices
from runtime.config import Request, Sampling, Speculation
from runtime.drafter import NoDrafter
from runtime.drafters.speculative import SpeculativeDrafter
from runtime.events import Finished
from runtime.kv.full import FullStore
from runtime.kv.queries import RecentQueries
from runtime.kv.retrieval import RetrievalStore
from runtime.models.attention import attend_on_cpu
from runtime.models.decoder import Decoder
from runtime.models.load import Model
from runtime.pacing import FixedPacing
from runtime.scorer import Scorer
from runtime.session import Session
from runtime.speculation import decode
from runtime.tokenizer import Tokenizer
from tests.runtime.tiny import N_TOKENS, decoder_of, random_ids, tiny_backend, tiny_decoder, tiny_model

BUDGET = 96


@pytest.mark.parametrize("drafter", ["none", "lookup"])
def test_an_answer_longer_than_the_budget_is_exact(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy, in float32: 420 tokens over a cache of 96, token for token those of plain decoding."""
    monkeypatch.setattr("runtime.hierarchy.AdaptivePacing", lambda most, *_: FixedPacing(most))
    monkeypatch.setattr("runtime.session.gains_by_retrieval", lambda *_: True)
    built, oracle = tiny_decoder("llama", attend=attend_on_cpu, vocab_size=N_TOKENS)
    model = Model(built, oracle.config, Tokenizer(tiny_backend()))
    ids = (random_ids(150) % (N_TOKENS - 3) + 3).tolist()
    speculation = Speculation(gamma=6, budget=BUDGET, chunk_size=4, drafter=drafter)
    plain, fast = (
        finish(Session(model, None, how, 512).answer(ids, Request(Sampling(0), 420), threading.Event(), 0.0))
        for how in (Speculation(enabled=False), speculation)
    )
    assert len(plain.token_ids) == 420
    assert fast.token_ids == plain.token_ids
    assert fast.stats.levels[0].proposed > 420


def finish(events: object) -> Finished:
    *_, end = events
    assert isinstance(end, Finished)
    return end


N_SECTIONS, N_SYMBOLS, SECTION_TOKENS = 24, 8, 48  # a section fills the cache
HIDDEN, HEAD_DIM = 64, 32
STILL = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29]  # axes RoPE leaves be
ASKS, TELLS, SYMBOL, SEEN = 0, N_SECTIONS, 2 * N_SECTIONS, 2 * N_SECTIONS + N_SYMBOLS  # axes of the hidden state


def told(section: int, symbol: int) -> int:
    """Id of a token of the document."""
    return section * N_SYMBOLS + symbol


def said(section: int, symbol: int) -> int:
    """Id of a token of the answer that is about a section."""
    return (N_SECTIONS + section) * N_SYMBOLS + symbol


def reader() -> Decoder:
    """A model of one layer, made by hand, whose next token is about the section the last one is about and says one of
    the symbols found in that section: it attends to the section wherever it stands, and to little else."""
    model = tiny_model(
        "llama", vocab_size=2 * N_SECTIONS * N_SYMBOLS, hidden_size=HIDDEN, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=HEAD_DIM, max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 1e30},
    )  # fmt: skip
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights.fill_(1.0 if "norm" in name else 0.0)
        layer, head, embeddings = model.model.layers[0], model.lm_head.weight, model.model.embed_tokens.weight
        for section, axis in enumerate(STILL):
            for query_head in range(2):
                layer.self_attn.q_proj.weight[query_head * HEAD_DIM + axis, ASKS + section] = 1.0
            layer.self_attn.k_proj.weight[axis, TELLS + section] = 1.0
            for symbol in range(N_SYMBOLS):
                embeddings[told(section, symbol), [TELLS + section, SYMBOL + symbol]] = 1.0
                embeddings[said(section, symbol), ASKS + section] = 1.0
                head[said(section, symbol), ASKS + section] = 2.0
                head[said(section, symbol), SEEN + symbol] = 1.5
        for symbol in range(N_SYMBOLS):
            layer.self_attn.v_proj.weight[symbol, SYMBOL + symbol] = 0.2
            layer.self_attn.o_proj.weight[SEEN + symbol, symbol] = 1.0
    return decoder_of(model, attend=attend_on_cpu)


def acceptance_by_quarter(n_refreshing: int) -> list[float]:
    """Of the drafts of the retrieval level, in an answer of 1,000 tokens that turns to another section every 250.

    Only in the first `n_refreshing` tokens are the queries of the verify pass noted, for chunks to be chosen by.
    """
    model, choices, sampling = reader(), SeededChoices(4), Sampling(1.0, top_p=1.0)
    symbols = torch.randint(2, (N_SECTIONS, SECTION_TOKENS), generator=torch.Generator().manual_seed(0))
    tokens = [told(i, (3 * i + int(symbol)) % N_SYMBOLS) for i in range(N_SECTIONS) for symbol in symbols[i]]
    full, queries = FullStore(1, 1, HEAD_DIM, model.dtype, model.device), RecentQueries()
    model.forward(torch.tensor(tokens), full, 0, queries)
    full.commit()
    store = RetrievalStore(full, queries, BUDGET, 4, HEAD_DIM**-0.5)
    store.select(queries.latest())
    drafter = SpeculativeDrafter("retrieval", Scorer(model, store, sampling, answer_start=0), NoDrafter(), 0, choices)
    refreshing, stale = (Scorer(model, full, sampling, noted, answer_start=0) for noted in (queries, None))
    rates, start = [], len(tokens)
    for quarter, section in enumerate((5, 11, 9, 15)):  # no two of which share a symbol
        tokens.append(said(section, 0))
        proposed = accepted = 0
        while (said_so_far := len(tokens) - start) < 250 * (quarter + 1):
            scorer = refreshing if said_so_far < n_refreshing else stale
            result = next(decode(scorer, drafter, tokens, FixedPacing(4), choices))
            proposed += result.proposed
            accepted += result.verdict.accepted
        rates.append(accepted / proposed)
    return rates


def test_acceptance_does_not_decay_over_a_long_answer() -> None:
    """Chunks are chosen anew from the verify pass's queries: at most a tenth is lost from first to last quarter."""
    first, *_, last = acceptance_by_quarter(n_refreshing=1000)
    assert first > 0.5
    assert last >= 0.9 * first


def test_a_cache_chosen_once_decays() -> None:
    """Negative control: what the answer needs at its start is not what it needs later."""
    first, *_, last = acceptance_by_quarter(n_refreshing=100)
    assert first > 0.5
    assert last < 0.9 * first
