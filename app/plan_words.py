"""A plan in words, as the terminal and the page say it."""

from collections.abc import Iterator
from dataclasses import asdict

from app.terminal import duration
from runtime.plan import Plan, gib

PARTS = {
    "weights": "weights",
    "full_kv": "full KV cache",
    "retrieval_kv": "retrieval cache",
    "draft": "draft model and its cache",
    "buffers": "buffers",
    "activations": "activations",
    "cuda_context": "CUDA itself",
    "margin": "margin",
}
_PLACES = {"gpu": "on the GPU", "offload": "on the GPU, its KV cache in main memory", "cpu": "on the processor"}


def place(way: Plan) -> str:
    """Where the model is, the mode with it."""
    where = "on the GPU, weights and KV cache in main memory" if way.streamed.weights else _PLACES[way.mode]
    if way.is_on_disk:
        where += ", its KV cache on the disk"
    return f"{where} ({way.mode})"


def on_device(way: Plan) -> Iterator[tuple[str, str]]:
    """What lies on the device that computes, part by part and together: words and sizes."""
    sizes = asdict(way.bytes)
    yield from ((words, gib(sizes[name])) for name, words in PARTS.items() if sizes[name])
    yield "together", f"{gib(way.bytes.total)} of {gib(way.free_bytes)} free"


def streamed(way: Plan) -> Iterator[tuple[str, str]]:
    """What lies in main memory beside the card, or on the disk; nothing where all is on one device."""
    sizes = asdict(way.streamed)
    yield from ((PARTS[name], gib(size)) for name, size in sizes.items() if size)
    if way.streamed.total:
        yield "together", f"{gib(way.streamed.total)} of {gib(way.beside_free_bytes)} free"


def beside(way: Plan) -> str:
    """Where what `streamed` gives lies."""
    return "On the disk, and read layer by layer" if way.is_on_disk else "In main memory, and streamed to the card"


def speed(way: Plan) -> str:
    """Never measured on the model: said so."""
    predicted = way.predicted
    return (
        f"Predicted, not measured: {duration(predicted.prefill_seconds)} to read {way.context:,} tokens, then "
        f"{predicted.tokens_per_second:.1f} tokens a second ({predicted.plain_tokens_per_second:.1f} without drafts)."
    )


def neighbour(way: Plan | None) -> str:
    """A way next to the one chosen, and how it compares."""
    if way is None:
        return "there is none."
    if not way.fits:
        return f"{place(way)}, for which {lacking(way)}."
    return f"{place(way)}. {speed(way)}"


def lacking(way: Plan) -> str:
    """What a way that does not fit has too little of."""
    missing = way.missing_bytes
    if way.bytes.total - way.free_bytes == missing:
        where = "of memory" if way.mode == "cpu" else "on the card"
        return f"{gib(missing)} {where} are lacking: it needs {gib(way.bytes.total)}"
    if way.is_on_disk:
        return f"{gib(missing)} of disk are lacking for a KV cache of {gib(way.streamed.total)}"
    return f"{gib(missing)} of main memory are lacking beside the card, which would stream {gib(way.streamed.total)}"
