"""Teacher forcing: whether each token of a greedy answer is the one that plain decoding takes there.

In float32 it is. In bfloat16 and float16 a pass of one token and a pass of several round differently, so where two
tokens are as good as equal either may be taken: a near-tie.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from runtime.config import Sampling
from runtime.kv.full import FullStore
from runtime.models.decoder import Decoder
from runtime.sampling import SeenTokens, adjusted

# The largest gap of logits that counts as a near-tie. Between passes of one and of eight tokens the gap between the two
# best tokens moved by up to 0.25 in bfloat16 and 0.00003 in float32 (starter model, 100 positions; logits to 38).
NEAR_TIE = {torch.bfloat16: 0.5, torch.float16: 0.0625, torch.float32: 0.001}


@dataclass(frozen=True, slots=True)
class Deviation:
    """At `position` of the answer stands `token`, though `best` has the largest logit, by `gap`."""

    position: int
    token: int
    best: int
    gap: float


def deviations(
    decoder: Decoder, store: FullStore, prompt: Sequence[int], answer: Sequence[int], sampling: Sampling
) -> Iterator[Deviation]:
    """Where `answer` is not what greedy decoding, one token a pass, takes after the answer's own tokens before.

    The store holds `prompt` up to its last token, and again when it is over.
    """
    start, tokens, seen = store.length, list(prompt), SeenTokens(sampling, len(prompt))
    try:
        for position, token in enumerate(answer):
            ids = torch.tensor(tokens[store.length :], device=decoder.device)
            logits = decoder.forward(ids, store)
            row = adjusted(logits, sampling, seen.before(tokens, (), len(tokens), logits))[0]
            best = int(row.argmax())
            if token != best:
                yield Deviation(position, token, best, float(row[best] - row[token]))
            tokens.append(token)
    finally:
        store.trim(start)
