"""Full stores in host memory and on the device, over tiny decoders, as several test modules compare them."""

import torch
from torch import Tensor

from runtime.kv.copying import CopyStream
from runtime.kv.full import FullStore
from runtime.kv.host import HostStore
from runtime.models.attention import Attend, attend_on_cpu
from runtime.models.decoder import Decoder
from tests.runtime.tiny import tiny_decoder

LAYERS = 5


def five_layers(attend: Attend = attend_on_cpu) -> Decoder:
    return tiny_decoder("llama", attend=attend, num_hidden_layers=LAYERS)[0]


def in_host(decoder: Decoder, stream: CopyStream | None = None, n_on_device: int = 0) -> HostStore:
    spec = decoder.spec
    shape = (spec.n_layers, spec.n_kv_heads, spec.head_dim, decoder.dtype, decoder.device)
    return HostStore(*shape, n_on_device, stream)


def on_device(decoder: Decoder) -> FullStore:
    spec = decoder.spec
    return FullStore(spec.n_layers, spec.n_kv_heads, spec.head_dim, decoder.dtype, decoder.device)


def everything(store: FullStore) -> list[Tensor]:
    return [half.clone() for layer in range(store.n_layers) for half in store.read(layer)]


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))
