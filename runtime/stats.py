"""Counters of one answer, per level of the hierarchy."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LevelStats:
    """One level that verifies drafts. `proposed` = tokens drafted for it, `accepted` <= `proposed`.

    Tokens emitted by the level = accepted + rounds (each round adds one recovered or bonus token), before cuts
    at the end of the answer. For a drafter that verifies nothing (lookup, a draft model) `rounds` counts its drafts,
    `proposed` and `accepted` their tokens.
    """

    name: str
    rounds: int
    proposed: int
    accepted: int

    @property
    def accepted_per_round(self) -> float:
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.proposed if self.proposed else 0.0


@dataclass(frozen=True, slots=True)
class Stats:
    """What an answer cost. `prompt_tokens` = `cached_tokens` + `new_tokens`; times in seconds of wall clock.

    `first_token_seconds` runs from the request's start (waiting for the device included) to the first token.
    `decode_seconds` runs from the first token to the last. `levels` goes from the target down. Bytes crossed the bus
    between main memory and the device, of the KV cache and of weights: none where these lie on the device.
    `decode_moved_bytes` did so both ways after prefill, and evidence is not among them. What an engine does not say is
    None.
    """

    prompt_tokens: int
    cached_tokens: int | None
    new_tokens: int | None
    prefill_seconds: float | None
    first_token_seconds: float
    decode_tokens: int
    decode_seconds: float
    levels: tuple[LevelStats, ...] = ()
    to_device_bytes: int = 0
    from_device_bytes: int = 0
    decode_moved_bytes: int = 0

    @property
    def moved_bytes_per_token(self) -> float:
        """Of decoding, per token emitted."""
        return self.decode_moved_bytes / self.decode_tokens if self.decode_tokens else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first, per second of decoding; 0 for an answer of one token."""
        return (self.decode_tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0


@dataclass(slots=True)
class Spent:
    """What an answer has cost so far, whichever sessions worked on it: times by `perf_counter`, bytes as in `Stats`.

    `cached_tokens` of the prompt were there before all of them; `first_at` and `last_at` are when tokens came.
    """

    cached_tokens: int | None = None
    prefill_seconds: float = 0.0
    first_at: float | None = None
    last_at: float = 0.0
    levels: tuple[LevelStats, ...] = ()
    to_device_bytes: int = 0
    from_device_bytes: int = 0
    decode_moved_bytes: int = 0

    def emit(self, at: float) -> None:
        """A round's tokens came."""
        self.first_at = self.first_at or at
        self.last_at = at

    def find_cached(self, n_tokens: int) -> None:
        """So many tokens of the prompt are there as one more session begins."""
        self.cached_tokens = min(n_tokens, n_tokens if self.cached_tokens is None else self.cached_tokens)

    def count_levels(self, levels: Sequence[LevelStats]) -> None:
        """Add the counters of one more session, level by level."""
        found = {level.name: level for level in self.levels}
        for level in levels:
            old = found.get(level.name, LevelStats(level.name, 0, 0, 0))
            sums = (old.rounds + level.rounds, old.proposed + level.proposed, old.accepted + level.accepted)
            found[level.name] = LevelStats(level.name, *sums)
        self.levels = tuple(found.values())

    def stats(self, prompt_tokens: int, decode_tokens: int, asked_at: float, now: float) -> Stats:
        """Of an answer that ends, before its first token or after."""
        cached, first_at = self.cached_tokens or 0, self.first_at or now
        return Stats(
            prompt_tokens=prompt_tokens,
            cached_tokens=cached,
            new_tokens=prompt_tokens - cached,
            prefill_seconds=self.prefill_seconds,
            first_token_seconds=first_at - asked_at,
            decode_tokens=decode_tokens,
            decode_seconds=self.last_at - first_at if self.first_at else 0.0,
            levels=self.levels,
            to_device_bytes=self.to_device_bytes,
            from_device_bytes=self.from_device_bytes,
            decode_moved_bytes=self.decode_moved_bytes,
        )
