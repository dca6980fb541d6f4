"""A rival's process: it loads the model, then does what is asked on its standard input until that ends.

Both ways go whole values, pickled: an `Order`, answered by `Done` or `Failed`.
"""

import os
import pickle
import sys
import time
from typing import IO

from runtime.bench.peak import peak_bytes
from runtime.bench.rivals.rival import Answer, Done, Failed, Load, Order, Prefill, Rival, load
from runtime.prefix import common_prefix


class Desk:
    """Does the orders, and knows which tokens the rival holds."""

    def __init__(self) -> None:
        self._rival: Rival | None = None
        self._held: list[int] = []

    def do(self, order: Order) -> Done:
        if isinstance(order, Load):
            self._rival = load(order.name, order.job)
            return Done(0.0, (), peak_bytes())
        if self._rival is None:
            raise RuntimeError("a model is loaded first")
        ids = list(order.ids)
        kept = 0 if isinstance(order, Prefill) else min(common_prefix(self._held, ids), len(ids) - 1)
        self._rival.cut(kept)
        answer: list[int] = []
        started = time.perf_counter()
        self._rival.read(ids[:-1], kept)
        if isinstance(order, Answer):
            started = time.perf_counter()
            answer = self._rival.decode(ids, order.sampling, order.n_tokens)
        seconds = time.perf_counter() - started
        self._held = [*ids, *answer][: len(ids) - 1 + len(answer)]
        return Done(seconds, tuple(answer), peak_bytes())


def serve(orders: IO[bytes], replies: IO[bytes]) -> None:
    """Do orders until there are no more."""
    desk = Desk()
    while True:
        try:
            order: Order = pickle.load(orders)
        except EOFError:
            return
        reply: Done | Failed
        try:
            reply = desk.do(order)
        except Exception as error:  # the outermost boundary of this process: whatever stops it is told to the parent
            reply = Failed(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        pickle.dump(reply, replies)
        replies.flush()


if __name__ == "__main__":
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as replies:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not get between the replies
        serve(sys.stdin.buffer, replies)
