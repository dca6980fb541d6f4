"""Prompts as text, for servers that take no token ids: a document's text never becomes a control token there either."""

import re
from collections.abc import Sequence
from itertools import groupby, pairwise

from runtime.tokenizer import Tokenizer

_BREAK = "\u2060"  # a word joiner: nothing is seen of it
BREAK_BYTES = len(_BREAK.encode())


class Writer:
    """Writes token ids as text whose control tokens are those of the ids and no others."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._names = {token: name for name, token in tokenizer.vocabulary.items() if token in tokenizer.control_ids}
        words = sorted(self._names.values(), key=len, reverse=True)
        self._control_words = re.compile(
            "|".join(f"(?={re.escape(word)})" for word in words if len(word) > 1) or r"(?!)"
        )

    def write(self, ids: Sequence[int], *, skips_first: bool = False) -> tuple[str, int]:
        """The text, and how many control tokens' names in documents were broken by a character that is not seen.

        `skips_first` leaves out the first id, which the server puts there itself.
        """
        pieces, n_broken = [], 0
        kept = ids[1:] if skips_first else ids
        for is_control, run in groupby(kept, lambda token: token in self._names):
            if is_control:
                pieces += [self._names[token] for token in run]
                continue
            text, n_here = self._broken(self._tokenizer.decode(list(run)))
            pieces.append(text)
            n_broken += n_here
        return "".join(pieces), n_broken

    def _broken(self, text: str) -> tuple[str, int]:
        """`text` with every control token's name broken behind its first character."""
        starts = [match.start() + 1 for match in self._control_words.finditer(text)]
        cuts = [0, *starts, len(text)]
        return _BREAK.join(text[a:b] for a, b in pairwise(cuts)), len(starts)
