"""Attention compiled for this machine's processor against the plain one, which is the definition."""

import pytest
import torch
from torch import Tensor

from runtime.models import attention
from runtime.models.attention import attend_by_products, attend_on_bfloat16_cpu, attend_plainly
from runtime.native.attend import PART, attend_natively, most_rows, serves
from runtime.native.attention import BLOCK
from runtime.native.machine import Products, can_compile, cpu_has_pair_products, cpu_multiplies_tiles

pytestmark = pytest.mark.skipif(not can_compile(), reason="PyTorch's threads are not of GNU OpenMP")

WAYS = [
    "floats",
    "widened",
    pytest.param(
        "pairs",
        marks=pytest.mark.skipif(not cpu_has_pair_products(), reason="the processor does not multiply bfloat16"),
    ),
    pytest.param(
        "tiles",
        marks=pytest.mark.skipif(not cpu_multiplies_tiles(), reason="the processor does not multiply tiles"),
    ),
]


def case(n_heads: int, n_kv_heads: int, n_tokens: int, n_held: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries as the decoder gives them, keys and values at the front of longer buffers that are full of NaN."""
    generator = torch.Generator().manual_seed(n_held * 1000 + n_tokens)
    queries = torch.randn(n_tokens, n_heads, head_dim, generator=generator).bfloat16().transpose(0, 1)
    buffers = torch.full((2, n_kv_heads, n_held + 41, head_dim), torch.nan, dtype=torch.bfloat16)
    buffers[:, :, :n_held] = torch.randn(2, n_kv_heads, n_held, head_dim, generator=generator).bfloat16()
    return queries * 2, buffers[0, :, :n_held], buffers[1, :, :n_held]


@pytest.mark.parametrize("products", WAYS)
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(9, 3), (4, 4), (8, 1)])
@pytest.mark.parametrize("n_tokens", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("n_past", [0, 1, 7, BLOCK - 1, BLOCK, 300, 2 * PART + 3, 3 * PART])
def test_it_is_the_plain_attention_to_bfloat16_s_precision(
    products: Products, n_heads: int, n_kv_heads: int, n_tokens: int, n_past: int
) -> None:
    """At every edge of blocks and parts, for rows that fill vectors of each width or do not."""
    queries, keys, values = case(n_heads, n_kv_heads, n_tokens, n_past + n_tokens, 64)

    expected = attend_plainly(queries, keys, values, 0.125)

    found = attend_natively(queries, keys, values, 0.125, products)
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0.02)


@pytest.mark.parametrize("products", WAYS)
@pytest.mark.parametrize("head_dim", [32, 96, 128, 256])
@pytest.mark.parametrize("n_tokens", [1, 6])
def test_heads_of_every_size_that_it_serves(products: Products, head_dim: int, n_tokens: int) -> None:
    queries, keys, values = case(6, 2, n_tokens, 701, head_dim)

    expected = attend_plainly(queries, keys, values, head_dim**-0.5)

    found = attend_natively(queries, keys, values, head_dim**-0.5, products)
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0.02)


@pytest.mark.parametrize("products", WAYS)
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(9, 3), (8, 1)])
def test_as_many_rows_as_it_takes(products: Products, n_heads: int, n_kv_heads: int) -> None:
    n_tokens = most_rows(products) * n_kv_heads // n_heads
    queries, keys, values = case(n_heads, n_kv_heads, n_tokens, n_tokens + 1300, 64)

    found = attend_natively(queries, keys, values, 0.125, products)

    torch.testing.assert_close(found, attend_plainly(queries, keys, values, 0.125), atol=0.01, rtol=0.02)


@pytest.mark.parametrize("products", WAYS)
def test_each_row_counts_its_own_tokens_and_none_after(products: Products) -> None:
    """A value far larger than the rest stands where one row sees it last and the row before does not."""
    queries, keys, values = case(3, 1, 7, 40, 64)
    values[:, 35] = 1e8

    found = attend_natively(queries, keys, values, 0.125, products).float()

    assert (found[:, :2].abs() < 10).all()
    assert (found[:, 2:] > 100).all()


@pytest.mark.parametrize("products", WAYS)
def test_large_scores_overflow_nothing(products: Products) -> None:
    queries, keys, values = case(3, 1, 2, 1500, 64)
    keys[:, 700] = queries[0, 0] * 100  # takes all of the weight

    found = attend_natively(queries * 30, keys, values, 1.0, products)

    torch.testing.assert_close(found[0, 0], values[0, 700])
    assert found.isfinite().all()


def test_threads_do_not_change_a_bit() -> None:
    queries, keys, values = case(9, 3, 5, 5000, 64)
    before = torch.get_num_threads()
    try:
        found = []
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            found += [attend_natively(queries, keys, values, 0.125) for _ in range(3)]
    finally:
        torch.set_num_threads(before)

    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize(
    ("n_tokens", "has_bfloat16", "n_called"),
    [
        (most_rows() // 3, True, 1),
        (most_rows() // 3 + 1, True, 0),
        (most_rows() // 3, False, 1),
        (2 * (most_rows() // 3) + 1, False, 3),
    ],
)
def test_prompt_blocks_go_by_products_or_in_parts(
    monkeypatch: pytest.MonkeyPatch, n_tokens: int, has_bfloat16: bool, n_called: int
) -> None:
    """In parts where the processor has no instructions for bfloat16, which products would need."""
    called: list[int] = []
    monkeypatch.setattr(attention, "attend_natively", lambda *given: called.append(1) or attend_natively(*given))
    monkeypatch.setattr(attention, "cpu_multiplies_bfloat16", lambda: has_bfloat16)
    queries, keys, values = case(9, 3, n_tokens, n_tokens + 900, 64)

    found = attend_on_bfloat16_cpu(queries, keys, values, 0.125)

    assert len(called) == n_called
    torch.testing.assert_close(found, attend_by_products(queries, keys, values, 0.125), atol=0.02, rtol=0.02)


def test_a_window_is_kept() -> None:
    for n_tokens in (1, 4):
        queries, keys, values = case(9, 3, n_tokens, 900, 64)
        found = attend_on_bfloat16_cpu(queries, keys, values, 0.125, 300)
        expected = attend_plainly(queries, keys, values, 0.125, 300)
        torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


def test_what_it_does_not_serve() -> None:
    assert serves(64, torch.bfloat16)
    assert not serves(80, torch.bfloat16)
    assert not serves(64, torch.float32)
