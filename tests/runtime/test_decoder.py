"""Claim C: our forward pass against transformers, and against itself.

In float32 both do the same operations but for the order of sums in attention and in joined projections; logits have a
standard deviation above 1 here and are allowed to differ by 1e-4.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime.kv.full import FullStore
from runtime.kv.queries import RecentQueries
from runtime.kv.store import Store
from runtime.kv.streaming import StreamingStore
from runtime.models.attention import Attend, attend_by_products, attend_by_sdpa, attend_on_cpu
from runtime.models.decoder import Decoder
from tests.runtime.tiny import KINDS, YARN, Kind, random_ids, tiny_decoder

TOLERANCE = 1e-4


def full_store(decoder: Decoder) -> FullStore:
    spec = decoder.spec
    return FullStore(spec.n_layers, spec.n_kv_heads, spec.head_dim, decoder.dtype, decoder.device)


def streaming_store(decoder: Decoder, sinks: int, window: int) -> StreamingStore:
    spec = decoder.spec
    shape = (spec.n_layers, spec.n_kv_heads, spec.head_dim)
    return StreamingStore(*shape, decoder.dtype, decoder.device, sinks, window)


def in_blocks(decoder: Decoder, store: Store, ids: Tensor, block: int) -> Tensor:
    """Logits [tokens, vocab] after each of `ids`, fed and committed in blocks."""
    logits = []
    for part in ids.split(block):
        logits.append(decoder.forward(part, store, n_logits=len(part)))
        store.commit()
    return torch.cat(logits)


def expected(model: Any, ids: Tensor) -> Tensor:
    """Transformers' logits [tokens, vocab] without a cache."""
    with torch.inference_mode():
        logits: Tensor = model(ids[None], use_cache=False).logits[0]
    return logits


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.std() > 0.5, "logits this flat would hide a fault"
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


VARIANTS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "groups of 1": ("llama", {"num_key_value_heads": 4}),
    "groups of 3": ("llama", {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96}),
    "one KV head for all": ("llama", {"num_key_value_heads": 1}),
    "tied embeddings": ("llama", {"tie_word_embeddings": True}),
    "biases in attention": ("llama", {"attention_bias": True}),
    "biases in the MLP": ("llama", {"mlp_bias": True}),
    "heads wider than their share": ("llama", {"head_dim": 32}),
    "heads narrower than their share": ("llama", {"head_dim": 8}),
    "another epsilon": ("llama", {"rms_norm_eps": 0.3}),
    "mistral": ("mistral", {}),
    "mistral, heads of their own size": ("mistral", {"head_dim": 24}),
    "mistral within its window": ("mistral", {"sliding_window": 129}),
    "mistral beyond its window": ("mistral", {"sliding_window": 20}),
    "ministral": ("ministral", {}),
    "ministral 3": ("ministral3", {}),
    "ministral 3 with a window": ("ministral3", {"sliding_window": 20}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied embeddings": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 within the window of some layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 129, "max_window_layers": 1},
    ),
    "qwen2 beyond the window of some layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3, wide heads, one KV head": ("qwen3", {"head_dim": 32, "num_key_value_heads": 1}),
    "qwen3 with biases, tied": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "smollm3": ("smollm3", {}),
    "smollm3, tied, no layer with RoPE": ("smollm3", {"no_rope_layers": [0, 0, 0], "tie_word_embeddings": True}),
    "smollm3 with windows": ("smollm3", {"use_sliding_window": True, "sliding_window": 20}),
    "granite": ("granite", {}),
    "granite, tied": ("granite", {"tie_word_embeddings": True, "attention_bias": True}),
    "granite without effect": ("granite", {"embedding_multiplier": 1, "residual_multiplier": 1, "logits_scaling": 1}),
    "phi3": ("phi3", {}),
    "phi3, whole heads, one KV head, tied": (
        "phi3",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
        },
    ),
    "phi3 with a window": ("phi3", {"sliding_window": 20}),
    "gemma3": ("gemma3_text", {}),
    "gemma3, tied, wide heads, one KV head": (
        "gemma3_text",
        {"tie_word_embeddings": True, "head_dim": 32, "num_key_value_heads": 1},
    ),
}


