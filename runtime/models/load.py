"""From a located model to a decoder, its config and its tokenizer."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from transformers import AutoConfig, AutoTokenizer

from runtime.errors import ModelDamaged
from runtime.events import Progress
from runtime.models.attention import choose_attend
from runtime.models.decoder import Decoder
from runtime.models.rope import Rope, build_rope
from runtime.models.sources import Source
from runtime.models.spec import Spec, read_spec
from runtime.models.weights import GgufFile, SafetensorsFolder, TensorFile, read_ends, read_layer
from runtime.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model before its weights are read."""

    spec: Spec
    config: Any
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model. `rope_factors` [head_dim / 2] come from a GGUF file that carries them."""

    decoder: Decoder
    config: Any
    tokenizer: Tokenizer
    rope_factors: torch.Tensor | None

    @property
    def spec(self) -> Spec:
        return self.decoder.spec

    def rope(self, n_tokens: int) -> Rope:
        """The rotary embedding for a sequence of up to `n_tokens`."""
        trained = self.spec.trained_context
        return build_rope(self.config, trained, n_tokens, self.decoder.device, self.rope_factors)


def load_model(
    source: Source,
    facts: ModelFacts,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[Progress], None],
) -> Model:
    """Read the weights; progress counts layers. Raises `ModelDamaged`."""
    spec = facts.spec
    file: TensorFile
    factors = None
    if source.path.is_dir():
        file = SafetensorsFolder(source.path)
    else:
        file = GgufFile(source.path, spec)
        factors = file.read("rope_freqs.weight") if "rope_freqs.weight" in file else None
    layers = []
    progress(Progress("load", 0, spec.n_layers))
    for index in range(spec.n_layers):
        layers.append(read_layer(file, spec, index, dtype, device))
        progress(Progress("load", index + 1, spec.n_layers))
    weights = read_ends(file, spec, tuple(layers), facts.tokenizer.n_tokens, dtype, device)
    rope = build_rope(facts.config, spec.trained_context, spec.trained_context, device, factors)
    decoder = Decoder(spec, weights, rope, choose_attend(device))
    return Model(decoder, facts.config, facts.tokenizer, factors)


def read_facts(source: Source, cache_dir: Path) -> ModelFacts:
    """Config and tokenizer, through transformers; raises `UnsupportedModel`, `ModelDamaged`.

    What it makes of a GGUF file takes it seconds, so that is kept beside the models.
    """
    try:
        if source.path.is_dir():
            folder = source.path
        else:
            stat = source.path.stat()
            folder = cache_dir / "converted" / f"{source.path.stem}-{stat.st_size}-{stat.st_mtime_ns}"
            if not (folder / "done").exists():
                _convert_gguf(source.path, folder)
        config = AutoConfig.from_pretrained(folder)
        tokenizer = Tokenizer(AutoTokenizer.from_pretrained(folder), _end_ids(folder, config))
    except (OSError, ValueError, KeyError) as error:
        raise ModelDamaged(str(source.path), f"transformers cannot read its config or tokenizer ({error})") from error
    return ModelFacts(read_spec(config), config, tokenizer)


def _convert_gguf(path: Path, folder: Path) -> None:
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    reader = GGUFReader(path)
    architecture = reader.get_field("general.architecture").contents()
    scaling = reader.get_field(f"{architecture}.rope.scaling.type")
    if scaling is not None and scaling.contents() in ("linear", "yarn"):
        # transformers reads the base frequency of a GGUF file but not its scaling.
        factor = reader.get_field(f"{architecture}.rope.scaling.factor").contents()
        original = reader.get_field(f"{architecture}.rope.scaling.original_context_length")
        config.rope_parameters |= {"rope_type": scaling.contents(), "factor": float(factor)}
        if original is not None:
            config.rope_parameters["original_max_position_embeddings"] = int(original.contents())
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
    config.save_pretrained(folder)
    (folder / "done").touch()


def _end_ids(folder: Path, config: Any) -> frozenset[int]:
    """Ids that end a turn by the model's own configuration files."""
    ids: set[int] = set()
    sources = [config.eos_token_id]
    generation = folder / "generation_config.json"
    if generation.exists():
        sources.append(json.loads(generation.read_text("utf-8")).get("eos_token_id"))
    for value in sources:
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(ids)
