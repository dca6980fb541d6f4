"""A linear layer of a decoder."""

from torch import Tensor
from torch.nn.functional import linear


class Linear:
    """`weight` [out, in], `bias` [out] or None, applied to [tokens, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    @property
    def n_bytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.weight, self.bias)