@pytest.mark.parametrize(("kind", "changes"), VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("n_tokens", [1, 7, 129])
def test_logits_equal_transformers(kind: Kind, changes: dict[str, Any], n_tokens: int) -> None:
    """For every architecture and each of its features, at odd lengths."""
    decoder, model = tiny_decoder(kind, **changes)
    ids = random_ids(n_tokens)

    assert_same(decoder.forward(ids, full_store(decoder), n_logits=n_tokens), expected(model, ids))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attend", [attend_on_cpu, attend_by_products, attend_by_sdpa])
def test_every_attention_backend_gives_transformers_logits(kind: Kind, attend: Any) -> None:
    """The backends that run outside of tests, over a cache that grows in blocks."""
    decoder, model = tiny_decoder(kind, attend=attend)
    ids = random_ids(150)

    assert_same(in_blocks(decoder, full_store(decoder), ids, 60), expected(model, ids))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_over_a_cache_equal_the_whole_at_once(kind: Kind, block: int) -> None:
    """Whatever the prompt is cut into, each token's logits are those without a cache."""
    decoder, model = tiny_decoder(kind)
    ids = random_ids(129)

    assert_same(in_blocks(decoder, full_store(decoder), ids, block), expected(model, ids))


WITHOUT: dict[str, tuple[Kind, dict[str, Any]]] = {
    "its windows": ("ministral", {"layer_types": ["full_attention"] * 3}),
    "another window": ("ministral", {"sliding_window": 41}),
    "the temperature of queries": ("ministral3", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}),
    "layers without RoPE": ("smollm3", {"no_rope_layers": [1, 1, 1]}),
    "the multiplier of embeddings": ("granite", {"embedding_multiplier": 1.0}),
    "the multiplier of scores": ("granite", {"attention_multiplier": 0.25}),
    "the multiplier of blocks": ("granite", {"residual_multiplier": 1.0}),
    "the divisor of logits": ("granite", {"logits_scaling": 1.0}),
    "RoPE on a part of each head": ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}),
    "a scale of its own": ("gemma3_text", {"query_pre_attn_scalar": 16}),
    "local layers": ("gemma3_text", {"layer_types": ["full_attention"] * 3}),
    "gelu": ("gemma3_text", {"hidden_activation": "silu"}),
}


@pytest.mark.parametrize(("kind", "changes"), WITHOUT.values(), ids=WITHOUT.keys())
def test_what_makes_a_family_matters(kind: Kind, changes: dict[str, Any]) -> None:
    """Without one of its particulars the same weights give other logits: the tests above compare it too."""
    _, model = tiny_decoder(kind)
    without, _ = tiny_decoder(kind, **changes)
    ids = random_ids(129)

    logits = without.forward(ids, full_store(without), n_logits=129)

    assert (logits - expected(model, ids))[-80:].abs().max() > 0.02


def test_only_the_last_logits_are_given() -> None:
    """`n_logits` counts from the end; 0 gives none, of the right width."""
    decoder, _ = tiny_decoder("llama")
    ids = random_ids(9)
    every = decoder.forward(ids, full_store(decoder), n_logits=9)

    assert_same(decoder.forward(ids, full_store(decoder), n_logits=3), every[-3:])
    assert decoder.forward(ids, full_store(decoder), n_logits=0).shape == (0, decoder.spec.vocab_size)


