"""Weights in four-bit groups: what they stand for, and what a layer of them gives."""

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as dequantize_by_gguf
from torch import Tensor

from runtime.models.linear import Linear
from runtime.models.packed import Groups, PackedLinear, can_pack, in_tiles, read_groups
from runtime.native.linear import LANES
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
    return PackedLinear(exact.to(torch.bfloat16), [groups], bias), exact


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


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0])
@pytest.mark.parametrize("lengths", [(5,), (16, 32), (4, 7, 50), (1,) * 20, (33, 3, 12)])
def test_rows_one_below_the_other_are_cut_into_tiles(kind: GGMLQuantizationType, lengths: tuple[int, ...]) -> None:
    """However many come at a time: of a few projections, or of a part of one."""
    stored = stored_rows(kind, sum(lengths), 64)
    whole = read_groups(stored, kind)
    parts = [read_groups(part, kind) for part in np.split(stored, np.cumsum(lengths)[:-1])]
    assert whole is not None
    assert all(parts)

    cut = list(in_tiles(part for part in parts if part))

    assert all(len(part.codes) % LANES == 0 for part in cut[:-1])
    assert torch.equal(torch.cat([of(part) for part in cut]), of(whole))
    exact = meant(kind, stored).bfloat16()
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    layers = PackedLinear(exact, [whole]), PackedLinear(exact, (part for part in parts if part))
    assert torch.equal(*(layer(hidden) for layer in layers))


def test_there_is_a_kernel_for_cpus_alone() -> None:
    assert can_pack(torch.device("cpu"))
    assert not can_pack(torch.device("cuda"))
