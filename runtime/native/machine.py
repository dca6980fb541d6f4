"""What turns a module in LLVM's language into functions of this process, and the threads that they run on."""

import ctypes
import sys
from functools import lru_cache
from pathlib import Path
from typing import Literal

import llvmlite.binding as llvm
import torch

ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # Linux on x86-64: a system call, and what it is asked
PARALLEL = "fullread_parallel"  # what compiled code calls GOMP_parallel by

Products = Literal["pairs", "floats", "widened", "tiles"]
"""Of bfloat16, of what they widen to, of what they were widened to before, of squares of them."""


class Compiled:
    """The machine code of one module, which lives as long as this object."""

    def __init__(self, text: str) -> None:
        """Raises `RuntimeError` where LLVM refuses it."""
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        if (parallel := parallel_address()) is not None:
            llvm.add_symbol(PARALLEL, parallel)
        features = llvm.get_host_cpu_features().flatten()
        target = llvm.Target.from_default_triple()
        machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3)
        module = llvm.parse_assembly(text)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_unrolling = False  # loops are unrolled as they are written
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        return int(self._engine.get_function_address(name))


def can_compile() -> bool:
    """Whether there are threads to run compiled code on."""
    return parallel_address() is not None


@lru_cache(maxsize=1)
def parallel_address() -> int | None:
    """Where GOMP_parallel is, of the OpenMP that PyTorch's own threads run under; None where that is another.

    Threads of a second pool would take the cores from the first, which waits for work by spinning.
    """
    package = Path(torch.__file__).parent
    for path in (*package.glob("lib/libgomp*"), *package.parent.glob("torch.libs/libgomp*")):
        return ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, ctypes.c_void_p).value
    return None


@lru_cache(maxsize=1)
def cpu_multiplies_bfloat16() -> bool:
    """Whether PyTorch's products of bfloat16 are by instructions for it; its claims are absent in some builds."""
    claims = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(claim is not None and claim() for claim in claims)


@lru_cache(maxsize=1)
def cpu_has_wide_vectors() -> bool:
    """Whether a register holds 16 floats, and not eight."""
    return bool(llvm.get_host_cpu_features().get("avx512f", False))


@lru_cache(maxsize=1)
def cpu_has_pair_products() -> bool:
    """Whether the processor has the instruction that compiled code multiplies pairs of bfloat16 by."""
    return bool(llvm.get_host_cpu_features().get("avx512bf16", False))


@lru_cache(maxsize=1)
def cpu_multiplies_pairs_fast() -> bool:
    """Whether attention had better use that instruction than products of floats.

    Emerald Rapids had not: attention of one token to 16,384 took 52 ms by pairs, 25 by floats. AMD's, and only they,
    keep the pairs; floats were not tried there.
    """
    return cpu_has_pair_products() and llvm.get_host_cpu_name().startswith("znver")


@lru_cache(maxsize=1)
def cpu_multiplies_tiles() -> bool:
    """Whether the processor has AMX for bfloat16, and the system lets this process use it."""
    features = llvm.get_host_cpu_features()
    if sys.platform != "linux" or not (features.get("amx-tile", False) and features.get("amx-bf16", False)):
        return False
    return bool(ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0)
