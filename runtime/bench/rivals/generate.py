"""transformers' own `generate`, with the same weights in the number format ours have.

Attention is PyTorch's own (sdpa); the samplers are its own at the same settings. The prompt is prefilled once, by
`generate` too, into a dynamic cache that it goes on from.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, GenerationConfig

from runtime.bench.rivals.rival import Job
from runtime.config import Sampling


class Transformers:
    """One model and its cache."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads)
        gguf = {} if job.path.is_dir() else {"gguf_file": job.path.name}
        folder = job.path if job.path.is_dir() else job.path.parent
        config = AutoConfig.from_pretrained(folder, local_files_only=True, **gguf)
        if job.yarn_factor > 1:
            config.rope_parameters = {
                "rope_type": "yarn",
                "rope_theta": config.rope_parameters["rope_theta"],
                "factor": job.yarn_factor,
                "original_max_position_embeddings": job.trained_context,
            }
        self._device = torch.device(job.device)
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, job.dtype),
            attn_implementation="sdpa",
            local_files_only=True,
            **gguf,
        ).to(self._device)
        self._model.generation_config = GenerationConfig()  # the model's own would end answers, and cut off tokens
        self._cache: Any = DynamicCache()

    def cut(self, length: int) -> None:
        surplus = self._cache.get_seq_length() - length
        if length == 0:
            self._cache = DynamicCache()
        elif surplus > 0:
            self._cache.crop(-surplus)

    def read(self, ids: Sequence[int], n_held: int) -> None:
        if n_held < len(ids):
            self._generate(ids, GenerationConfig(max_new_tokens=1))  # of which the cache does not see the new token

    def decode(self, ids: Sequence[int], sampling: Sampling, n_tokens: int) -> list[int]:
        torch.manual_seed(sampling.seed or 0)
        return self._generate(ids, _generation(sampling, n_tokens))

    @torch.inference_mode()
    def _generate(self, ids: Sequence[int], options: GenerationConfig) -> list[int]:
        tokens = torch.tensor([list(ids)], device=self._device)
        mask = torch.ones_like(tokens)
        answer = self._model.generate(
            tokens, attention_mask=mask, past_key_values=self._cache, generation_config=options
        )
        return [int(token) for token in answer[0, len(ids) :].cpu()]


def _generation(sampling: Sampling, n_tokens: int) -> GenerationConfig:
    chain: dict[str, Any] = {"do_sample": False}
    if not sampling.is_greedy:
        chain = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p or None,
        }
    return GenerationConfig(max_new_tokens=n_tokens, repetition_penalty=sampling.repetition_penalty, **chain)
