"""From a located model to a decoder, its config and its tokenizer."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.errors import ModelDamaged
from runtime.events import Progress
from runtime.heap import give_back_memory
from runtime.kv.copying import CopyStream
from runtime.models.attention import choose_attend
from runtime.models.converted import converted
from runtime.models.decoder import Decoder
from runtime.models.gguf_header import read_header
from runtime.models.layer import Layer
from runtime.models.packed import can_pack
from runtime.models.rope import Rope, build_ropes, planned_length
from runtime.models.sources import Source
from runtime.models.spec import SUPPORTED, Spec, read_spec, require, text_config
from runtime.models.streamed import StreamedLayers
from runtime.models.tensor_file import GgufFile, SafetensorsFolder, TensorFile
from runtime.models.weights import WeightReader
from runtime.native.ahead import compile_ahead
from runtime.pacing import PassCosts
from runtime.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model before its weights are read."""

    spec: Spec
    config: Any
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model, with what its passes cost where that was measured."""

    decoder: Decoder
    config: Any
    tokenizer: Tokenizer
    passes: PassCosts | None = None

    @property
    def spec(self) -> Spec:
        return self.decoder.spec

    def rope(self, n_tokens: int) -> tuple[Rope, ...]:
        """The rotary embeddings for a sequence of up to `n_tokens`."""
        return build_ropes(self.config, self.spec.trained_context, n_tokens, self.decoder.device)


def load_model(
    source: Source,
    facts: ModelFacts,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[Progress], None],
    stream: CopyStream | None = None,
) -> Model:
    """Read the weights; progress counts layers. Raises `ModelDamaged`, `UnsupportedModel`.

    Weights stored in four-bit groups are kept so as well where that is faster: in bfloat16 on a CPU. With a `stream`
    the layers stay in main memory, in dense form alone, and every pass brings them to the device on it.
    """
    spec = facts.spec
    packs = stream is None and can_pack(device) and dtype == torch.bfloat16
    if device.type == "cpu":
        compile_ahead(spec.head_dim, dtype, packs)
    file = open_weights(source, spec)
    reader = WeightReader(file, spec, dtype, device, packs)
    if stream is None:
        weights = reader.whole(tuple(_layers(reader, spec, progress)), facts.tokenizer.n_tokens)
    else:
        beside = WeightReader(file, spec, dtype, torch.device("cpu"))
        layers = StreamedLayers(_layers(beside, spec, progress), spec.n_layers, device, stream)
        weights = reader.whole(layers, facts.tokenizer.n_tokens)
    give_back_memory()  # reading the starter's weights leaves 162 MB
    shortest = planned_length(1, facts.config, spec.trained_context)
    ropes = build_ropes(facts.config, spec.trained_context, shortest, device)
    return Model(Decoder(spec, weights, ropes, choose_attend(device, dtype)), facts.config, facts.tokenizer)


def _layers(reader: WeightReader, spec: Spec, progress: Callable[[Progress], None]) -> Iterator[Layer]:
    progress(Progress("load", 0, spec.n_layers))
    for index in range(spec.n_layers):
        yield reader.layer(index)
        progress(Progress("load", index + 1, spec.n_layers))


def packed_bytes(source: Source, facts: ModelFacts) -> int:
    """What four-bit groups of the weights take beside their dense form, where they are used (`WeightReader`); raises
    `ModelDamaged`, `UnsupportedModel`."""
    file = open_weights(source, facts.spec)
    return WeightReader(file, facts.spec, torch.bfloat16, torch.device("cpu")).packed_bytes(facts.tokenizer.n_tokens)


def open_weights(source: Source, spec: Spec) -> TensorFile:
    """The file or files that hold a model's weights."""
    return SafetensorsFolder(source.path) if source.path.is_dir() else GgufFile(read_header(source.path), spec)


def read_facts(source: Source, cache_dir: Path) -> ModelFacts:
    """Config and tokenizer, through transformers; raises `UnsupportedModel`, `ModelDamaged`.

    What is made of a GGUF file's tokenizer is kept in `cache_dir`.
    """
    if source.path.is_dir():
        config, backend = _read_folder(source.path)
        ends = _end_ids(source.path, config)
    else:
        config, backend = converted(source.path, cache_dir)
        ends = _ids(config.eos_token_id)
    text = text_config(config)
    return ModelFacts(read_spec(text), text, Tokenizer(backend, ends | _turn_ends(Tokenizer(backend))))


def _read_folder(folder: Path) -> tuple[Any, Any]:
    """The folder's config and tokenizer; code that it brings is not run."""
    kind = str(_json(folder / "config.json").get("model_type") or "a model without model_type")
    require(kind in SUPPORTED, kind)
    # Imported where a folder is read: together they take more than a second, and a GGUF file needs neither.
    from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        backend = AutoTokenizer.from_pretrained(folder, config=config, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # `tokenizers` raises bare ones
        raise ModelDamaged(str(folder), f"transformers cannot read its config or tokenizer ({error})") from error
    if not isinstance(backend, PreTrainedTokenizerFast):
        raise ModelDamaged(str(folder), "there is no tokenizer.json in it, nor anything it could be made of")
    return config, backend


def _end_ids(folder: Path, config: Any) -> frozenset[int]:
    """Ids that end a turn by the model's own configuration files."""
    generation = folder / "generation_config.json"
    ends = _ids(_json(generation).get("eos_token_id")) if generation.exists() else frozenset()
    return ends | _ids(getattr(config, "eos_token_id", None)) | _ids(text_config(config).eos_token_id)


def _turn_ends(tokenizer: Tokenizer) -> frozenset[int]:
    """The control token that the chat template puts behind an answer: a model that was trained on the template ends
    its turn by it, whatever the configuration files forget to say."""
    behind = tokenizer.chat_frame("").assistant_to_user
    return frozenset([index for index in behind if index in tokenizer.control_ids][:1])


def _ids(value: Any) -> frozenset[int]:
    """One id, several or none."""
    found = value if isinstance(value, list) else [value]
    return frozenset(end for end in found if isinstance(end, int))


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelDamaged(str(path), f"it cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise ModelDamaged(str(path), "it is no JSON object")
    return value
