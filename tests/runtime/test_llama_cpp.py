"""Our reading of GGUF files against llama.cpp's own, where its package is installed (the `bench` extra).

Both compute in float32 here; llama.cpp looks Gemma's activation up in a table of half-precision numbers.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.runtime.test_weights import load, logits_of
from tests.runtime.tiny import N_TOKENS, Kind, random_ids, tiny_model
from tests.runtime.tiny_gguf import write_gguf

llama_cpp = pytest.importorskip("llama_cpp")

FLOAT32 = 0  # of ggml's types
GEMMA_LAYERS = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
FILES: dict[str, tuple[Kind, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {}, {}),
    "ministral 3": ("ministral3", {"head_dim": 16}, {}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1]}, {}),
    "granite": ("granite", {}, {}),
    "granite without rope": ("granite", {}, {"granite.rope.scaling.finetuned": False}),
    "phi3": ("phi3", {}, {}),
    "gemma3": (
        "gemma3_text",
        {"num_hidden_layers": 7, "layer_types": GEMMA_LAYERS, "query_pre_attn_scalar": 16},
        {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0},
    ),
}


def llama_cpp_logits(path: Path, ids: Tensor) -> Tensor:
    model = llama_cpp.Llama(
        str(path), n_ctx=512, n_threads=1, logits_all=True, verbose=False, type_k=FLOAT32, type_v=FLOAT32
    )
    try:
        model.eval(ids.tolist())
        return torch.from_numpy(np.array(model.scores[: len(ids)]))
    finally:
        model.close()


@pytest.mark.parametrize(("kind", "changes", "extra"), FILES.values(), ids=FILES)
def test_a_gguf_file_says_to_us_what_it_says_to_llama_cpp(
    tmp_path: Path, kind: Kind, changes: dict[str, Any], extra: dict[str, Any]
) -> None:
    """Of each architecture: the order of rows, the multipliers, the windows and what its file leaves unsaid."""
    write_gguf(tmp_path / "m.gguf", tiny_model(kind, vocab_size=N_TOKENS, **changes), extra=extra)
    ids = random_ids(150)
    model = load(tmp_path / "m.gguf")
    ours = logits_of(model.decoder.with_rope(model.rope(512)), ids)

    tolerance = 0.05 if kind == "gemma3_text" else 1e-4
    torch.testing.assert_close(ours, llama_cpp_logits(tmp_path / "m.gguf", ids), atol=tolerance, rtol=0)
