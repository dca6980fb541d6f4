"""Ids to text as they come, never half a character, and where an answer ends."""

from collections.abc import Callable, Sequence


class StreamDecoder:
    """Turns a growing list of ids into text deltas. Characters whose bytes are incomplete are held back."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._start = self._shown = 0  # ids from which text is decoded, ids whose text was given

    def push(self, token: int) -> str:
        """Text that `token` completes."""
        self._ids.append(token)
        return self._delta(is_last=False)

    def flush(self) -> str:
        """What was held back, with U+FFFD for bytes that make no character."""
        return self._delta(is_last=True)

    def _delta(self, is_last: bool) -> str:
        # Decoding starts some ids back: some tokenizers write a space only between tokens.
        before = self._decode(self._ids[self._start : self._shown])
        text = self._decode(self._ids[self._start :])
        if text.endswith("\ufffd") and not is_last:
            return ""
        if before != text:  # a token without text is nothing to start from
            self._start = self._shown
        self._shown = len(self._ids)
        return text[len(before) :]


class StopStrings:
    """Holds text back while it may still become a stop string, and says when one is complete."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.is_reached = False

    def push(self, delta: str) -> str:
        """Text that is certain to be part of the answer; nothing after a stop string."""
        self._held += delta
        places = [(place + len(word), place) for word in self._stop if (place := self._held.find(word)) >= 0]
        if places:
            # The one that is complete first, as when the text comes letter by letter; of those, the longest.
            _, start = min(places)
            self.is_reached = True
            text, self._held = self._held[:start], ""
            return text
        keep = max((_overlap(self._held, word) for word in self._stop), default=0)
        text = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return text

    def flush(self) -> str:
        """What was held back and became no stop string."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, word: str) -> int:
    """Length of the longest end of `text` that begins `word`."""
    return next((n for n in range(min(len(text), len(word) - 1), 0, -1) if text.endswith(word[:n])), 0)
