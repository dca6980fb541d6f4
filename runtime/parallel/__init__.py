"""A model on several devices at once: tensor parallelism over heads (Megatron-LM, arXiv 1909.08053, section 3).

Each rank holds, of every layer, some KV heads with their query heads, and some columns of the feed-forward network;
what the ranks compute is summed twice a layer. Rank 0 is the process that everything else runs in: it drafts, draws,
and tells the other ranks, child processes, over a pipe each, what to do, in the order it does it itself (`messages`).
So whatever decides is decided once. Embeddings and norms are on all ranks, the output head on rank 0.

`shard` says which rank holds what and cuts weights; `collective` sums over ranks; `worker` is what a child runs, and
`following` what it does; `team` starts the children and notices when one is lost; `led` is what the rest of the runtime
sees: a decoder and stores that other ranks follow. `start` puts these together for the engine. It may import what a
session may.
"""
