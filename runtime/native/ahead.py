"""Compiling while something else takes time, so that no answer waits for it."""

import threading

import torch

from runtime.native import attend, multiply, softmax, steps
from runtime.native.joining import Shape
from runtime.native.machine import can_compile, cpu_multiplies_bfloat16


def compile_ahead(head_dim: int, dtype: torch.dtype, packs: bool) -> threading.Thread:
    """Begins to compile what a model of this number format uses on a CPU; what is used sooner is compiled there."""

    def compile_all() -> None:
        if not can_compile():
            return
        if packs:
            multiply.compiled(multiply.products_here())
        if dtype == torch.bfloat16:
            steps.compiled()
            if cpu_multiplies_bfloat16():  # elsewhere prompt blocks do not go by products
                softmax.compiled()
        if attend.serves(head_dim, dtype):
            for products in {attend.products_here(n_rows): None for n_rows in (1, attend.most_rows())}:
                for width in attend.widths_of(products):
                    attend.compiled(Shape(head_dim, width, products))

    thread = threading.Thread(
        target=compile_all if can_compile() else lambda: None, name="fullread-compile", daemon=True
    )
    thread.start()
    return thread
