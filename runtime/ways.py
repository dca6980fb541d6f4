"""The ways to run a model on a machine, each with what it needs: from facts alone.

There are five, the best first: all of it on the card (`gpu`); its KV cache in main memory but for as many layers' as
fit the card, streamed layer by layer (`offload`); its weights streamed as well (`offload` too); the processor alone
(`cpu`); the same with the KV cache on the disk, read layer by layer (`cpu` too).
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from runtime.config import DtypeChoice, Wishes
from runtime.footprint import (
    BUFFERED_LAYERS,
    CUDA_CONTEXT_BYTES,
    MARGIN_BYTES,
    Bytes,
    Pair,
    activation_bytes,
    block_of,
    buffered_kv_bytes,
    buffered_weight_bytes,
    captured_bytes,
    draft_bytes,
    embedding_bytes,
    full_kv_bytes,
    kv_tokens,
    layer_kv_bytes,
    retrieval_bytes,
    weight_bytes,
)
from runtime.hardware import Gpu, Hardware
from runtime.parallel.shard import largest
from runtime.plan import Mode, Plan, gib
from runtime.predictions import DISK_BYTES_PER_SECOND, Streamed, card_speed, predict, processor_speed


def ways(hardware: Hardware, pair: Pair, context: int, wishes: Wishes) -> tuple[Plan, ...]:
    """All ways there are on this hardware, the best first, with what each needs."""
    return tuple(_all_ways(hardware, pair, context, wishes))


def _all_ways(hardware: Hardware, pair: Pair, context: int, wishes: Wishes) -> Iterator[Plan]:
    if wishes.gpus > 1:
        yield from _shared(hardware, pair, context, wishes)
        return
    gpu, needs_on_card = hardware.gpu, None
    if gpu is not None:
        dtype = _dtype(wishes.dtype, gpu.has_bfloat16)
        whole = _on_card(hardware, gpu, pair, context, dtype, wishes)
        needs_on_card = whole.bytes.total
        yield whole
        offloaded = _offloaded(hardware, gpu, whole, pair, wishes)
        yield offloaded
        yield _all_streamed(hardware, gpu, whole, pair, wishes, offloaded.bytes.total - offloaded.bytes.full_kv)
    in_memory = _on_processor(hardware, pair, context, wishes, needs_on_card)
    yield in_memory
    yield _from_disk(hardware, in_memory, pair, wishes)


def _shared(hardware: Hardware, pair: Pair, context: int, wishes: Wishes) -> Iterator[Plan]:
    """Heads shared by several cards, as the one would have it that has the largest part of the model, the draft model
    and of each resource the least of all. Main memory is shared, too. What cards tell each other is not predicted."""
    n_cards = wishes.gpus
    cards = hardware.used_gpus[:n_cards]
    gpu = min(cards, key=lambda card: card.free_bytes)
    bus = min(card.host_to_device_bytes_per_second for card in cards)
    memory, flops = min(card.memory_bytes_per_second for card in cards), min(card.flops for card in cards)
    gpu = replace(gpu, host_to_device_bytes_per_second=bus, memory_bytes_per_second=memory, flops=flops)
    hardware = replace(hardware, ram_free_bytes=hardware.ram_free_bytes // n_cards)
    part = replace(pair, target=largest(pair.target, n_cards))
    dtype = _dtype(wishes.dtype, all(card.has_bfloat16 for card in cards))
    whole = _on_card(hardware, gpu, part, context, dtype, wishes)
    for way in (whole, _offloaded(hardware, gpu, whole, part, wishes)):
        reason = f"{n_cards} GPUs share the heads, and main memory evenly; on the fullest: {way.reason}"
        yield replace(way, reason=reason, n_gpus=n_cards)


def _on_card(hardware: Hardware, gpu: Gpu, pair: Pair, context: int, dtype: torch.dtype, wishes: Wishes) -> Plan:
    """Everything on the card."""
    spec, speculation = pair.target, wishes.speculation
    block = block_of(spec, torch.device("cuda"), streams=False)
    needed = Bytes(
        weights=weight_bytes(spec, dtype),
        full_kv=full_kv_bytes(spec, context, dtype),
        retrieval_kv=retrieval_bytes(spec, context, speculation, dtype),
        draft=draft_bytes(pair, context, speculation, dtype, packed=False),
        buffers=captured_bytes(spec, context, speculation, dtype),
        activations=activation_bytes(spec, block, context, dtype, gpu),
        cuda_context=CUDA_CONTEXT_BYTES,
        margin=MARGIN_BYTES,
    )
    reason = (
        f"{gpu.name} has {gib(gpu.free_bytes)} free; weights and the KV cache of {context:,} tokens need "
        f"{gib(needed.total)}."
    )
    return _card_plan("gpu", hardware, gpu, pair, context, dtype, wishes, needed, Streamed(), spec.n_layers, reason)


def _offloaded(hardware: Hardware, gpu: Gpu, whole: Plan, pair: Pair, wishes: Wishes) -> Plan:
    """The KV cache in main memory, but for the layers that fit the card."""
    spec, dtype, context = pair.target, whole.dtype, whole.context
    layer_kv = kv_tokens(context) * layer_kv_bytes(spec, dtype)
    block = block_of(spec, torch.device("cuda"), streams=True)
    least = replace(
        whole.bytes,
        full_kv=0,
        buffers=whole.bytes.buffers + buffered_kv_bytes(spec, context, dtype),
        activations=activation_bytes(spec, block, context, dtype, gpu),
    )
    n_layers = max(0, min(spec.n_layers - 1, (gpu.free_bytes - least.total) // layer_kv))
    needed = replace(least, full_kv=n_layers * layer_kv)
    streamed = Streamed(full_kv=(spec.n_layers - n_layers) * layer_kv)
    wanted = "" if whole.fits else f" where everything on it needs {gib(whole.bytes.total)}"
    reason = (
        f"{gpu.name} has {gib(gpu.free_bytes)} free{wanted}, so the KV cache of {n_layers} of "
        f"{spec.n_layers} layers stays there and {gib(streamed.full_kv)} are streamed from memory, which has "
        f"{gib(hardware.ram_free_bytes)} free."
    )
    return _card_plan("offload", hardware, gpu, pair, context, dtype, wishes, needed, streamed, n_layers, reason)


def _all_streamed(hardware: Hardware, gpu: Gpu, whole: Plan, pair: Pair, wishes: Wishes, with_weights: int) -> Plan:
    """Weights and KV cache in main memory; embeddings, draft model and retrieval cache on the card, which would need
    `with_weights` bytes to hold the weights as well. Nothing is captured there."""
    spec, dtype, context = pair.target, whole.dtype, whole.context
    block = block_of(spec, torch.device("cuda"), streams=True)
    needed = replace(
        whole.bytes,
        weights=embedding_bytes(spec, dtype),
        full_kv=0,
        buffers=buffered_kv_bytes(spec, context, dtype) + buffered_weight_bytes(spec, dtype),
        activations=activation_bytes(spec, block, context, dtype, gpu),
    )
    streamed = Streamed(whole.bytes.weights - needed.weights, whole.bytes.full_kv)
    reason = (
        f"{gpu.name} has {gib(gpu.free_bytes)} free where the weights, with what must lie beside them, need "
        f"{gib(with_weights)}, so {gib(streamed.weights)} of them and the KV cache, {gib(streamed.full_kv)}, are "
        f"streamed from memory, which has {gib(hardware.ram_free_bytes)} free."
    )
    return _card_plan("offload", hardware, gpu, pair, context, dtype, wishes, needed, streamed, 0, reason)


def _card_plan(
    mode: Mode,
    hardware: Hardware,
    gpu: Gpu,
    pair: Pair,
    context: int,
    dtype: torch.dtype,
    wishes: Wishes,
    needed: Bytes,
    streamed: Streamed,
    n_layers: int,
    reason: str,
) -> Plan:
    spec, block = pair.target, block_of(pair.target, torch.device("cuda"), streamed.total > 0)
    read_bytes = weight_bytes(spec, dtype)
    speed, ram = card_speed(gpu), hardware.ram_free_bytes
    predicted = predict(spec, context, dtype, read_bytes, speed, streamed, block, wishes.speculation)
    return Plan(mode, dtype, context, reason, n_layers, needed, gpu.free_bytes, streamed, ram, predicted, speed.bus)


def _on_processor(hardware: Hardware, pair: Pair, context: int, wishes: Wishes, needs_on_card: int | None) -> Plan:
    """Everything in main memory, the weights in four-bit groups too where they are stored so."""
    spec, speculation = pair.target, wishes.speculation
    dtype = _dtype(wishes.dtype, has_bfloat16=True)  # widened where there are no instructions for it
    packed_bytes = pair.packed_bytes if dtype == torch.bfloat16 else 0
    block = block_of(spec, torch.device("cpu"), streams=False)
    needed = Bytes(
        weights=weight_bytes(spec, dtype) + packed_bytes,
        full_kv=full_kv_bytes(spec, context, dtype),
        retrieval_kv=retrieval_bytes(spec, context, speculation, dtype),
        draft=draft_bytes(pair, context, speculation, dtype, dtype == torch.bfloat16),
        buffers=0,
        activations=activation_bytes(spec, block, context, dtype, None),
        cuda_context=0,
        margin=MARGIN_BYTES,
    )
    why = _why_processor(hardware, wishes, needs_on_card)
    free = hardware.ram_free_bytes
    reason = f"{why}; {gib(needed.total)} of memory are needed and {gib(free)} are free."
    speed = processor_speed(hardware, dtype)
    read_bytes = packed_bytes or weight_bytes(spec, dtype)
    predicted = predict(spec, context, dtype, read_bytes, speed, Streamed(), block, speculation)
    return Plan("cpu", dtype, context, reason, 0, needed, free, Streamed(), free, predicted)


def _from_disk(hardware: Hardware, in_memory: Plan, pair: Pair, wishes: Wishes) -> Plan:
    """As the processor alone, but for the KV cache: on the disk, of which two layers are in memory at a time."""
    spec, dtype, context = pair.target, in_memory.dtype, in_memory.context
    free, disk_free = hardware.ram_free_bytes, hardware.disk_free_bytes
    block = block_of(spec, torch.device("cpu"), streams=True)
    needed = replace(
        in_memory.bytes,
        full_kv=0,
        buffers=BUFFERED_LAYERS * kv_tokens(context) * layer_kv_bytes(spec, dtype),
        activations=activation_bytes(spec, block, context, dtype, None),
    )
    streamed = Streamed(full_kv=in_memory.bytes.full_kv)
    wanted = "" if in_memory.fits else f" where {gib(in_memory.bytes.total)} are needed with the KV cache"
    reason = (
        f"{gib(free)} of memory are free{wanted}, so the KV cache, {gib(streamed.full_kv)}, lies on the disk, which "
        f"has {gib(disk_free)} free, and is read layer by layer, at an assumed {DISK_BYTES_PER_SECOND / 1e9:g} GB a "
        f"second; {gib(needed.total)} of memory are needed beside."
    )
    speed = processor_speed(hardware, dtype, DISK_BYTES_PER_SECOND)
    read_bytes = pair.packed_bytes if dtype == torch.bfloat16 and pair.packed_bytes else weight_bytes(spec, dtype)
    predicted = predict(spec, context, dtype, read_bytes, speed, streamed, block, wishes.speculation)
    return Plan(
        "cpu", dtype, context, reason, 0, needed, free, streamed, free, predicted, speed.bus, disk_free_bytes=disk_free
    )


def _why_processor(hardware: Hardware, wishes: Wishes, needs_on_card: int | None) -> str:
    if wishes.device == "cpu" or wishes.mode == "cpu":
        return "The CPU was asked for"
    if hardware.gpu is None or needs_on_card is None:
        return f"There is no CUDA GPU, so {hardware.cores} CPU cores do the work"
    return (
        f"{hardware.gpu.name} has {gib(hardware.gpu.free_bytes)} free where {gib(needs_on_card)} are needed, so the "
        "CPU does the work"
    )


def _dtype(choice: DtypeChoice, has_bfloat16: bool) -> torch.dtype:
    if choice == "auto":
        return torch.bfloat16 if has_bfloat16 else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[choice]
