"""llama.cpp through llama-cpp-python, token by token over its C functions.

The KV cache is float16 and flash attention on, as llama.cpp's own programs have it; on some processors that makes a
token three times as slow, so it can be off. The order of its samplers is theirs too but for one thing: tokens are cut
off after the temperature is applied, as ours are. Where no top-k is asked for, its own default of 40 is set before
top-p, which would sort the whole vocabulary at each token without it. Penalties are left out.
"""

from collections.abc import Sequence
from typing import Any

import llama_cpp

from runtime.bench.rivals.rival import Job
from runtime.config import Sampling

BATCH = 2048
DEFAULT_TOP_K = 40


class LlamaCpp:
    """One model and its context."""

    def __init__(self, job: Job, flash_attention: bool = True) -> None:
        yarn = job.yarn_factor > 1
        scaling = llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN if yarn else llama_cpp.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED
        self._model = llama_cpp.Llama(
            str(job.path),
            n_gpu_layers=-1 if job.device.startswith("cuda") else 0,
            n_ctx=job.n_tokens,
            n_batch=BATCH,
            n_threads=job.threads,
            n_threads_batch=job.threads,
            flash_attn=flash_attention,
            type_k=llama_cpp.GGML_TYPE_F16,
            type_v=llama_cpp.GGML_TYPE_F16,
            rope_scaling_type=scaling,
            rope_freq_scale=1 / job.yarn_factor if yarn else 0.0,
            yarn_orig_ctx=job.trained_context if yarn else 0,
            verbose=False,
        )
        self._context = self._model.ctx

    def cut(self, length: int) -> None:
        memory = llama_cpp.llama_get_memory(self._context)
        if not llama_cpp.llama_memory_seq_rm(memory, 0, length, -1):
            raise RuntimeError("its cache cannot be cut back")

    def read(self, ids: Sequence[int], n_held: int) -> None:
        for start in range(n_held, len(ids), BATCH):
            self._decode(ids[start : start + BATCH])
        llama_cpp.llama_synchronize(self._context)

    def decode(self, ids: Sequence[int], sampling: Sampling, n_tokens: int) -> list[int]:
        sampler = _sampler(sampling)
        answer: list[int] = []
        last = ids[-1]
        try:
            for _ in range(n_tokens):
                self._decode([last])
                last = llama_cpp.llama_sampler_sample(sampler, self._context, -1)
                answer.append(last)
        finally:
            llama_cpp.llama_sampler_free(sampler)
        return answer

    def _decode(self, ids: Sequence[int]) -> None:
        tokens = (llama_cpp.llama_token * len(ids))(*ids)  # a batch only points to them
        batch = llama_cpp.llama_batch_get_one(tokens, len(ids))
        if status := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode gave {status}")


def _sampler(sampling: Sampling) -> Any:
    """A chain of llama.cpp's samplers, to be freed by the caller."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    if sampling.is_greedy:
        steps = [llama_cpp.llama_sampler_init_greedy()]
    else:
        steps = [
            llama_cpp.llama_sampler_init_temp(sampling.temperature),
            llama_cpp.llama_sampler_init_top_k(sampling.top_k or DEFAULT_TOP_K),
            llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1),
            llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1),
            llama_cpp.llama_sampler_init_dist(sampling.seed or 0),
        ]
    for step in steps:
        llama_cpp.llama_sampler_chain_add(chain, step)
    return chain
