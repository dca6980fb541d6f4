"""The least time a pass could take on a machine: what it must read, multiply and move, at the rates measured there."""

from dataclasses import dataclass, replace

import torch

from runtime.footprint import embedding_bytes, layer_kv_bytes, weight_bytes
from runtime.models.spec import Spec
from runtime.native.multiply import few
from runtime.rates import COPIED_BYTES, SIDE, Rates, least_seconds, measure

CPU_SIDE = 2048  # of the matrices that a processor multiplies


def machine_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """What this device reaches now, in products of `dtype`. The memory rate is that of whatever was faster, copying or
    reading alone."""
    rates = measure(device, COPIED_BYTES, CPU_SIDE if device.type == "cpu" else SIDE, dtype)
    matrix = torch.ones(COPIED_BYTES // 4 // 4096, 4096, device=device)
    vector = torch.ones(4096, device=device)
    reading = int(COPIED_BYTES / least_seconds(device, lambda: matrix @ vector))
    return replace(rates, memory=max(rates.memory, reading))


@dataclass(frozen=True, slots=True)
class Roofline:
    """Of a model of `spec` in `dtype`, of which a processor reads `packed_bytes` for few tokens where that is not 0.
    The KV cache of `n_streamed` layers and `weights_streamed` bytes of weights are not on the device."""

    spec: Spec
    dtype: torch.dtype
    rates: Rates
    packed_bytes: int = 0
    n_streamed: int = 0
    weights_streamed: int = 0

    def seconds(self, n_tokens: int, n_held: int, n_logits: int, streams: bool = True) -> float:
        """For `n_tokens` fed over `n_held`; `streams` False where all of these are on the device."""
        kv = n_held * self.n_streamed * layer_kv_bytes(self.spec, self.dtype) if streams else 0
        return max(
            self._read_bytes(n_tokens, n_held, n_logits) / self.rates.memory,
            self._operations(n_tokens, n_held, n_logits) / self.rates.flops,
            (kv + self.weights_streamed) / self.rates.host_to_device,
        )

    def _read_bytes(self, n_tokens: int, n_held: int, n_logits: int) -> int:
        """Weights and what is held, once. Embeddings are looked up: of them only the output head is read."""
        spec = self.spec
        kv = n_held * spec.n_layers * layer_kv_bytes(spec, self.dtype)
        if self.packed_bytes and n_tokens <= few():
            return kv + self.packed_bytes
        head = spec.vocab_size * spec.hidden_size * self.dtype.itemsize if n_logits else 0
        return kv + weight_bytes(spec, self.dtype) - embedding_bytes(spec, self.dtype) + head

    def _operations(self, n_tokens: int, n_held: int, n_logits: int) -> float:
        spec = self.spec
        in_layers = spec.n_parameters - embedding_bytes(spec, torch.int8)
        seen = n_tokens * (n_held + (n_tokens + 1) / 2)
        attention = 4 * spec.n_layers * spec.n_heads * spec.head_dim * seen
        return 2 * (n_tokens * in_layers + n_logits * spec.vocab_size * spec.hidden_size) + attention
