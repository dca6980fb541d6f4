"""Layers in four-bit groups compiled for this machine's processor, against the weights they stand for."""

import pytest
import torch
from torch import Tensor

from runtime.native.linear import GROUP, LANES, PAIRS_AT_ONCE
from runtime.native.machine import Products, can_compile, cpu_has_pair_products, cpu_multiplies_tiles
from runtime.native.multiply import multiply, packed, packed_bytes

pytestmark = pytest.mark.skipif(not can_compile(), reason="PyTorch's threads are not of GNU OpenMP")

WAYS = [
    "floats",
    pytest.param(
        "pairs",
        marks=pytest.mark.skipif(not cpu_has_pair_products(), reason="the processor does not multiply bfloat16"),
    ),
    pytest.param(
        "tiles",
        marks=pytest.mark.skipif(not cpu_multiplies_tiles(), reason="the processor does not multiply tiles"),
    ),
]


def layer(n_rows: int, n_groups: int) -> tuple[Tensor, Tensor]:
    """The packed form and the weights [rows, columns] in float64."""
    generator = torch.Generator().manual_seed(n_rows)
    codes = torch.randint(0, 16, (n_rows, n_groups * GROUP), generator=generator, dtype=torch.uint8)
    scales, zeros = torch.randn(2, n_rows, n_groups, generator=generator).bfloat16().float().unbind()
    weights = (codes.double() - 8) * scales.repeat_interleave(GROUP, 1) + zeros.repeat_interleave(GROUP, 1)
    return packed(codes, scales, zeros), weights


@pytest.mark.parametrize("products", WAYS)
@pytest.mark.parametrize(("n_rows", "n_groups"), [(16, 1), (5, 3), (37, 2), (960, 18), (4000, 4)])
@pytest.mark.parametrize("n_tokens", [1, 2, 3, 4, 5, 7, 8, 9, 24])
def test_the_products_are_those_of_the_weights(products: Products, n_rows: int, n_groups: int, n_tokens: int) -> None:
    """To a bfloat16's rounding of the result, whatever the number of tokens and however tiles are filled."""
    weights, meant = layer(n_rows, n_groups)
    inputs = torch.randn(n_tokens, n_groups * GROUP, generator=torch.Generator().manual_seed(1)).bfloat16()

    found = multiply(inputs, weights, products)

    assert found.shape == (n_tokens, -(-n_rows // LANES) * LANES)
    expected = inputs.double() @ meant.T
    error = (found[:, :n_rows].double() - expected).abs()
    assert (error <= expected.abs() * 2**-8 + 2e-4 * expected.std()).all()
    assert (found[:, n_rows:] == 0).all()


@pytest.mark.parametrize("products", WAYS)
def test_a_weight_in_the_wrong_place_would_be_seen(products: Products) -> None:
    """Each input alone gives its own column of weights."""
    weights, meant = layer(32, 2)
    inputs = torch.eye(64, dtype=torch.bfloat16)

    found = torch.cat([multiply(part, weights, products) for part in inputs.split(PAIRS_AT_ONCE)])

    torch.testing.assert_close(found.double(), meant.T, atol=2e-3, rtol=2**-8)


@pytest.mark.parametrize("products", WAYS)
def test_no_tokens_have_no_products(products: Products) -> None:
    assert multiply(torch.empty(0, 64, dtype=torch.bfloat16), layer(32, 2)[0], products).shape == (0, 32)


def test_threads_do_not_change_a_bit() -> None:
    weights, _ = layer(960, 18)
    inputs = torch.randn(3, 18 * GROUP, generator=torch.Generator().manual_seed(1)).bfloat16()
    before = torch.get_num_threads()
    try:
        found = []
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            found += [multiply(inputs, weights) for _ in range(3)]
    finally:
        torch.set_num_threads(before)

    assert all(torch.equal(found[0], other) for other in found)


def test_a_token_s_products_do_not_depend_on_the_tokens_beside_it() -> None:
    weights, _ = layer(64, 18)
    inputs = torch.randn(11, 18 * GROUP, generator=torch.Generator().manual_seed(1)).bfloat16()

    together = multiply(inputs, weights)

    assert torch.equal(together, torch.cat([multiply(part, weights) for part in inputs.split(1)]))


def test_inputs_may_be_part_of_a_larger_tensor() -> None:
    weights, _ = layer(64, 2)
    inputs = torch.randn(4, 5 * GROUP, generator=torch.Generator().manual_seed(1)).bfloat16()[:, GROUP : 3 * GROUP]

    assert torch.equal(multiply(inputs, weights), multiply(inputs.clone(), weights))


def test_other_columns_than_the_weights_have_are_refused() -> None:
    with pytest.raises(ValueError, match="32 columns for weights of 64"):
        multiply(torch.ones(1, 32, dtype=torch.bfloat16), layer(32, 2)[0])


def test_the_bytes_are_those_foretold() -> None:
    for n_rows, n_groups in ((16, 1), (37, 2)):
        assert layer(n_rows, n_groups)[0].nbytes == packed_bytes(n_rows, n_groups * GROUP)
