"""What goes where: a pure function of facts, decided before anything is loaded."""

from dataclasses import dataclass, replace

from runtime.config import Wishes
from runtime.errors import NoSuchDevice, OutOfMemory, TooFewGpus
from runtime.footprint import MARGIN_BYTES, Pair
from runtime.hardware import Hardware
from runtime.plan import Plan
from runtime.ways import ways

LONGEST_CONTEXT = 131_072
SHORTEST_CONTEXT = 4_096  # a default context is not halved below this to fit the memory


@dataclass(frozen=True, slots=True)
class Placed:
    """A plan that was chosen, and the ways next to it, whether they fit or not; None where there is none."""

    chosen: Plan
    better: Plan | None
    worse: Plan | None


def plan(hardware: Hardware, pair: Pair, context: int, wishes: Wishes) -> Plan:
    """The best way that fits, as wished; raises `NoSuchDevice`, `TooFewGpus`, `OutOfMemory`, and `InvalidSetting` where
    the model has fewer KV heads than GPUs are to share it."""
    wants_card = wishes.device == "cuda" or wishes.mode in ("gpu", "offload")
    if wants_card and hardware.gpu is None:
        others = ", ".join(gpu.name for gpu in hardware.gpus)
        raise NoSuchDevice("cuda", f"{others}, which is not used yet" if others else "no CUDA device")
    if wishes.gpus > 1 and len(hardware.used_gpus) < wishes.gpus:
        raise TooFewGpus(wishes.gpus, len(hardware.used_gpus))
    allowed = _allowed(hardware, pair, context, wishes)
    chosen = next((way for way in allowed if way.fits), None)
    if chosen is not None:
        return chosen
    shorter = context // 2
    while shorter >= SHORTEST_CONTEXT:
        if any(way.fits for way in _allowed(hardware, pair, shorter, wishes)):
            raise _too_little(allowed, context, shorter)
        shorter //= 2
    raise _too_little(allowed, context, None)


def worse(hardware: Hardware, pair: Pair, context: int, wishes: Wishes, failed: Plan) -> tuple[Plan, ...]:
    """The ways behind the one that `failed` that are as wished and fit; the best first."""
    found = ways(hardware, pair, context, wishes)
    place = next((place for place, way in enumerate(found) if way.is_like(failed)), -1)
    return tuple(way for way in found[place + 1 :] if way.fits and _is_wished(way, wishes))


def plan_longest(hardware: Hardware, pair: Pair, most: int, wishes: Wishes) -> Plan:
    """The plan for the longest sequences that fit, of `most` tokens or of a half of that, a quarter, and so on; raises
    as `plan` does where even short ones do not fit. None of them lie on a disk: that is for who asks for so many."""
    context, hardware = min(most, LONGEST_CONTEXT), replace(hardware, disk_free_bytes=0)
    while True:
        try:
            return plan(hardware, pair, context, wishes)
        except OutOfMemory:
            if context <= SHORTEST_CONTEXT:
                raise
            context //= 2


def placed(chosen: Plan, hardware: Hardware, pair: Pair, wishes: Wishes) -> Placed:
    """`chosen` among the ways there are for what it was chosen for."""
    found = ways(hardware, pair, chosen.context, wishes)
    place = next(place for place, way in enumerate(found) if (way.mode, way.streamed) == (chosen.mode, chosen.streamed))
    return Placed(chosen, found[place - 1] if place else None, found[place + 1] if place + 1 < len(found) else None)


def _allowed(hardware: Hardware, pair: Pair, context: int, wishes: Wishes) -> list[Plan]:
    return [way for way in ways(hardware, pair, context, wishes) if _is_wished(way, wishes)]


def _is_wished(way: Plan, wishes: Wishes) -> bool:
    return wishes.mode in ("auto", way.mode) and wishes.device in ("auto", way.device.type)


def _too_little(allowed: list[Plan], context: int, fitting: int | None) -> OutOfMemory:
    """What the way in memory that lacks least would need, and of what."""
    nearest = min((way for way in allowed if not way.is_on_disk), key=lambda way: way.missing_bytes)
    elsewhere = f"{'weights and ' if nearest.streamed.weights else ''}the KV cache of {context:,} tokens in main memory"
    if nearest.bytes.total - nearest.free_bytes < nearest.missing_bytes:
        needed = nearest.streamed.total + MARGIN_BYTES
        return OutOfMemory(needed, nearest.ram_free_bytes, f"keeping {elsewhere}", fitting)
    what = f"the model with {context:,} tokens of context on the {nearest.mode.upper()}"
    if nearest.mode == "offload":
        what = f"the card, with {elsewhere},"
    return OutOfMemory(nearest.bytes.total, nearest.free_bytes, what, fitting)
