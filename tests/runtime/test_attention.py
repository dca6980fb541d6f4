"""Each attention backend against the plain one, which is the definition."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.models import attention
from runtime.models.attention import (
    Attend,
    attend_by_products,
    attend_by_sdpa,
    attend_on_bfloat16_cpu,
    attend_on_cpu,
    attend_plainly,
    choose_attend,
    cpu_multiplies_bfloat16,
)
from runtime.prefill import OFFLOAD_BLOCK

BACKENDS = [attend_on_cpu, attend_by_sdpa, attend_by_products]
HEADS = [(4, 4), (6, 2), (4, 1)]
LENGTHS = [
    (1, 0), (1, 1), (1, 511), (1, 512), (1, 513), (1, 1025), (1, 4200),
    (2, 0), (7, 3), (8, 1030), (64, 64), (85, 700), (86, 700), (129, 0), (257, 5), (300, 1500),
]  # fmt: skip


def strided(n_heads: int, n_tokens: int, head_dim: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Random [heads, tokens, head_dim], the front of a larger buffer as a KV store gives it."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_heads, n_tokens + 37, head_dim, generator=generator).to(dtype)[:, :n_tokens]


def case(
    n_heads: int, n_kv_heads: int, n_tokens: int, n_past: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; the queries are transposed, as the decoder gives them."""
    queries = strided(n_tokens, n_heads, 16, 0, dtype).transpose(0, 1)
    keys, values = (strided(n_kv_heads, n_past + n_tokens, 16, seed, dtype) for seed in (1, 2))
    return queries, keys, values


@pytest.mark.parametrize("attend", BACKENDS)
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), HEADS)
@pytest.mark.parametrize(("n_tokens", "n_past"), LENGTHS)
def test_backends_agree_in_float32(attend: Attend, n_heads: int, n_kv_heads: int, n_tokens: int, n_past: int) -> None:
    """For few queries and for blocks, over no past, short and long ones, whatever is split where."""
    queries, keys, values = case(n_heads, n_kv_heads, n_tokens, n_past, torch.float32)

    expected = attend_plainly(queries, keys, values, 0.5)

    torch.testing.assert_close(attend(queries, keys, values, 0.5), expected, atol=2e-6, rtol=2e-5)


WINDOWED = [
    (1, 0, 5), (1, 4, 5), (1, 5, 5), (1, 700, 512), (2, 0, 1), (7, 3, 9), (7, 3, 10), (8, 1030, 1), (8, 1030, 600),
    (64, 64, 40), (129, 0, 40), (129, 0, 129), (300, 1500, 1024), (700, 0, 600), (700, 500, 3),
]  # fmt: skip


@pytest.mark.parametrize("attend", BACKENDS)
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), HEADS)
@pytest.mark.parametrize(("n_tokens", "n_past", "window"), WINDOWED)
def test_backends_agree_within_a_window(
    attend: Attend, n_heads: int, n_kv_heads: int, n_tokens: int, n_past: int, window: int
) -> None:
    """For windows shorter and longer than the tokens and what lies before them, down to the token alone."""
    queries, keys, values = case(n_heads, n_kv_heads, n_tokens, n_past, torch.float32)

    expected = attend_plainly(queries, keys, values, 0.5, window)

    torch.testing.assert_close(attend(queries, keys, values, 0.5, window), expected, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("attend", [attend_plainly, *BACKENDS])
@pytest.mark.parametrize("n_tokens", [1, 5])
def test_a_window_counts_the_query_s_own_token(attend: Attend, n_tokens: int) -> None:
    """What lies one before the last query's window changes nothing for it; what begins the window does."""
    queries, keys, values = case(4, 2, n_tokens, 40, torch.float32)
    before = attend(queries, keys, values, 0.5, 16)[:, -1]
    values[:, -17] += 3
    outside = attend(queries, keys, values, 0.5, 16)[:, -1]
    values[:, -16] += 3
    inside = attend(queries, keys, values, 0.5, 16)[:, -1]

    torch.testing.assert_close(outside, before, atol=1e-6, rtol=0)
    assert (inside - before).abs().max() > 0.01


@pytest.mark.parametrize("attend", BACKENDS)
@pytest.mark.parametrize(("n_tokens", "n_past"), [(1, 1025), (8, 1030), (129, 0), (300, 700)])
def test_backends_agree_in_bfloat16(attend: Attend, n_tokens: int, n_past: int) -> None:
    """To the rounding of bfloat16: outputs are about 1 and at most some 4, so 2^-7 of that."""
    queries, keys, values = case(6, 2, n_tokens, n_past, torch.bfloat16)

    expected = attend_plainly(queries.float(), keys.float(), values.float(), 0.5)
    actual = attend(queries, keys, values, 0.5)

    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected, atol=0.03, rtol=0.01)


