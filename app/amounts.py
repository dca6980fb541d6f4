"""Amounts as a person reads them."""

from runtime.stats import Stats


def data(n_bytes: float) -> str:
    """Bytes in the largest unit of which there is one: "512 bytes", "3.4 MB", "17.2 GB"."""
    if n_bytes < 1_000_000:
        return f"{n_bytes:,.0f} bytes"
    if n_bytes < 1_000_000_000:
        return f"{n_bytes / 1_000_000:,.1f} MB"
    return f"{n_bytes / 1_000_000_000:,.1f} GB"


def moved(stats: Stats) -> list[str]:
    """What crossed the bus for an answer, as one part of a line; none where nothing did."""
    total = stats.to_device_bytes + stats.from_device_bytes
    each = f" ({data(stats.moved_bytes_per_token)} a token)" if stats.decode_moved_bytes else ""
    return [f"{data(total)} between memory and card{each}"] if total else []


def tokens_read(stats: Stats) -> str:
    """The prompt's tokens, and how many of them were there already where that is known."""
    if stats.cached_tokens is None:
        return f"{stats.prompt_tokens:,} tokens read or cached"
    return f"{stats.cached_tokens:,} cached + {stats.new_tokens:,} new tokens"
