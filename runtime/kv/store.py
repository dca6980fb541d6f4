"""What a KV store promises, whatever it keeps.

A store has a committed part and a speculative tail. `extend` grows the tail, `trim` forgets its end, `commit` makes
it permanent; only `commit` may evict. Lengths count tokens of the sequence, held or not.
"""

from typing import Protocol

from torch import Tensor


class TrimBelowCommitted(ValueError):
    """A trim would have cut what is committed: a fault of the caller."""


class Cache(Protocol):
    """What the layers of one forward pass see of a store."""

    @property
    def keys_are_rotated(self) -> bool:
        """True: `write` takes keys after RoPE. False: before, and `read` gives them to be rotated by the caller
        at the positions 0, 1, ... of what is held."""
        ...

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keys and values [kv_heads, tokens, head_dim] of the newest tokens."""
        ...

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """All keys and values held [kv_heads, held, head_dim], the newest last, in order of position."""
        ...


class Store(Cache, Protocol):
    """Keys and values of one sequence, per layer."""

    @property
    def length(self) -> int:
        """Tokens of the sequence so far, tail included."""
        ...

    @property
    def committed(self) -> int: ...

    def positions(self, n_tokens: int) -> range:
        """Rotary positions of the newest `n_tokens` held."""
        ...

    def extend(self, n_tokens: int) -> None:
        """Grow the tail by `n_tokens`, whose keys and values are then written layer by layer."""
        ...

    def trim(self, length: int) -> None:
        """Forget everything from position `length` on; raises `TrimBelowCommitted`."""
        ...

    def commit(self) -> None: ...


class FixedStore(Store, Protocol):
    """A store whose buffers stay where they are, so that a pass over all of them can be captured once."""

    def buffers(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, capacity, head_dim]: what is held, and behind it room; the same tensors always."""
        ...

    def held(self, layer: int) -> int:
        """How many tokens the front of the layer's buffers holds."""
        ...
