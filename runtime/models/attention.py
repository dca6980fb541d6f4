"""One `attend`, several backends behind it. Every query sees all keys up to its own token.

The newest keys are the queries' own tokens, so what lies before them needs no mask. The kernels return the log-sum-exp
of their scores, by which parts computed apart are joined exactly (as in FlashAttention, arXiv 2205.14135).
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention

from runtime.models.flash_attn import FlashAttention, find_flash_attn
from runtime.native.attend import attend_natively, most_rows, serves
from runtime.native.machine import can_compile, cpu_multiplies_bfloat16
from runtime.native.softmax import weigh_in_place

MASKED_ROWS = 256  # up to so many query rows a KV head, own keys are masked densely instead of in a causal kernel
SPLIT = 512  # the past is cut into parts of at least so many tokens, to occupy all cores
MOST_PARTS = 8
TILE_ROWS = 768  # query rows whose scores are computed by one product,
TILE_SCORES = 1 << 22  # and how many scores that may be, so that they stay in the processor's cache
HAS_FLASH = hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
KEY_STEP = 256  # of its own tokens a prompt block multiplies so many more at a time: oneDNN keeps code for every shape


class Attend(Protocol):
    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Attention output [heads, tokens, head_dim].

        `queries` [heads, tokens, head_dim] belong to the newest tokens of `keys` and `values`
        [kv_heads, held, head_dim], held >= tokens; consecutive heads / kv_heads query heads share a KV head.
        A query sees its own token and those before it, `window` in all.
        """
        ...


def attend_plainly(queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None) -> Tensor:
    """The definition, in float32: the reference for every other backend."""
    n_kv_heads, n_held, _ = keys.shape
    n_tokens = queries.shape[1]
    grouped: Tensor = queries.unflatten(0, (n_kv_heads, -1)).float()  # [kv_heads, group, tokens, head_dim]
    scores = grouped @ keys.float().transpose(1, 2).unsqueeze(1) * scale
    seen = _seen(n_tokens, n_held, window or n_held, keys.device)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return (weights @ values.float().unsqueeze(1)).flatten(0, 1).to(queries.dtype)


