"""How much of a prompt is already in a KV cache."""

from collections.abc import Sequence

import numpy as np


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of equal ids at the start of both."""
    n = min(len(first), len(second))
    differing = np.flatnonzero(np.asarray(first[:n]) != np.asarray(second[:n]))
    return int(differing[0]) if len(differing) else n
