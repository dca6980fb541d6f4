"""What a decoder does between its products: norms, rotations, the gate of its feed-forward layers."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import gelu, rms_norm, silu

from runtime.models.rope import rotate
from runtime.models.spec import Activation, Spec
from runtime.native import steps as native

ACTIVATE: dict[Activation, Callable[[Tensor], Tensor]] = {"silu": silu, "gelu_tanh": partial(gelu, approximate="tanh")}
FEW = 32  # tokens: beyond, PyTorch shares the work among threads


class Steps(Protocol):
    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """The root-mean-square norm over the last axis of `hidden` [tokens, size], contiguous."""
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """The activated first half of `gate_up` [tokens, 2 * size] times the second."""
        ...

    def rotate(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """As `runtime.models.rope.rotate`; `heads` may be what is returned."""
        ...


class TorchSteps:
    """By PyTorch, on any device and for any number of tokens."""

    def __init__(self, spec: Spec) -> None:
        self._epsilon = spec.norm_eps
        self._activate = ACTIVATE[spec.activation]

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(hidden, (hidden.shape[-1],), weight, self._epsilon)

    def gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return self._activate(gate) * up

    def rotate(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(heads, cos, sin)


class NativeSteps(TorchSteps):
    """By compiled code, for bfloat16 on a CPU and few tokens: the steps of a short pass cost PyTorch's calls alone."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._gates = spec.activation == "silu"

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return native.norm(hidden, weight, self._epsilon)

    def gate(self, gate_up: Tensor) -> Tensor:
        return native.gate(gate_up) if self._gates else super().gate(gate_up)

    def rotate(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if not native.serves(cos.shape[-1] // 2):
            return super().rotate(heads, cos, sin)
        native.rotate_in_place(heads, cos, sin)
        return heads


def steps_for_few(spec: Spec, device: torch.device, dtype: torch.dtype) -> Steps:
    """The steps for at most `FEW` tokens."""
    is_served = native.serves(spec.hidden_size, spec.intermediate_size)
    return NativeSteps(spec) if device.type == "cpu" and dtype == torch.bfloat16 and is_served else TorchSteps(spec)
