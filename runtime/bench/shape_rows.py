"""What was measured of a shape in one mode, what follows from it, and how it is said."""

from dataclasses import asdict, dataclass
from itertools import pairwise

from runtime.pacing import Costs
from runtime.predictions import Prediction
from runtime.rates import Rates

ACCEPTANCES = (0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class Timed:
    """A pass of `n_tokens` tokens over `n_held` in the cache, and the least it could take by the rates measured."""

    n_tokens: int
    n_held: int
    seconds: float
    floor_seconds: float

    @property
    def roofline(self) -> float:
        """The fraction reached of what is possible."""
        return self.floor_seconds / self.seconds


@dataclass(frozen=True, slots=True)
class Copied:
    """A plain step over a cache in main memory: its `n_bytes` copied alone, the layers computed alone, and both."""

    n_bytes: int
    copy_seconds: float
    compute_seconds: float
    both_seconds: float

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.n_bytes / self.copy_seconds

    @property
    def overlap(self) -> float:
        """1 where the shorter of the two costs nothing."""
        return max(self.copy_seconds, self.compute_seconds) / self.both_seconds


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """Over plain decoding, where each token drafted over the retrieval cache is accepted at a rate of `acceptance`, by
    the `gamma` that is best then."""

    acceptance: float
    gamma: int
    speed_up: float


@dataclass(frozen=True, slots=True)
class Times:
    """One mode. Times are of all `n_layers`; where fewer were `measured_layers`, what a layer takes is multiplied.

    `first_block` and `last_block` are prompt blocks at the beginning and at the end of the context, `passes` go over
    the full cache, the shortest of them a plain step; `retrieval` is one token's over the retrieval cache,
    `choosing_seconds` what filling that takes. `twin` is set where a CPU plays the card, and main memory both sides of
    the bus.
    """

    model: str
    mode: str
    twin: bool
    context: int
    dtype: str
    threads: int
    n_layers: int
    measured_layers: int
    layers_on_gpu: int
    rates: Rates
    first_block: Timed
    last_block: Timed
    passes: tuple[Timed, ...]
    retrieval: Timed
    choosing_seconds: float
    copied: Copied | None
    predicted: Prediction | None

    @property
    def plain(self) -> Timed:
        return self.passes[0]

    @property
    def prefill_seconds(self) -> float:
        """Of a prompt that fills the context: blocks cost in proportion to what is held before them."""
        blocks = self.context / self.first_block.n_tokens
        return blocks * (self.first_block.seconds + self.last_block.seconds) / 2

    @property
    def costs(self) -> Costs:
        """In plain steps. Between the passes measured they lie on straight lines."""
        plain = self.plain.seconds
        verify = [_between(self.passes, n_tokens) / plain for n_tokens in range(1, self.passes[-1].n_tokens + 1)]
        return Costs(self.retrieval.seconds / plain, 0.0, tuple(verify))

    @property
    def speed_ups(self) -> tuple[SpeedUp, ...]:
        most, found = self.passes[-1].n_tokens - 1, []
        for acceptance in ACCEPTANCES:
            gamma = self.costs.best_gamma(most, acceptance)
            found.append(SpeedUp(acceptance, gamma, self.costs.speed_up(gamma, acceptance)))
        return tuple(found)


def _between(passes: tuple[Timed, ...], n_tokens: int) -> float:
    for left, right in pairwise(passes):
        if n_tokens <= right.n_tokens:
            share = (n_tokens - left.n_tokens) / (right.n_tokens - left.n_tokens)
            return left.seconds + share * (right.seconds - left.seconds)
    return passes[-1].seconds


def record(times: Times) -> dict[str, object]:
    """As JSON tells it: the values and what follows from them."""
    plain = asdict(times)
    plain["first_block"], plain["last_block"], plain["retrieval"] = map(
        _timed, (times.first_block, times.last_block, times.retrieval)
    )
    plain["passes"] = list(map(_timed, times.passes))
    if times.copied is not None:
        plain["copied"] |= {"bytes_per_second": times.copied.rate, "overlap": times.copied.overlap}
    follows = {
        "prefill_seconds": times.prefill_seconds,
        "plain_tokens_per_second": 1 / times.plain.seconds,
        "speed_ups": [asdict(speed_up) for speed_up in times.speed_ups],
    }
    return plain | follows


def _timed(timed: Timed) -> dict[str, object]:
    return asdict(timed) | {"roofline": timed.roofline}


def describe(times: Times) -> str:
    """Lines for a person."""
    part = times.measured_layers < times.n_layers
    lines = [
        f"{times.mode}, {times.dtype}" + (f", {times.threads} threads" if times.mode == "cpu" or times.twin else ""),
        *(["  No card is at hand: the CPU plays it, and a thread in main memory its bus."] if times.twin else []),
        *([_scaled(times)] if part else []),
        f"  measured here: memory {_giga(times.rates.memory)}B/s, products {_giga(times.rates.flops)}FLOPS"
        + (f", to the card {_giga(times.rates.host_to_device)}B/s" if times.mode != "cpu" else ""),
        "",
        f"  {'':<34}{'seconds':>10}  of what is possible",
        *map(_line, *zip(*_named(times), strict=True)),
        f"  {'choosing what the cache holds':<34}{times.choosing_seconds:>10.4f}",
    ]
    if times.copied is not None:
        lines.append(
            f"  {_giga(times.copied.n_bytes)}B cross the bus in a pass, at {_giga(times.copied.rate)}B/s: "
            f"{times.copied.copy_seconds:.4f} s, beside {times.copied.compute_seconds:.4f} s of computing; overlap "
            f"{times.copied.overlap:.2f}"
        )
    lines += ["", *_beside(times), *map(_speed_up, times.speed_ups)]
    return "\n".join(lines)


def _scaled(times: Times) -> str:
    return (
        f"  Measured over {times.measured_layers} of {times.n_layers} layers, as more do not fit the memory that is "
        "free; times are multiplied to all of them."
    )


def _named(times: Times) -> list[tuple[str, Timed]]:
    first, last = times.first_block, times.last_block
    return [
        (f"prompt block of {first.n_tokens:,}, the first", first),
        (f"prompt block of {last.n_tokens:,}, the last", last),
        ("plain step", times.plain),
        *((f"pass of {timed.n_tokens} tokens", timed) for timed in times.passes[1:]),
        (f"retrieval step, over {times.retrieval.n_held:,}", times.retrieval),
    ]


def _line(name: str, timed: Timed) -> str:
    return f"  {name:<34}{timed.seconds:>10.4f}{timed.roofline:>8.0%}"


def _beside(times: Times) -> list[str]:
    """Measured, with what the plan had predicted."""
    said = f"  To read {times.context:,} tokens: {times.prefill_seconds:,.1f} s"
    plain = f"  Plain decoding: {1 / times.plain.seconds:.2f} tokens a second"
    if times.predicted is None:
        return [said, plain]
    return [
        f"{said} (predicted {times.predicted.prefill_seconds:,.1f} s)",
        f"{plain} (predicted {times.predicted.plain_tokens_per_second:.2f})",
    ]


def _speed_up(found: SpeedUp) -> str:
    if not found.gamma:
        return f"  Drafts accepted at {found.acceptance}: none pay"
    return f"  Drafts accepted at {found.acceptance}: {found.speed_up:.2f} times as fast, by {found.gamma} a round"


def _giga(number: float) -> str:
    """In the unit that suits, before the name of what is counted: "21.3 G"."""
    for unit, size in (("T", 1e12), ("G", 1e9)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number / 1e6:.1f} M"
