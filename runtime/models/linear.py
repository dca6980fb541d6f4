"""A linear layer of a decoder."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from runtime.native.machine import cpu_multiplies_bfloat16

WIDENED = 1 << 20  # numbers of a weight at a time, which stay in the processor's cache
ONE_BY_ONE = 2  # tokens up to which widening a weight costs more than slow products with it


class Linear:
    """`weight` [out, in], `bias` [out] or None, applied to [tokens, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self._widens = weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and not cpu_multiplies_bfloat16()

    @property
    def n_bytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, hidden: Tensor) -> Tensor:
        if self._widens and len(hidden) > ONE_BY_ONE:
            return _widened(hidden, self.weight, self.bias)
        return linear(hidden, self.weight, self.bias)


def _widened(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In products of float32, of some rows of the weight after the other: eight times as fast, the widening included,
    where there are no instructions for bfloat16."""
    inputs, (n_rows, n_columns) = hidden.float(), weight.shape
    output = inputs.new_empty(len(inputs), n_rows)
    at_once = max(1, WIDENED // n_columns)
    for some, rows in zip(output.split(at_once, 1), weight.split(at_once), strict=True):
        torch.mm(inputs, rows.float().t(), out=some)
    return (output if bias is None else output + bias).bfloat16()
