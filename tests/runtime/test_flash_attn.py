"""What we ask of `flash-attn`, without a GPU: a stand-in does what its documentation says, by plain arithmetic."""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime.models.attention import attend_by_sdpa, attend_plainly, choose_attend
from runtime.models.flash_attn import FlashAttention, find_flash_attn

CUDA = torch.device("cuda")
TOLERANCE = 0.02  # the stand-in and the definition each round to bfloat16 once


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """As documented from 2.1 on: `q` [batch, seqlen_q, heads, head_dim], `k` and `v` with fewer heads, head h of q
    reading head h // group. Query i sees keys from i + seqlen_k - seqlen_q - left to i + seqlen_k - seqlen_q + right,
    -1 standing for no limit; causal limits right to 0."""
    assert {q.dtype, k.dtype, v.dtype} in ({torch.float16}, {torch.bfloat16}), "no other formats"
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "the last axis must be contiguous"
    assert q.shape[3] <= 256
    n_queries, n_keys, group = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    left, right = window_size
    right = 0 if causal else right
    keys, values = (part.double().repeat_interleave(group, 2) for part in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), keys) * (
        q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    )
    for i in range(n_queries):
        for j in range(n_keys):
            place = i + n_keys - n_queries
            if (left >= 0 and j < place - left) or (right >= 0 and j > place + right):
                scores[:, :, i, j] = -torch.inf
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), values).to(q.dtype)


def case(n_heads: int, n_kv_heads: int, n_tokens: int, n_past: int, head_dim: int = 16) -> tuple[Tensor, ...]:
    """Queries transposed, keys and values the front of longer buffers, as a decoder and a store give them."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(n_tokens, n_heads, head_dim, generator=generator).bfloat16().transpose(0, 1)
    buffers = torch.randn(2, n_kv_heads, n_past + n_tokens + 9, head_dim, generator=generator).bfloat16()
    return queries, *buffers[:, :, : n_past + n_tokens].unbind(0)


def wrongly_windowed(*parts: Tensor, window_size: tuple[int, int], **options: Any) -> Tensor:
    return flash_attn_func(*parts, window_size=(window_size[0] + 1, window_size[1]), **options)


def wrongly_aligned(*parts: Tensor, causal: bool, **options: Any) -> Tensor:
    """As before 2.1: the mask starts at the oldest key."""
    q, k, v = parts
    n_queries = q.shape[1]
    return flash_attn_func(q, k[:, :n_queries], v[:, :n_queries], causal=causal, **options)


@pytest.mark.parametrize("window", [None, 1, 3, 6, 40])
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize(("n_tokens", "n_past"), [(1, 0), (1, 9), (5, 0), (4, 7)])
def test_flash_attn_is_asked_for_our_attention(
    n_tokens: int, n_past: int, n_heads: int, n_kv_heads: int, window: int | None
) -> None:
    """Layout, grouped heads, scale, alignment and window, against the definition."""
    queries, keys, values = case(n_heads, n_kv_heads, n_tokens, n_past)
    mixed = FlashAttention(flash_attn_func, attend_by_sdpa)(queries, keys, values, 0.4, window)
    expected = attend_plainly(queries.float(), keys.float(), values.float(), 0.4, window)
    torch.testing.assert_close(mixed.float(), expected, atol=TOLERANCE, rtol=0.01)


@pytest.mark.parametrize("wrong", [wrongly_windowed, wrongly_aligned])
def test_another_mask_would_show(wrong: Callable[..., Tensor]) -> None:
    queries, keys, values = case(6, 2, 4, 7)
    mixed = FlashAttention(wrong, attend_by_sdpa)(queries, keys, values, 0.4, 3)
    expected = attend_plainly(queries.float(), keys.float(), values.float(), 0.4, 3)
    assert (mixed.float() - expected).abs().max() > 10 * TOLERANCE


def test_keys_and_values_are_handed_over_where_they_lie() -> None:
    queries, keys, values = case(6, 2, 4, 7)

    def looks(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        assert (k.shape, k.data_ptr(), v.data_ptr()) == ((1, 11, 2, 16), keys.data_ptr(), values.data_ptr())
        return flash_attn_func(q, k, v, **options)

    assert FlashAttention(looks, attend_by_sdpa)(queries, keys, values, 0.4).shape == queries.shape


def test_heads_too_wide_for_it_go_elsewhere() -> None:
    queries, keys, values = case(2, 2, 3, 2, head_dim=264)
    mixed = FlashAttention(flash_attn_func, attend_plainly)(queries, keys, values, 0.1, 2)
    assert torch.equal(mixed, attend_plainly(queries, keys, values, 0.1, 2))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package imports, and there is a card of the Ampere generation."""
    package = types.ModuleType("flash_attn")
    package.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))


@pytest.mark.usefixtures("installed")
def test_it_is_chosen_where_it_imports_and_takes_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        assert find_flash_attn(CUDA, dtype) is flash_attn_func
        assert isinstance(choose_attend(CUDA, dtype), FlashAttention)
    assert choose_attend(CUDA, torch.float32) is attend_by_sdpa
    assert find_flash_attn(torch.device("cpu"), torch.bfloat16) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_attend(CUDA, torch.float16) is attend_by_sdpa


@pytest.mark.usefixtures("installed")
def test_a_package_that_does_not_import_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not installed; a package built for another PyTorch raises the same."""
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert choose_attend(CUDA, torch.bfloat16) is attend_by_sdpa
