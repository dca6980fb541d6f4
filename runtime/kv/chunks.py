"""Which chunks of cached tokens matter to a query: pure functions on tensors.

TriForce (arXiv 2404.11912, section 4.1) scores a chunk by query . mean(keys of chunk). Here several queries vote,
each with its softmax over all chunks, so that one large score cannot outvote the rest.
"""

import torch
from torch import Tensor


def chunk_means(keys: Tensor, chunk_size: int) -> Tensor:
    """Mean key of each whole chunk, [kv_heads, chunks, head_dim], of keys [kv_heads, tokens, head_dim]."""
    n_chunks = keys.shape[1] // chunk_size
    chunks: Tensor = keys[:, : n_chunks * chunk_size].unflatten(1, (n_chunks, chunk_size))
    return chunks.mean(2)


def chunk_scores(queries: Tensor, means: Tensor, scale: float) -> Tensor:
    """How much the queries want each chunk, [kv_heads, chunks].

    `queries` [heads, tokens, head_dim]; the query heads that share a KV head vote for it together (GQA).
    """
    n_kv_heads = means.shape[0]
    grouped = queries.unflatten(0, (n_kv_heads, -1)).flatten(1, 2)  # [kv_heads, group * tokens, head_dim]
    scores = torch.bmm(grouped.float(), means.float().transpose(1, 2)) * scale
    return scores.softmax(-1).sum(1)


def best_chunks(scores: Tensor, n_chunks: int, n_newest: int) -> Tensor:
    """The `n_chunks` chunks to keep per KV head, ascending, [kv_heads, n_chunks].

    The first chunk and the `n_newest` last ones are always among them.
    """
    scores = scores.clone()
    scores[:, 0] = torch.inf
    if n_newest:
        scores[:, -n_newest:] = torch.inf
    return scores.topk(n_chunks, -1).indices.sort(-1).values


def gather_chunks(source: Tensor, chunks: Tensor, chunk_size: int, out: Tensor) -> None:
    """Copy the chunks [kv_heads, n_chunks] of `source` [kv_heads, tokens, head_dim] to the front of `out`."""
    n_kv_heads, n_chunks = chunks.shape
    n_whole = source.shape[1] // chunk_size
    blocks = source[:, : n_whole * chunk_size].unflatten(1, (n_whole, chunk_size))
    target = out[:, : n_chunks * chunk_size].unflatten(1, (n_chunks, chunk_size))
    for head in range(n_kv_heads):
        target[head] = blocks[head].index_select(0, chunks[head])
