"""How fast a model is expected to be, from arithmetic and bandwidth alone. Nothing here is measured on the model."""

from dataclasses import dataclass

import torch

from runtime.config import Speculation
from runtime.footprint import embedding_bytes, layer_kv_bytes, weight_bytes
from runtime.hardware import Gpu, Hardware
from runtime.models.spec import Spec
from runtime.pacing import Costs

# What passes reach of a card's measured rates, and what some twenty kernels of a layer take to start.
SHARE_OF_FLOPS = 0.5
SHARE_OF_BANDWIDTH = 0.8
LAYER_SECONDS_ON_CARD = 1e-4
# What a processor reaches, of which only the cores are told: on the two cores that facts were measured on, 8,192 tokens
# of the starter took 9.3 s in bfloat16, a pass read 25 GB/s, and a layer's small steps took a quarter of a millisecond.
CORE_FLOPS_IN_BFLOAT16 = 2.4e11
CORE_FLOPS = 4e10  # in float32, which bfloat16 is widened to where there are no instructions for it
MEMORY_BYTES_PER_SECOND = 25e9
LAYER_SECONDS_ON_CPU = 2.5e-4
DISK_BYTES_PER_SECOND = 1e9  # assumed: between home disks at the SATA bus (0.5) and at PCIe (2 and more)
# Of each token drafted over the retrieval cache; a token more in a verify pass, in plain steps.
ACCEPTANCE = 0.8
EXTRA_TOKEN_ON_CPU = 0.08


@dataclass(frozen=True, slots=True)
class Speed:
    """Rates a second that passes reach, and what each layer takes however little it does. Where `bus` is not None, it
    carries what does not lie on the device. `extra_token` is what a token more takes of a verify pass, None where that
    is arithmetic alone."""

    flops: float
    memory: float
    layer_seconds: float
    bus: float | None = None
    extra_token: float | None = None


@dataclass(frozen=True, slots=True)
class Streamed:
    """Bytes that stay in main memory, or on a disk, and cross the bus in every pass over the full cache; weights in
    every pass."""

    weights: int = 0
    full_kv: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.full_kv


@dataclass(frozen=True, slots=True)
class Prediction:
    """For a prompt that fills the context. `tokens_per_second` with drafts over the retrieval cache where they pay."""

    prefill_seconds: float
    tokens_per_second: float
    plain_tokens_per_second: float


def card_speed(gpu: Gpu) -> Speed:
    """What the card is taken to reach."""
    memory, bus = SHARE_OF_BANDWIDTH * gpu.memory_bytes_per_second, float(gpu.host_to_device_bytes_per_second)
    return Speed(SHARE_OF_FLOPS * gpu.flops, memory, LAYER_SECONDS_ON_CARD, bus)


def processor_speed(hardware: Hardware, dtype: torch.dtype, bus: float | None = None) -> Speed:
    """What the processor is taken to reach; `bus` as in `Speed`."""
    is_fast = dtype == torch.bfloat16 and hardware.cpu_has_bfloat16
    flops = hardware.cores * (CORE_FLOPS_IN_BFLOAT16 if is_fast else CORE_FLOPS)
    return Speed(flops, MEMORY_BYTES_PER_SECOND, LAYER_SECONDS_ON_CPU, bus, EXTRA_TOKEN_ON_CPU)


def predict(
    spec: Spec,
    context: int,
    dtype: torch.dtype,
    read_bytes: int,
    speed: Speed,
    streamed: Streamed,
    block: int,
    speculation: Speculation,
) -> Prediction:
    """For weights of which one token's pass reads `read_bytes`, and prompt blocks of `block` tokens."""
    blocks = -(-context // block)
    # Each block sees what came before it, half the cache on average; the bus and the device work side by side.
    carried = blocks * (streamed.weights + streamed.full_kv / 2)
    prefill = max(prefill_flops(spec, context) / speed.flops, _bus_seconds(speed, carried))
    computed = _step_seconds(spec, context, context, dtype, read_bytes, speed)
    waited = _bus_seconds(speed, streamed.total)
    plain = max(computed, waited)
    if not (speculation.drafts and speculation.retrieval):
        return Prediction(prefill, 1 / plain, 1 / plain)
    budget = speculation.budget_for(context)
    draft = _step_seconds(spec, context, budget, dtype, read_bytes, speed)
    by_arithmetic = 2 * spec.n_parameters / speed.flops / computed
    extra = by_arithmetic if speed.extra_token is None else speed.extra_token
    most = speculation.most_drafted(streams=waited > 0)
    for_draft = _bus_seconds(speed, streamed.weights) / computed
    costs = Costs(draft / computed, extra).beside_bus(waited / computed, most, for_draft)
    gain = costs.speed_up(costs.best_gamma(most, ACCEPTANCE), ACCEPTANCE)
    return Prediction(prefill, gain / plain, 1 / plain)


def prefill_flops(spec: Spec, n_tokens: int) -> float:
    """Of all layers, causal attention counted as the half that it is."""
    linear = 2.0 * (weight_bytes(spec, torch.int8) - embedding_bytes(spec, torch.int8)) * n_tokens
    seen = sum(min(n_tokens / 2, window or n_tokens) for window in spec.windows)
    return linear + 4.0 * spec.n_heads * spec.head_dim * seen * n_tokens


def _step_seconds(spec: Spec, context: int, budget: int, dtype: torch.dtype, read_bytes: int, speed: Speed) -> float:
    """One token's pass that attends to `budget` tokens of `context`, where nothing has to be brought first."""
    kv = spec.seen_tokens(context, budget) * spec.n_layers * layer_kv_bytes(spec, dtype)
    return (read_bytes + kv) / speed.memory + spec.n_layers * speed.layer_seconds


def _bus_seconds(speed: Speed, n_bytes: float) -> float:
    return n_bytes / speed.bus if speed.bus is not None else 0.0
