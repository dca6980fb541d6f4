"""What goes where: a pure function of facts, decided before anything is loaded."""

from dataclasses import dataclass
from typing import Literal

import torch

from runtime.config import DeviceChoice, DtypeChoice
from runtime.errors import NoSuchDevice, OutOfMemory
from runtime.hardware import Hardware
from runtime.models.spec import Spec

Mode = Literal["cpu", "gpu"]
MARGIN_BYTES = 1 << 30  # activations of a prompt block, the runtime itself, and air
LONGEST_CONTEXT = 131_072
SHORTEST_CONTEXT = 4_096  # a default context is not halved below this to fit the memory


@dataclass(frozen=True, slots=True)
class Plan:
    """`reason` is one sentence with the numbers it rests on."""

    mode: Mode
    dtype: torch.dtype
    reason: str

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.mode == "gpu" else "cpu")


def plan(
    hardware: Hardware,
    spec: Spec,
    n_draft_parameters: int,
    context: int,
    device: DeviceChoice,
    dtype: DtypeChoice,
) -> Plan:
    """Where the model runs for sequences of `context` tokens; raises `NoSuchDevice`, `OutOfMemory`.

    A GPU is taken when weights and the whole KV cache fit its free memory.
    """
    if device == "cuda" and hardware.gpu_name is None:
        raise NoSuchDevice("cuda", "no CUDA device")
    on_gpu = _dtype(dtype, hardware.gpu_has_bfloat16)
    gpu_bytes = needed_bytes(spec, n_draft_parameters, context, on_gpu)
    fits_gpu = gpu_bytes <= hardware.gpu_free_bytes
    if device == "cuda" and not fits_gpu:
        raise OutOfMemory(gpu_bytes, hardware.gpu_free_bytes, "the model on the GPU")
    if device != "cpu" and hardware.gpu_name is not None and fits_gpu:
        reason = (
            f"{hardware.gpu_name} has {_gib(hardware.gpu_free_bytes)} free; weights and the KV cache of "
            f"{context:,} tokens need {_gib(gpu_bytes)}."
        )
        return Plan("gpu", on_gpu, reason)
    on_cpu = _dtype(dtype, hardware.cpu_has_bfloat16)
    cpu_bytes = needed_bytes(spec, n_draft_parameters, context, on_cpu)
    if cpu_bytes > hardware.ram_free_bytes:
        raise OutOfMemory(cpu_bytes, hardware.ram_free_bytes, f"the model with {context:,} tokens of context")
    return Plan("cpu", on_cpu, f"{_why_cpu(hardware, device, gpu_bytes)}; {_gib(cpu_bytes)} of memory are enough.")


def plan_longest(
    hardware: Hardware,
    spec: Spec,
    n_draft_parameters: int,
    most: int,
    device: DeviceChoice,
    dtype: DtypeChoice,
) -> tuple[Plan, int]:
    """The plan for the longest sequences that fit, of `most` tokens or of a half of that, a quarter, and so on, with
    their length; raises as `plan` does where even short ones do not fit."""
    context = min(most, LONGEST_CONTEXT)
    while True:
        try:
            return plan(hardware, spec, n_draft_parameters, context, device, dtype), context
        except OutOfMemory:
            if context <= SHORTEST_CONTEXT:
                raise
            context //= 2


def _why_cpu(hardware: Hardware, device: DeviceChoice, gpu_bytes: int) -> str:
    if device == "cpu":
        return "The CPU was asked for"
    if hardware.gpu_name is None:
        return f"There is no CUDA GPU, so {hardware.cores} CPU cores do the work"
    return (
        f"{hardware.gpu_name} has {_gib(hardware.gpu_free_bytes)} free where {_gib(gpu_bytes)} are needed, so the "
        "CPU does the work"
    )


def _dtype(choice: DtypeChoice, has_bfloat16: bool) -> torch.dtype:
    if choice == "auto":
        return torch.bfloat16 if has_bfloat16 else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[choice]


def needed_bytes(spec: Spec, n_draft_parameters: int, context: int, dtype: torch.dtype) -> int:
    """Memory for all weights and the KV cache of `context` tokens, with a margin."""
    weights = (spec.n_parameters + n_draft_parameters) * dtype.itemsize
    return weights + context * spec.kv_bytes_per_token(dtype.itemsize) + MARGIN_BYTES


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"
