"""How many bytes a model takes, part by part: from shapes alone, as weights and stores will allocate them."""

from dataclasses import dataclass, fields

import torch

from runtime.config import DRAFT_CHUNK, LONGEST_DRAFT, Speculation
from runtime.hardware import Gpu
from runtime.kv import retrieval, streaming
from runtime.kv.host import KEPT
from runtime.models.spec import Spec
from runtime.prefill import block_length

MARGIN_BYTES = 1 << 30  # the runtime itself, what the allocator wastes, and air
CUDA_CONTEXT_BYTES = 1 << 29  # the driver's context, the workspaces of its libraries
BUFFERED_LAYERS = 2  # one is computed while the next is copied
LOGIT_COPIES = 4  # of a verify pass's logits, in float32: filtered, sorted, as probabilities


@dataclass(frozen=True, slots=True)
class Pair:
    """The shapes of a model and of the one that drafts for it. A processor holds, besides the dense weights and where
    it computes in bfloat16, `packed_bytes` of the target's in four-bit groups, and `draft_packed_bytes` of the
    other's."""

    target: Spec
    draft: Spec | None = None
    packed_bytes: int = 0
    draft_packed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Bytes:
    """What lies on the device that computes. `draft` is the draft model with its cache, `buffers` what layers are
    streamed through and what captured passes read, `activations` those of the largest pass."""

    weights: int
    full_kv: int
    retrieval_kv: int
    draft: int
    buffers: int
    activations: int
    cuda_context: int
    margin: int

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


def weight_bytes(spec: Spec, dtype: torch.dtype) -> int:
    """Dense, biases and norms left aside."""
    return spec.n_parameters * dtype.itemsize


def buffered_weight_bytes(spec: Spec, dtype: torch.dtype) -> int:
    """What the weights of layers in main memory pass through on the card."""
    return BUFFERED_LAYERS * (weight_bytes(spec, dtype) - embedding_bytes(spec, dtype)) // spec.n_layers


def embedding_bytes(spec: Spec, dtype: torch.dtype) -> int:
    """Of embeddings and head."""
    return spec.vocab_size * spec.hidden_size * dtype.itemsize * (1 if spec.ties_embeddings else 2)


def kv_tokens(context: int) -> int:
    """Tokens a full store has room for, so that `context` of them and a draft fit."""
    return context + LONGEST_DRAFT + 1


def layer_kv_bytes(spec: Spec, dtype: torch.dtype) -> int:
    """Of one token in one layer."""
    return spec.kv_bytes_per_token(dtype.itemsize) // spec.n_layers


def full_kv_bytes(spec: Spec, context: int, dtype: torch.dtype) -> int:
    return kv_tokens(context) * spec.kv_bytes_per_token(dtype.itemsize)


def buffered_kv_bytes(spec: Spec, context: int, dtype: torch.dtype) -> int:
    """What the KV of layers in main memory passes through on the card."""
    return (BUFFERED_LAYERS * kv_tokens(context) + spec.n_layers * KEPT) * layer_kv_bytes(spec, dtype)


def retrieval_bytes(spec: Spec, context: int, speculation: Speculation, dtype: torch.dtype) -> int:
    """The retrieval cache with the means of its chunks; 0 where none is used."""
    if not (speculation.drafts and speculation.retrieval):
        return 0
    budget = speculation.budget_for(max(context, spec.trained_context))
    sizes = retrieval.layer_sizes(budget, spec.windows)
    n_full = spec.n_layers - len(spec.sliding_layers)
    means = n_full * (context // speculation.chunk_size) * layer_kv_bytes(spec, dtype) // 2  # of keys alone
    return sum(sizes) * layer_kv_bytes(spec, dtype) + means


def draft_bytes(pair: Pair, context: int, speculation: Speculation, dtype: torch.dtype, packed: bool) -> int:
    """The draft model's weights and its cache, with the means that choose what it reads; 0 without one."""
    draft = pair.draft
    if draft is None:
        return 0
    n_tokens = speculation.draft_sinks + speculation.window + streaming.TAIL
    weights = weight_bytes(draft, dtype) + (pair.draft_packed_bytes if packed else 0)
    means = 0
    if speculation.draft_cache == "retrieval":
        n_full = pair.target.n_layers - len(pair.target.sliding_layers)
        means = n_full * (context // DRAFT_CHUNK) * layer_kv_bytes(pair.target, dtype) // 2
    return weights + n_tokens * draft.kv_bytes_per_token(dtype.itemsize) + means


def activation_bytes(spec: Spec, block: int, context: int, dtype: torch.dtype, gpu: Gpu | None) -> int:
    """What lives at once in the largest pass: a prompt block in a layer, or the logits of the longest draft.

    On a card, layers that slide need a mask, and all others where there is no flash kernel: as numbers, too, of every
    new token against every one seen.
    """
    heads, kv_heads = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    attention = 3 * spec.hidden_size + 5 * heads + 4 * kv_heads
    feed_forward = 3 * spec.hidden_size + 4 * spec.intermediate_size
    mask = block * _masked_tokens(spec, block, context, dtype, gpu) * (1 + dtype.itemsize)
    in_block = block * max(attention, feed_forward) * dtype.itemsize + mask
    return max(in_block, LOGIT_COPIES * (LONGEST_DRAFT + 1) * spec.vocab_size * 4)


def _masked_tokens(spec: Spec, block: int, context: int, dtype: torch.dtype, gpu: Gpu | None) -> int:
    """The most tokens that a mask of a prompt block covers on a card."""
    if gpu is None:
        return 0
    if dtype == torch.float32 or not gpu.has_bfloat16 or spec.head_dim % 8:  # PyTorch's flash kernel takes neither
        return kv_tokens(context)
    return max((min(kv_tokens(context), window + block) for window in spec.windows if window is not None), default=0)


def captured_bytes(spec: Spec, context: int, speculation: Speculation, dtype: torch.dtype) -> int:
    """Cosines and sines of all positions, once for each number of tokens that a captured pass takes."""
    n_passes = speculation.inner_gamma + 2 if speculation.enabled else 0
    return n_passes * 2 * (1 + spec.has_local_rope) * kv_tokens(context) * spec.head_dim * dtype.itemsize


def block_of(spec: Spec, device: torch.device, streams: bool) -> int:
    """Tokens of a prompt block, as a session feeds them."""
    return block_length(spec.n_parameters, device, streams)
