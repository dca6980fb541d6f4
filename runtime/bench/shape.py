"""A model of which only the shape is known: random weights, and a KV cache full of random values.

What is computed with them means nothing, but costs what the model's own would: neither kernels nor copies look at
values, so long as these stay of the scale that a model's have.
"""

import torch
from torch import Tensor

from runtime.kv.copying import CopyStream
from runtime.kv.full import FullStore
from runtime.models.decoder import Weights
from runtime.models.layer import Layer
from runtime.models.linear import Linear
from runtime.models.packed import Groups, PackedLinear
from runtime.models.rope import Rope
from runtime.models.spec import Spec
from runtime.models.streamed import StreamedLayers
from runtime.native.linear import GROUP

POOL = 1_000_003  # random values that are repeated, a prime number of them: no two rows are alike
FILL_TOKENS = 16_384  # put into a cache at once
HEAD_DIGITS = 2  # of a packed model's output head, which files in four bits store in eight


class Noise:
    """Normal values for tensors of any size, out of a pool: to draw billions would take minutes."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        drawn = torch.randn(POOL, generator=torch.Generator().manual_seed(0))
        self._pool = drawn.to(device, dtype)

    @property
    def dtype(self) -> torch.dtype:
        return self._pool.dtype

    @property
    def device(self) -> torch.device:
        return self._pool.device

    def tensor(self, *shape: int, scale: float) -> Tensor:
        """Values of standard deviation `scale`."""
        made = torch.empty(shape, dtype=self.dtype, device=self.device)
        for part in made.view(-1).split(POOL):
            part.copy_(self._pool[: len(part)])
        return made.mul_(scale)

    def ones(self, n: int) -> Tensor:
        return torch.ones(n, dtype=self.dtype, device=self.device)


def rope_of(spec: Spec, device: torch.device) -> Rope:
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32, device=device) / spec.head_dim
    return Rope(1 / 10_000.0**exponents, 1.0)


def random_weights(spec: Spec, noise: Noise, packs: bool, stream: CopyStream | None = None) -> Weights:
    """All that `spec` speaks of; with `packs` in four-bit groups too, the output head in two of them each. With a
    `stream` the layers lie in main memory and pass to the device on it."""
    hidden, head_dim = spec.hidden_size, spec.head_dim
    scale = hidden**-0.5
    embeddings = noise.tensor(spec.vocab_size, hidden, scale=scale)
    head = embeddings if spec.ties_embeddings else noise.tensor(spec.vocab_size, hidden, scale=scale)

    def linear(n_rows: int, n_columns: int) -> Linear:
        return _linear(noise.tensor(n_rows, n_columns, scale=n_columns**-0.5), int(packs))

    layers = (
        Layer(
            attention_norm=noise.ones(hidden),
            qkv=linear((spec.n_heads + 2 * spec.n_kv_heads) * head_dim, hidden),
            query_norm=None,
            key_norm=None,
            output=linear(hidden, spec.n_heads * head_dim),
            attention_post_norm=None,
            mlp_norm=noise.ones(hidden),
            gate_up=linear(2 * spec.intermediate_size, hidden),
            down=linear(hidden, spec.intermediate_size),
            mlp_post_norm=None,
            window=None,
            rope=0,
        )
        for _ in range(spec.n_layers)
    )
    held = tuple(layers) if stream is None else StreamedLayers(layers, spec.n_layers, noise.device, stream)
    return Weights(embeddings, held, noise.ones(hidden), _linear(head, HEAD_DIGITS * packs))


def _linear(weight: Tensor, digits: int) -> Linear:
    """Packed where there are `digits`. Its two forms are then random each, and not of one another."""
    if not digits:
        return Linear(weight)
    n_rows, n_columns = weight.shape[0], digits * weight.shape[1]
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(16, (n_rows, n_columns), dtype=torch.uint8, generator=generator)
    scales = torch.full((n_rows, n_columns // GROUP), 0.2 * weight.shape[1] ** -0.5)
    return PackedLinear(weight, [Groups(codes, scales, -7.5 * scales, digits)])


def fill(store: FullStore, spec: Spec, noise: Noise, n_tokens: int) -> None:
    """Random keys and values until the store holds `n_tokens`, committed."""
    while store.length < n_tokens:
        n_new = min(FILL_TOKENS, n_tokens - store.length)
        keys, values = (noise.tensor(spec.n_kv_heads, n_new, spec.head_dim, scale=1.0) for _ in range(2))
        store.extend(n_new)
        for layer in range(spec.n_layers):
            store.write(layer, keys, values)
        store.commit()
