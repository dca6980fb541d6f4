"""Which prompt tokens single attention weights fall on."""

import pytest
import torch

from runtime.evidence import attention_used, used_runs
from runtime.kv.full import FullStore

N_TOKENS, FIRST_QUERY, WANTED = 20, 15, 12


@pytest.mark.parametrize(("window", "n_looks"), [(None, 5), (8, 5), (5, 2), (4, 1)])
def test_a_token_counts_for_the_queries_that_see_it(window: int | None, n_looks: int) -> None:
    """Five queries want one key, which a sliding layer has left behind for the last of them."""
    store = FullStore(1, 1, N_TOKENS, torch.float32, torch.device("cpu"))
    store.extend(N_TOKENS)
    keys = 50 * torch.eye(N_TOKENS)[None]  # [1, tokens, head_dim]
    store.write(0, keys, keys)
    queries = keys[:, [WANTED]].expand(1, N_TOKENS - FIRST_QUERY, N_TOKENS)

    used = attention_used(store, [queries], FIRST_QUERY, 1.0, [window])
    spans = used_runs(used, [(0, FIRST_QUERY)])

    assert [(span.start, span.end) for span in spans] == [(WANTED, WANTED + 1)]
    assert spans[0].weight == pytest.approx(n_looks)
