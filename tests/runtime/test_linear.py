"""A layer's products where the processor has no instructions for bfloat16."""

import pytest
import torch

from runtime.models import linear
from runtime.models.linear import ONE_BY_ONE, Linear


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("widened", [1, 64 * 40, 1 << 20], ids=["a row", "some rows", "all rows"])
@pytest.mark.parametrize("n_tokens", [1, ONE_BY_ONE + 1, 70])
def test_widened_products_are_those_of_bfloat16(
    monkeypatch: pytest.MonkeyPatch, n_tokens: int, widened: int, has_bias: bool
) -> None:
    """To the rounding of the result, however many rows are widened at a time."""
    monkeypatch.setattr(linear, "cpu_multiplies_bfloat16", lambda: False)
    monkeypatch.setattr(linear, "WIDENED", widened)
    generator = torch.Generator().manual_seed(n_tokens)
    hidden, weight = (torch.randn(n, 64, generator=generator).bfloat16() for n in (n_tokens, 96))
    bias = torch.randn(96, generator=generator).bfloat16() if has_bias else None
    exact = hidden.double() @ weight.double().T + (0 if bias is None else bias.double())

    found = Linear(weight, bias)(hidden)

    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, atol=1e-2, rtol=2**-8)


def test_only_bfloat16_that_is_slow_is_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("widened")

    monkeypatch.setattr(linear, "_widened", fail)
    for has_bfloat16, dtype in ((True, torch.bfloat16), (False, torch.float32), (True, torch.float32)):
        monkeypatch.setattr(linear, "cpu_multiplies_bfloat16", lambda has=has_bfloat16: has)
        Linear(torch.ones(4, 8, dtype=dtype))(torch.ones(9, 8, dtype=dtype))
    monkeypatch.setattr(linear, "cpu_multiplies_bfloat16", lambda: False)
    with pytest.raises(AssertionError, match="widened"):
        Linear(torch.ones(4, 8, dtype=torch.bfloat16))(torch.ones(9, 8, dtype=torch.bfloat16))
