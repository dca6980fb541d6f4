"""An answer as it grows: its ids, its text, and why it ends."""

from collections.abc import Callable, Sequence

from torch import Tensor

from runtime.choices import SeededChoices
from runtime.config import Request
from runtime.detokenize import StopStrings, StreamDecoder
from runtime.events import Emission, FinishReason
from runtime.logprobs import token_logprobs
from runtime.stats import Spent


class Answer:
    """Takes rounds of tokens until an end-of-turn id, a stop string or the token limit ends it.

    It outlives the session that works on it: another goes on from its `ids`, with the same `choices`. Numbers drawn
    once are not drawn again, so what follows is independent of what was emitted but through the target; a seed fixes
    an answer only where one session made all of it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], eos_ids: frozenset[int], request: Request) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.reason: FinishReason | None = None
        self.choices = SeededChoices(request.sampling.seed)
        self.spent = Spent()
        self._eos_ids = eos_ids
        self._max_tokens = request.max_tokens
        self._n_top = request.logprobs
        self._decoder = StreamDecoder(decode)
        self._stop = StopStrings(request.stop)

    def take(self, tokens: Sequence[int], logits: Tensor) -> Emission:
        """The next round's tokens, drawn from `logits` [tokens or more, vocab]; those behind the end are dropped."""
        # First what may run out of memory: then either all of the round is taken or nothing.
        logprobs = () if self._n_top is None else token_logprobs(logits[: len(tokens)], tokens, self._n_top)
        before = len(self.ids)
        delta = ""
        for token in tokens:
            self.ids.append(token)
            if token in self._eos_ids:
                self.reason = "stop"
                break
            delta += self._stop.push(self._decoder.push(token))
            if self._stop.is_reached:
                self.reason = "stop"
                break
            if len(self.ids) == self._max_tokens:
                self.reason = "length"
                break
        if self.reason is not None:
            delta += self._rest()
        self.text += delta
        taken = self.ids[before:]
        return Emission(delta, tuple(taken), logprobs[: len(taken)])

    def end(self, reason: FinishReason) -> Emission:
        """End it where it stands; gives the text still held back."""
        self.reason = reason
        delta = self._rest()
        self.text += delta
        return Emission(delta, ())

    def _rest(self) -> str:
        if self._stop.is_reached:
            return ""
        held_back = self._stop.push(self._decoder.flush())
        return held_back + self._stop.flush()