def attend_on_cpu(queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None) -> Tensor:
    """By PyTorch's CPU flash kernel. The query heads of a KV head are folded into rows, so its keys are read once."""
    if window is not None and window < keys.shape[1]:
        return _attend_in_window(attend_on_cpu, queries, keys, values, scale, window)
    n_kv_heads, n_held, head_dim = keys.shape
    n_heads, n_tokens, _ = queries.shape
    n_past = n_held - n_tokens
    rows = queries.reshape(n_kv_heads, -1, head_dim)  # [kv_heads, group * tokens, head_dim]
    if rows.shape[1] > MASKED_ROWS:
        return _attend_to_block(queries, rows, keys, values, scale)
    n_parts = max(1, min(MOST_PARTS, n_past // SPLIT))
    part = n_past // n_parts
    n_split = part * n_parts
    own_keys, own_values = keys[:, n_split:], values[:, n_split:]
    mask = None
    if n_tokens > 1:
        seen = torch.ones(n_tokens, n_held - n_split, dtype=torch.bool).tril(n_past - n_split)
        mask = torch.zeros(seen.shape, dtype=queries.dtype).masked_fill(~seen, -torch.inf)
        mask = mask.repeat(n_heads // n_kv_heads, 1)
    own = _flash(rows[None], own_keys[None], own_values[None], scale, mask=mask)
    if part == 0:
        return own[0][0].reshape(n_heads, n_tokens, head_dim)
    past = _flash(
        rows.expand(n_parts, *rows.shape),
        keys[:, :n_split].unflatten(1, (n_parts, part)).transpose(0, 1),
        values[:, :n_split].unflatten(1, (n_parts, part)).transpose(0, 1),
        scale,
    )
    outputs = torch.cat([past[0], own[0]])
    return _joined(outputs, torch.cat([past[1], own[1]])).reshape(n_heads, n_tokens, head_dim)


def _attend_to_block(queries: Tensor, rows: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """A prompt block: its own tokens causally, the past without a mask."""
    n_heads, n_tokens, head_dim = queries.shape
    group = n_heads // keys.shape[0]
    n_past = keys.shape[1] - n_tokens
    own_output, own_sums = _flash(
        queries[None],
        keys[:, n_past:].repeat_interleave(group, 0)[None],
        values[:, n_past:].repeat_interleave(group, 0)[None],
        scale,
        causal=True,
    )
    if n_past == 0:
        return own_output[0]
    output, sums = _flash(rows[None], keys[None, :, :n_past], values[None, :, :n_past], scale)
    shape = (n_heads, n_tokens)
    return _joined(
        torch.stack([output[0].reshape(*shape, head_dim), own_output[0]]),
        torch.stack([sums[0].reshape(shape), own_sums[0]]),
    )


def _flash(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    causal: bool = False,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output [parts, heads, rows, head_dim] and log-sum-exp of the scores [parts, heads, rows] in float32."""
    output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        queries, keys, values, 0.0, causal, attn_mask=mask, scale=scale
    )
    return output, sums


def _joined(outputs: Tensor, sums: Tensor) -> Tensor:
    """Attention over all parts from each part's output [parts, ..., head_dim] and log-sum-exp [parts, ...]."""
    weights = sums.softmax(0).unsqueeze(-1)
    return (outputs * weights).sum(0).to(outputs.dtype)


def attend_by_products(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None
) -> Tensor:
    """By two matrix products a KV head and tile of query rows, for processors that multiply bfloat16 by themselves.

    Scores are held in the queries' dtype. Where such products are fast this is two to three times as fast as the flash
    kernel, for one token as for a prompt block. The keys of one head are contiguous in a longer buffer; those of all
    heads together are not, and would be copied.
    """
    if window is not None and window < keys.shape[1]:
        return _attend_in_window(attend_by_products, queries, keys, values, scale, window)
    n_tokens, n_held = queries.shape[1], keys.shape[1]
    n_kv_heads = keys.shape[0]
    group = queries.shape[0] // n_kv_heads
    tile = max(1, min(TILE_ROWS, TILE_SCORES // n_held) // group)
    n_past = n_held - n_tokens
    rows = (queries * scale).unflatten(0, (n_kv_heads, group))
    output = torch.empty_like(rows)
    # Of one size, whatever is held: temporaries that grow block by block leave holes in the heap that nothing fits.
    scratch = queries.new_empty(2, max(TILE_SCORES, tile * group * n_held))
    for start in range(0, n_tokens, tile):
        end = min(start + tile, n_tokens)
        n_seen = n_past + min(n_tokens, -(-end // KEY_STEP) * KEY_STEP)
        for head in range(n_kv_heads):
            output[head, :, start:end] = _tile(
                rows[head, :, start:end], keys[head, :n_seen], values[head, :n_seen], n_past + start, scratch
            )
    return output.flatten(0, 1)


def attend_on_bfloat16_cpu(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None
) -> Tensor:
    """Few query rows by native code, where there can be some, and prompt blocks by products if they are fast.

    Where they are not, the processor having no instructions for bfloat16, blocks go by native code as well, some tokens
    after the other. What this does not serve the flash kernel does, which multiplies float32 inside.
    """
    if window is not None and window < keys.shape[1]:
        return _attend_in_window(attend_on_bfloat16_cpu, queries, keys, values, scale, window)
    (n_heads, n_tokens, head_dim), (n_kv_heads, n_held, _) = queries.shape, keys.shape
    is_served, is_fast = serves(head_dim, queries.dtype), cpu_multiplies_bfloat16()
    at_once = most_rows() * n_kv_heads // n_heads  # tokens
    if is_served and n_tokens <= at_once:
        return attend_natively(queries, keys, values, scale)
    if is_served and not is_fast:
        parts, n_past = queries.split(at_once, 1), n_held - n_tokens
        ends = [min(n_past + index * at_once, n_held) for index in range(1, len(parts) + 1)]
        seen = [(part, keys[:, :end], values[:, :end]) for part, end in zip(parts, ends, strict=True)]
        return torch.cat([attend_natively(*each, scale) for each in seen], 1)
    return (attend_by_products if is_fast or not HAS_FLASH else attend_on_cpu)(queries, keys, values, scale)


def _tile(queries: Tensor, keys: Tensor, values: Tensor, position: int, scratch: Tensor) -> Tensor:
    """What the heads of one KV head mix [group, tokens, head_dim], for tokens from `position` on, scaled before.

    `keys` and `values` [seen, head_dim] may go on beyond these tokens; `scratch` has two rows of room for the scores.
    """
    group, n_tokens, head_dim = queries.shape
    n_rows, n_seen = group * n_tokens, len(keys)
    scores, weights = (room[: n_rows * n_seen].view(n_rows, n_seen) for room in scratch)
    torch.mm(queries.reshape(n_rows, head_dim), keys.t(), out=scores)
    if queries.dtype == torch.bfloat16 and can_compile():
        sums = weigh_in_place(scores, n_tokens, position)
        mixed: Tensor = (scores @ values) / sums
        return mixed.view(group, n_tokens, head_dim)
    if n_seen > position + 1:
        later = torch.ones(n_tokens, n_seen - position, dtype=torch.bool).triu(1)
        scores.view(group, n_tokens, n_seen)[..., position:].masked_fill_(later, -torch.inf)
    torch.softmax(scores, -1, out=weights)
    mixed = weights @ values
    return mixed.view(group, n_tokens, head_dim)


def attend_by_sdpa(queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None) -> Tensor:
    """By `scaled_dot_product_attention`, for devices with kernels of their own behind it."""
    if window is not None and window < keys.shape[1]:
        return _attend_in_window(attend_by_sdpa, queries, keys, values, scale, window)
    n_tokens, n_held = queries.shape[1], keys.shape[1]
    mask = None
    if 1 < n_tokens < n_held:
        if _flash_on_card(queries, keys, values):
            # A mask over 131,072 tokens would take half a gigabyte. This kernel's causal one ends at the newest key, as
            # `torch.nn.attention.bias` uses it, whose own tensor is as large, on the processor.
            arguments = (queries[None], keys[None], values[None], 0.0, True)
            mixed: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(*arguments, scale=scale)[0]
            return mixed[0]
        mask = torch.ones(n_tokens, n_held, dtype=torch.bool, device=keys.device).tril(n_held - n_tokens)
    return torch.nn.functional.scaled_dot_product_attention(
        queries[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=1 < n_tokens == n_held,
        scale=scale,
        enable_gqa=queries.shape[0] != keys.shape[0],
    )[0]


def _flash_on_card(queries: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether PyTorch's own flash kernel takes them, grouped heads among them. That of ROCm masks otherwise."""
    if queries.device.type != "cuda" or torch.version.hip is not None or queries.shape[2] % 8:
        return False
    grouped = queries.shape[0] != keys.shape[0]
    return can_use_flash_attention(SDPAParams(queries[None], keys[None], values[None], None, 0.0, False, grouped))


def _attend_in_window(
    attend: Attend, queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int
) -> Tensor:
    """Attention to the newest `window` tokens of more: by `attend` for one query, by a masked kernel for several."""
    n_heads, n_tokens, _ = queries.shape
    n_seen = min(window + n_tokens - 1, keys.shape[1])  # by any of the queries
    keys, values = keys[:, -n_seen:], values[:, -n_seen:]
    if n_tokens == 1:
        return attend(queries, keys, values, scale)
    rows = queries.reshape(1, keys.shape[0], -1, queries.shape[2])  # [1, kv_heads, group * tokens, head_dim]
    seen = _seen(n_tokens, n_seen, window, keys.device).repeat(n_heads // keys.shape[0], 1)
    mixed = torch.nn.functional.scaled_dot_product_attention(rows, keys[None], values[None], seen, scale=scale)
    return mixed.reshape(queries.shape)


def _seen(n_tokens: int, n_held: int, window: int, device: torch.device) -> Tensor:
    """Which of `n_held` tokens each of the newest `n_tokens` sees, [tokens, held]."""
    own = n_held - n_tokens
    return torch.ones(n_tokens, n_held, dtype=torch.bool, device=device).tril(own).triu(own - window + 1)


def choose_attend(device: torch.device, dtype: torch.dtype) -> Attend:
    """The backend for a device and a number format."""
    if device.type != "cpu":
        flash_attn = find_flash_attn(device, dtype)
        return attend_by_sdpa if flash_attn is None else FlashAttention(flash_attn, attend_by_sdpa)
    if dtype == torch.bfloat16:
        return attend_on_bfloat16_cpu
    return attend_on_cpu if HAS_FLASH else attend_by_sdpa
