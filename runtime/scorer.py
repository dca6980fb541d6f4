"""Model + KV store + sampling: the probabilities the model gives the next tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.config import Sampling
from runtime.kv.queries import Observer
from runtime.kv.store import Store
from runtime.models.decoder import Forward
from runtime.sampling import SeenTokens, probabilities


class Scorer:
    """Scores continuations of one sequence with one model over one store.

    The store holds the sequence up to some token before its last; `score` feeds what it has not seen. After it,
    `logits` are those of the last pass, unmodified, row by row as the distributions.
    """

    def __init__(
        self, model: Forward, store: Store, sampling: Sampling, observer: Observer | None = None, *, answer_start: int
    ) -> None:
        """`answer_start` is the prompt's length: some penalties count the answer's tokens alone."""
        self.store = store
        self.logits = torch.empty(0)
        self._model = model
        self._sampling = sampling
        self._observer = observer
        counts = sampling.counts_sequence or sampling.counts_answer
        self._seen = SeenTokens(sampling, answer_start) if counts else None

    def score(self, tokens: Sequence[int], draft: Sequence[int] = ()) -> Tensor:
        """Distributions after `tokens`, and after each token of `draft`: [len(draft) + 1, vocab].

        The store must hold fewer tokens than `tokens` has; afterwards it holds all of both, uncommitted.
        """
        n_settled = self.store.committed
        unseen = [*tokens[self.store.length :], *draft]
        ids = torch.tensor(unseen).to(self._model.device, non_blocking=True)
        self.logits = self._model.forward(ids, self.store, n_logits=len(draft) + 1, observer=self._observer)
        history = self._seen.before(tokens, draft, n_settled, self.logits) if self._seen else None
        return probabilities(self.logits, self._sampling, history)

    @property
    def counts_tokens(self) -> bool:
        """Whether a distribution depends on what was said other than by the model, so that it must be known."""
        return self._seen is not None

    def score_next(self, token: Tensor) -> Tensor:
        """The distribution [1, vocab] after `token` [1], which follows all that is held and need not be known to the
        host; only where tokens are not counted."""
        self.logits = self._model.forward(token, self.store, n_logits=1, observer=self._observer)
        return probabilities(self.logits, self._sampling)

    def trim(self, length: int) -> None:
        self.store.trim(length)

    def commit(self) -> None:
        self.store.commit()
