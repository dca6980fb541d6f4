"""One layer of a decoder."""

from dataclasses import dataclass

from torch import Tensor

from runtime.models.linear import Linear


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer. `qkv` gives queries, keys and values side by side, `gate_up` gate and up.

    Norms that a model does not have are None. The layer sees the newest `window` tokens, or all; `rope` says which of
    the decoder's rotary embeddings it uses, if any.
    """

    attention_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    attention_post_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    mlp_post_norm: Tensor | None
    window: int | None
    rope: int | None

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self.qkv, self.output, self.gate_up, self.down
