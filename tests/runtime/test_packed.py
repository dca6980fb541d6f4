"""Weights in four-bit groups: what they stand for, and what a layer of them gives."""

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as dequantize_by_gguf
from torch import Tensor

from runtime.models.linear import Linear
from runtime.models.packed import Groups, PackedLinear, can_pack, joined, read_groups
from runtime.native.multiply import few

KINDS = [
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_1,
    GGMLQuantizationType.Q4_K,
    GGMLQuantizationType.Q8_0,
]


def stored_rows(kind: GGMLQuantizationType, n_rows: int, n_columns: int, seed: int = 0) -> np.ndarray:
    """Random blocks with scales of about a hundredth, [rows, bytes]."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (n_rows * n_columns // block, block_bytes), dtype=np.uint8)
    n_halves = 2 if kind in (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q4_K) else 1
    halves = generator.uniform(0.005, 0.02, (len(blocks), n_halves)).astype(np.float16)
    blocks[:, : 2 * n_halves] = halves.view(np.uint8)
    return blocks.reshape(n_rows, -1)


def meant(kind: GGMLQuantizationType, stored: np.ndarray) -> Tensor:
    return torch.from_numpy(dequantize_by_gguf(stored, kind).reshape(len(stored), -1).copy())


def of(groups: Groups) -> Tensor:
    """The weights that groups stand for, [rows, columns]."""
    codes = groups.codes.float().unflatten(1, (groups.scales.shape[1], -1))
    numbers = (codes * groups.scales.unsqueeze(2) + groups.offsets.unsqueeze(2)).flatten(1)
    return numbers.unflatten(1, (groups.digits, -1)).sum(1)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_groups_stand_for_what_gguf_says(kind: GGMLQuantizationType) -> None:
    stored = stored_rows(kind, 5, 512)
    groups = read_groups(stored, kind)
    assert groups is not None
    assert groups.codes.max() <= 15
    torch.testing.assert_close(of(groups), meant(kind, stored), atol=1e-5, rtol=1e-5)


def test_other_formats_have_no_such_groups() -> None:
    kind = GGMLQuantizationType.Q6_K
    assert read_groups(stored_rows(kind, 2, 256), kind) is None


def packed(kind: GGMLQuantizationType, n_rows: int, bias: Tensor | None = None) -> tuple[PackedLinear, Tensor]:
    stored = stored_rows(kind, n_rows, 256)
    groups = read_groups(stored, kind)
    assert groups is not None
    exact = meant(kind, stored)
    return PackedLinear(exact.to(torch.bfloat16), groups, bias), exact


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("n_rows", [16, 37])
@pytest.mark.parametrize("n_tokens", [1, few(), few() + 1])
def test_the_packed_form_is_as_near_as_the_dense_one(kind: GGMLQuantizationType, n_rows: int, n_tokens: int) -> None:
    """Both round weights to bfloat16; a quantity that is the sum of 256 products differs by about a percent of one.

    However many tokens, however the rows fill the kernel's multiples, with a bias.
    """
    bias = torch.linspace(-1, 1, n_rows, dtype=torch.bfloat16)
    layer, exact = packed(kind, n_rows, bias)
    hidden = torch.randn(n_tokens, 256, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    product = hidden.float() @ exact.T + bias.float()
    ours = (layer(hidden).float() - product).abs()
    dense = (Linear(layer.weight, bias)(hidden).float() - product).abs()
    assert ours.shape == (n_tokens, n_rows)
    assert product.std() > 0.1
    assert ours.max() < 0.03 * product.std()
    assert ours.mean() < 2.5 * dense.mean()


def test_layers_one_below_the_other() -> None:
    """Queries, keys and values of one kind are one layer; a kind with other digits cannot join."""
    kinds = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0)
    parts = [read_groups(stored_rows(kind, 4, 64), kind) for kind in kinds]
    both = joined([part for part in parts[:2] if part])
    assert both is not None
    assert torch.equal(of(both)[4:], of(parts[1]))
    assert joined([part for part in parts if part]) is None


def test_there_is_a_kernel_for_cpus_alone() -> None:
    assert can_pack(torch.device("cpu"))
    assert not can_pack(torch.device("cuda"))
