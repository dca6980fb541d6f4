"""Model + KV store + sampling: the probabilities the model gives the next tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.config import Sampling
from runtime.kv.store import Store
from runtime.models.decoder import Decoder, Observer
from runtime.sampling import probabilities


class Scorer:
    """Scores continuations of one sequence with one model over one store.

    The store holds the sequence up to some token before its last; `score` feeds what it has not seen.
    """

    def __init__(self, model: Decoder, store: Store, sampling: Sampling, observer: Observer | None = None) -> None:
        self.store = store
        self._model = model
        self._sampling = sampling
        self._observer = observer

    def score(self, tokens: Sequence[int], draft: Sequence[int] = ()) -> Tensor:
        """Distributions after `tokens`, and after each token of `draft`: [len(draft) + 1, vocab].

        The store must hold fewer tokens than `tokens` has; afterwards it holds all of both, uncommitted.
        """
        unseen = [*tokens[self.store.length :], *draft]
        ids = torch.tensor(unseen, device=self._model.device)
        logits = self._model.forward(ids, self.store, n_logits=len(draft) + 1, observer=self._observer)
        histories = None
        if self._sampling.repetition_penalty != 1:
            sequence = torch.tensor([*tokens, *draft], device=logits.device)
            histories = [sequence[: len(tokens) + i] for i in range(len(draft) + 1)]
        return probabilities(logits, self._sampling, histories)

    def trim(self, length: int) -> None:
        self.store.trim(length)

    def commit(self) -> None:
        self.store.commit()