@pytest.mark.parametrize("kind", KINDS)
def test_eight_tokens_at_once_equal_one_by_one(kind: Kind) -> None:
    """A verify pass and plain decoding give the same logits."""
    decoder, _ = tiny_decoder(kind, attend=attend_on_cpu)
    prompt, continuation = random_ids(100), random_ids(8, seed=1)
    stores = [full_store(decoder) for _ in range(2)]
    for store in stores:
        decoder.forward(prompt, store, n_logits=0)
        store.commit()

    at_once = decoder.forward(continuation, stores[0], n_logits=8)
    one_by_one = in_blocks(decoder, stores[1], continuation, 1)

    torch.testing.assert_close(at_once, one_by_one, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_speculated_is_as_one_that_never_did(kind: Kind) -> None:
    """Speculate, trim, continue: the KV and the logits are bit for bit those of a store that saw no draft."""
    decoder, _ = tiny_decoder(kind, attend=attend_on_cpu)
    prompt, accepted, following = random_ids(70), random_ids(3, seed=1), random_ids(5, seed=2)
    speculated, straight = full_store(decoder), full_store(decoder)
    for store in (speculated, straight):
        decoder.forward(prompt, store, n_logits=0)
        store.commit()

    decoder.forward(random_ids(6, seed=3), speculated)
    speculated.trim(len(prompt))
    for store in (speculated, straight):
        decoder.forward(accepted, store)
        store.commit()
    decoder.forward(random_ids(4, seed=4), speculated)
    speculated.trim(len(prompt) + len(accepted))
    logits = [decoder.forward(following, store, n_logits=5) for store in (speculated, straight)]

    assert torch.equal(*logits)
    for layer in range(decoder.spec.n_layers):
        for ours, theirs in zip(speculated.read(layer), straight.read(layer), strict=True):
            assert torch.equal(ours, theirs)


class FailsAtLayer:
    """An observer that raises at one layer."""

    def __init__(self, layer: int) -> None:
        self._layer = layer

    def observe(self, layer: int, start: int, queries: Tensor) -> None:
        if layer == self._layer:
            raise InterruptedError(layer)


class FailingAttend:
    """Attention that raises at its nth call."""

    def __init__(self, n_calls: int) -> None:
        self._left = n_calls

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        self._left -= 1
        if self._left < 0:
            raise MemoryError
        return attend_on_cpu(queries, keys, values, scale, window)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_an_error_leaves_the_store_as_it_was(layer: int) -> None:
    """Whichever layer it comes in: length and logits afterwards are those of a store that saw no error."""
    decoder, model = tiny_decoder("llama")
    ids = random_ids(40)
    store = full_store(decoder)
    decoder.forward(ids[:20], store)
    store.commit()
    decoder.forward(ids[20:25], store)

    with pytest.raises(InterruptedError):
        decoder.forward(random_ids(6, seed=1), store, observer=FailsAtLayer(layer))

    assert (store.length, store.committed) == (25, 20)
    assert_same(decoder.forward(ids[25:], store, n_logits=15), expected(model, ids)[25:])


def test_an_error_in_attention_or_of_an_unknown_id_leaves_a_streaming_store_as_it_was() -> None:
    """Stores that rotate keys when they are read behave alike."""
    decoder, model = tiny_decoder("qwen3", attend=FailingAttend(3 + 1))
    ids = random_ids(30)
    store = streaming_store(decoder, 4, 60)
    decoder.forward(ids[:20], store)
    with pytest.raises(MemoryError):
        decoder.forward(ids[20:], store)
    assert store.length == 20

    working, _ = tiny_decoder("qwen3")
    with pytest.raises(IndexError):
        working.forward(torch.tensor([10_000]), store)
    assert_same(working.forward(ids[20:], store, n_logits=10), expected(model, ids)[20:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [1, 16, 129])
def test_a_streaming_cache_with_room_for_all_equals_the_full_one(kind: Kind, block: int) -> None:
    """With a window as long as the prompt nothing is evicted, and keys rotated when read are keys rotated."""
    decoder, model = tiny_decoder(kind)
    ids = random_ids(129)

    assert_same(in_blocks(decoder, streaming_store(decoder, 4, 125), ids, block), expected(model, ids))


def test_a_streaming_cache_forgets_the_middle() -> None:
    """One token too many for the window, and the logits are no longer those of the full cache."""
    decoder, model = tiny_decoder("llama")
    ids = random_ids(129)
    ours = in_blocks(decoder, streaming_store(decoder, 4, 60), ids, 1)

    torch.testing.assert_close(ours[:65], expected(model, ids)[:65], atol=TOLERANCE, rtol=0)
    assert (ours[70:] - expected(model, ids)[70:]).abs().max() > 0.1


def test_a_streaming_cache_gives_what_its_tokens_alone_give() -> None:
    """In a model of one layer, sinks and window are a text of their own: the logits are transformers' for it."""
    decoder, model = tiny_decoder("llama", num_hidden_layers=1)
    ids = random_ids(90)
    store = streaming_store(decoder, 4, 20)
    in_blocks(decoder, store, ids[:-1], 1)
    held = torch.cat([ids[:4], ids[-21:]])

    assert_same(decoder.forward(ids[-1:], store), expected(model, held)[-1:])


def test_observers_see_each_layer_once_with_the_position_of_its_first_token() -> None:
    """Queries come after RoPE, [heads, tokens, head_dim], layer by layer."""
    decoder, _ = tiny_decoder("llama")
    store = full_store(decoder)
    decoder.forward(random_ids(11), store)
    seen: list[tuple[int, int, Sequence[int]]] = []

    class Notes:
        def observe(self, layer: int, start: int, queries: Tensor) -> None:
            seen.append((layer, start, tuple(queries.shape)))

    decoder.forward(random_ids(5), store, observer=Notes())

    assert seen == [(layer, 11, (4, 5, 16)) for layer in range(3)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attend", [attend_on_cpu, attend_by_products])
def test_bfloat16_is_as_near_to_float32_as_transformers_is(kind: Kind, attend: Attend) -> None:
    """The dtype real models run in rounds to about three digits; ours rounds no more than theirs does."""
    rounded, model = tiny_decoder(kind, dtype=torch.bfloat16, attend=attend)
    ids = random_ids(129)
    exact = expected(model, ids)
    ours = in_blocks(rounded, full_store(rounded), ids, 50) - exact
    theirs = expected(model.to(torch.bfloat16), ids).float() - exact

    assert ours.dtype == torch.float32
    assert ours.abs().mean() < 1.2 * theirs.abs().mean()


def test_recent_queries_follow_the_last_pass() -> None:
    """What chunk selection is computed from is the newest tokens' queries of every layer."""
    decoder, _ = tiny_decoder("llama")
    store, recent = full_store(decoder), RecentQueries(window=4)
    decoder.forward(random_ids(11), store, observer=recent)

    assert [tuple(queries.shape) for queries in recent.latest()] == [(4, 4, 16)] * 3
