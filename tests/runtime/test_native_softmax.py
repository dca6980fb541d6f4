"""The compiled softmax of a prompt block's scores, against PyTorch's in float32."""

import pytest
import torch
from torch import Tensor

from runtime.native.machine import can_compile
from runtime.native.softmax import weigh_in_place

pytestmark = pytest.mark.skipif(not can_compile(), reason="PyTorch runs under another OpenMP than GNU's here")


def scored(n_rows: int, n_keys: int, size: float = 3.0) -> Tensor:
    return (torch.randn(n_rows, n_keys, generator=torch.Generator().manual_seed(n_keys)) * size).bfloat16()


def expected(scores: Tensor, n_tokens: int, position: int) -> Tensor:
    tokens = torch.arange(len(scores)) % n_tokens
    seen = torch.arange(scores.shape[1]) <= position + tokens[:, None]
    return scores.float().masked_fill(~seen, -torch.inf).softmax(-1)


@pytest.mark.parametrize(("group", "n_tokens"), [(1, 1), (3, 5), (2, 17)])
@pytest.mark.parametrize(("position", "n_after"), [(0, 0), (3, 11), (15, 16), (16, 0), (700, 300)])
def test_each_row_weighs_what_it_sees(group: int, n_tokens: int, position: int, n_after: int) -> None:
    """Up to bfloat16's rounding; with keys behind all tokens and without, in whole vectors and in odd numbers."""
    scores = scored(group * n_tokens, position + n_tokens + n_after)
    exact = expected(scores, n_tokens, position)

    sums = weigh_in_place(scores, n_tokens, position)

    torch.testing.assert_close(scores.float() / sums, exact, atol=1e-6, rtol=2**-7)
    assert torch.equal(scores == 0, exact == 0)


def test_what_is_not_seen_may_be_anything() -> None:
    """Not a number among it; the largest score seen weighs 1 however far apart they lie."""
    scores = scored(4, 40, size=1e4)
    exact = expected(scores, 4, 20)
    scores[0, 21:] = torch.nan
    scores[1, 22:] = torch.inf

    sums = weigh_in_place(scores, 4, 20)

    assert (scores.amax(-1) == 1).all()
    torch.testing.assert_close(scores.float() / sums, exact, atol=1e-6, rtol=2**-7)


def test_threads_do_not_show() -> None:
    before, found = torch.get_num_threads(), []
    try:
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            scores = scored(90, 1000)
            found.append((weigh_in_place(scores, 30, 900), scores))
    finally:
        torch.set_num_threads(before)

    assert all(torch.equal(left, right) for other in found for left, right in zip(found[0], other, strict=True))