@pytest.mark.parametrize("attend", [attend_plainly, *BACKENDS])
def test_a_query_sees_nothing_after_its_own_token(attend: Attend) -> None:
    """Changing the last token's key and value changes the last output alone."""
    queries, keys, values = case(4, 2, 5, 40, torch.float32)
    before = attend(queries, keys, values, 0.5)
    keys[:, -1] += 3
    values[:, -1] += 3
    after = attend(queries, keys, values, 0.5)

    torch.testing.assert_close(after[:, :-1], before[:, :-1], atol=1e-6, rtol=0)
    assert (after[:, -1] - before[:, -1]).abs().max() > 0.1


@pytest.mark.parametrize("attend", BACKENDS)
def test_scores_far_apart_do_not_overflow(attend: Attend) -> None:
    """One key that outweighs all others by e^thousands is the answer, in whichever part it lies."""
    queries, keys, values = case(4, 2, 3, 2000, torch.float32)
    keys[:, 700] = 400 * queries[:2, 1]
    expected = attend_plainly(queries, keys, values, 1.0)

    actual = attend(queries, keys, values, 1.0)

    assert actual.isfinite().all()
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_the_definition_is_softmax_attention() -> None:
    """One head, two tokens, by hand."""
    queries = torch.tensor([[[1.0], [2.0]]])
    keys, values = torch.tensor([[[1.0], [3.0]]]), torch.tensor([[[10.0], [20.0]]])
    weight = torch.tensor([2.0, 6.0]).softmax(0)

    expected = torch.tensor([[[10.0], [float(weight @ torch.tensor([10.0, 20.0]))]]])

    torch.testing.assert_close(attend_plainly(queries, keys, values, 1.0), expected)


def test_the_cpu_gets_native_code_for_bfloat16() -> None:
    """For float32 the flash kernel is as fast."""
    assert choose_attend(torch.device("cpu"), torch.float32) is attend_on_cpu
    assert choose_attend(torch.device("cpu"), torch.bfloat16) is attend_on_bfloat16_cpu


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_a_block_is_multiplied_as_the_cpu_does_it_fast(monkeypatch: pytest.MonkeyPatch, has_bfloat16: bool) -> None:
    """Of heads that native code does not serve: by products where it multiplies bfloat16, else by the flash kernel,
    which multiplies float32 inside."""
    monkeypatch.setattr(attention, "cpu_multiplies_bfloat16", lambda: has_bfloat16)
    case_ = case(6, 2, 300, 40, torch.bfloat16)
    used = attend_by_products if has_bfloat16 else attend_on_cpu

    with Products() as products:
        found = attend_on_bfloat16_cpu(*case_, 0.1)

    assert bool(products.shapes) == has_bfloat16
    assert torch.equal(found, used(*case_, 0.1))
    torch.testing.assert_close(found, attend_plainly(*case_, 0.1), atol=0.01, rtol=0.02)


@pytest.mark.parametrize("key_step", [1, 4, 256])
def test_tiles_do_not_show(monkeypatch: pytest.MonkeyPatch, key_step: int) -> None:
    """However few rows a tile holds, down to one token, and however far its keys go beyond them, the outputs are the
    same."""
    queries, keys, values = case(6, 2, 9, 40, torch.float32)
    whole = attend_plainly(queries, keys, values, 0.5)
    monkeypatch.setattr(attention, "KEY_STEP", key_step)
    for n_rows in (1, 3, 8, 9, 256):
        monkeypatch.setattr(attention, "TILE_ROWS", n_rows)
        torch.testing.assert_close(attend_by_products(queries, keys, values, 0.5), whole, atol=2e-6, rtol=2e-5)


class Products(TorchDispatchMode):
    """Notes the shapes that are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[torch.Size, ...]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket is torch.ops.aten.mm:
            self.shapes.add((args[0].shape, args[1].shape))
        return func(*args, **(kwargs or {}))


def test_a_block_has_few_shapes_of_products() -> None:
    """Fewer than code is kept for, with a layer's own; compiling each anew made a prefill ten times as slow."""
    queries, keys, values = case(3, 1, OFFLOAD_BLOCK, 30_000, torch.bfloat16)

    with Products() as products:
        attend_by_products(queries, keys, values, 0.1)

    assert 4 <= len(products.shapes) <= 20


