"""The compiled steps between a decoder's products, against PyTorch's in float32."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from runtime.models.rope import Rope, rotate
from runtime.native.steps import gate, norm, rotate_in_place, serves

LENGTHS = [1, 2, 7]


def numbers(*shape: int, size: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * size).bfloat16()


def assert_rounded(found: Tensor, exact: Tensor) -> None:
    """`found` is `exact` to the nearest bfloat16, or to its neighbour where float32 was not enough to tell."""
    torch.testing.assert_close(found.float(), exact, atol=1e-6, rtol=2**-8)


@pytest.mark.parametrize("n_tokens", LENGTHS)
@pytest.mark.parametrize("size", [16, 576, 4096])
def test_the_norm(n_tokens: int, size: int) -> None:
    hidden, weight = numbers(n_tokens, size, size=3), numbers(size)

    assert_rounded(norm(hidden, weight, 1e-5), rms_norm(hidden.float(), (size,), weight.float(), 1e-5))


def test_the_norm_of_nothing_is_nothing() -> None:
    """What keeps it from dividing by zero counts."""
    zeros = torch.zeros(2, 64, dtype=torch.bfloat16)
    assert torch.equal(norm(zeros, numbers(64), 1e-5), zeros)
    tiny = numbers(2, 64, size=1e-4)
    expected = rms_norm(tiny.float(), (64,), torch.ones(64), 1e-5)
    assert_rounded(norm(tiny, torch.ones(64, dtype=torch.bfloat16), 1e-5), expected)


@pytest.mark.parametrize("n_tokens", LENGTHS)
def test_the_gate(n_tokens: int) -> None:
    both = numbers(n_tokens, 2 * 1536, size=4)
    both[0, :6] = torch.tensor([-3e4, -200, -88, 88, 200, 3e4], dtype=torch.bfloat16)  # where exp is 0 or too large

    left, right = both.float().chunk(2, -1)

    assert_rounded(gate(both), silu(left) * right)


@pytest.mark.parametrize("n_tokens", LENGTHS)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (128, 128), (64, 32)])
def test_the_rotation_turns_some_heads_and_leaves_the_others(n_tokens: int, head_dim: int, rotary_dim: int) -> None:
    frequencies = 10000.0 ** (-torch.arange(0, rotary_dim, 2) / rotary_dim)
    cos, sin = Rope(frequencies, 1.0).at(range(40, 40 + n_tokens), torch.bfloat16)
    heads = numbers(n_tokens, 7, head_dim)
    expected = rotate(heads[:, :5].float(), cos.float(), sin.float())
    others = heads[:, 5:].clone()

    rotate_in_place(heads[:, :5], cos, sin)

    assert_rounded(heads[:, :5], expected)
    assert torch.equal(heads[:, 5:], others)


def test_sizes_that_are_no_whole_vectors_are_left_to_pytorch() -> None:
    assert serves(576, 1536, 32)
    assert not serves(576, 40)
