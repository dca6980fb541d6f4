"""How probable the model itself held the tokens of an answer, whatever they were drawn with."""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.events import TokenLogprobs


def token_logprobs(logits: Tensor, tokens: Sequence[int], n_top: int) -> tuple[TokenLogprobs, ...]:
    """Of each token, by the unmodified `logits` [tokens, vocab] it was drawn from; `n_top` alternatives beside it."""
    logs = torch.log_softmax(logits.float(), -1)
    ids = torch.tensor(tokens, dtype=torch.long, device=logs.device)
    own = logs.gather(1, ids[:, None])[:, 0].tolist()
    best, best_ids = (half.tolist() for half in logs.topk(min(n_top, logs.shape[1]), -1))
    return tuple(
        TokenLogprobs(logprob, tuple(zip(top_ids, top, strict=True)))
        for logprob, top_ids, top in zip(own, best_ids, best, strict=True)
    )