GROWTH = """
from app.cli import _prepare_libraries
from app.resolving import resolve

_prepare_libraries(resolve({}, {}))
import psutil, torch
from runtime.models.attention import attend_by_products

keys, values = torch.randn(2, 1, 8192, 64, dtype=torch.bfloat16)
held = []
with torch.inference_mode():
    for n_held in range(2048, 8193, 64):
        attend_by_products(torch.randn(3, 512, 64, dtype=torch.bfloat16), keys[:, :n_held], values[:, :n_held], 0.1)
        held.append(psutil.Process().memory_info().rss)
print(held[-1] - held[len(held) // 3])
"""


@pytest.mark.skipif(not cpu_multiplies_bfloat16(), reason="the processor does not multiply bfloat16")
def test_blocks_of_ever_new_lengths_leave_nothing_behind() -> None:
    """64 lengths in a process set up as the application's. Code kept for them takes 123 MB, holes in the heap more."""
    command, root = [sys.executable, "-c", GROWTH], Path(__file__).parents[2]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, cwd=root)

    assert int(result.stdout) < 40e6


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), HEADS)
@pytest.mark.parametrize(("n_tokens", "n_past"), [(2, 1), (17, 300), (64, 1), (300, 1500)])
def test_where_a_flash_kernel_takes_them_no_mask_is_made(
    n_heads: int, n_kv_heads: int, n_tokens: int, n_past: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called as on a card; its twin here masks as that kernel's causal mask does, from the newest key on."""
    queries, keys, values = case(n_heads, n_kv_heads, n_tokens, n_past, torch.float32)
    expected = attend_plainly(queries, keys, values, 0.5)

    def flash(
        queries: Tensor, keys: Tensor, values: Tensor, dropout: float, is_causal: bool, *, scale: float
    ) -> tuple[Tensor]:
        assert (is_causal, dropout) == (True, 0.0)
        group, n_held = queries.shape[1] // keys.shape[1], keys.shape[2]
        newest = torch.arange(n_held - queries.shape[2], n_held)[:, None]
        scores = queries @ keys.repeat_interleave(group, 1).mT * scale
        scores.masked_fill_(torch.arange(n_held) > newest, -torch.inf)
        return (scores.softmax(-1) @ values.repeat_interleave(group, 1),)

    monkeypatch.setattr(attention, "_flash_on_card", lambda *_: True)
    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention", flash)
    with monkeypatch.context() as without_masks:
        without_masks.setattr(torch, "ones", lambda *_, **__: pytest.fail("a mask is made"))
        mixed = attend_by_sdpa(queries, keys, values, 0.5)
    torch.testing.assert_close(mixed, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(8, 8), (8, 2)])
def test_a_block_over_a_long_past_takes_no_mask_s_memory_on_a_card(n_heads: int, n_kv_heads: int) -> None:
    """One of 2,048 tokens over 65,536: a mask would be 134 MB, and as numbers twice that."""
    queries = torch.randn(n_heads, 2048, 64, dtype=torch.bfloat16, device="cuda")
    keys, values = torch.randn(2, n_kv_heads, 67_584, 64, dtype=torch.bfloat16, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    mixed = attend_by_sdpa(queries, keys, values, 0.125)
    assert torch.cuda.max_memory_allocated() - before < 50_000_000
    expected = attend_plainly(queries[:, -64:], keys, values, 0.125)
    torch.testing.assert_close(mixed[:, -64:], expected, atol=2e-2, rtol=2e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(("n_tokens", "n_past"), LENGTHS)
def test_backends_agree_on_a_gpu(n_tokens: int, n_past: int) -> None:
    """The kernels behind sdpa on CUDA, against the definition on the CPU."""
    queries, keys, values = case(6, 2, n_tokens, n_past, torch.bfloat16)
    expected = attend_plainly(queries.float(), keys.float(), values.float(), 0.5)
    on_gpu = choose_attend(torch.device("cuda"), torch.bfloat16)(queries.cuda(), keys.cuda(), values.cuda(), 0.5)

    torch.testing.assert_close(on_gpu.float().cpu(), expected, atol=0.03, rtol=0.01)
