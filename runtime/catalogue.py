"""Models that people can run, from the catalogue, and what of them fits a machine."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import assets
from runtime.config import DeviceChoice, DtypeChoice
from runtime.errors import OutOfMemory
from runtime.hardware import Hardware
from runtime.memory import Mode, needed_bytes, plan_longest
from runtime.models.spec import Spec

PATH = Path(next(iter(assets.__path__))) / "models.toml"
BFLOAT16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A model by its hub id (or `starter`), and the id of the entry that drafts for it.

    Of its `spec` only sizes are told. `context` is what it was made for, in tokens; `parameters` as published. A model
    that is not supported is listed for what its `note` says.
    """

    id: str
    role: Literal["target", "draft"]
    draft: str | None
    spec: Spec
    parameters: int
    licence: str
    is_gated: bool
    is_supported: bool
    note: str | None

    @property
    def context(self) -> int:
        return self.spec.trained_context

    @property
    def weight_bytes(self) -> int:
        """In bfloat16."""
        return BFLOAT16_BYTES * self.parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """In bfloat16."""
        return self.spec.kv_bytes_per_token(BFLOAT16_BYTES)


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a model fits with its draft model, and for how long sequences.

    `mode` and `context` are None where it does not; `needed_bytes` are then those of the shortest sequences.
    """

    mode: Mode | None
    context: int | None
    needed_bytes: int
    free_bytes: int


def load_catalogue(path: Path = PATH) -> tuple[Entry, ...]:
    """All entries, in the order of the file."""
    return tuple(_entry(values) for values in tomllib.loads(path.read_text("utf-8"))["model"])


def fit(
    entry: Entry, entries: Mapping[str, Entry], hardware: Hardware, device: DeviceChoice, dtype: DtypeChoice
) -> Fit:
    """Where `entry` would run on this hardware; `entries` by id give its draft model. Raises `NoSuchDevice`."""
    n_draft_parameters = entries[entry.draft].spec.n_parameters if entry.draft else 0
    try:
        plan, context = plan_longest(hardware, entry.spec, n_draft_parameters, entry.context, device, dtype)
    except OutOfMemory as error:
        return Fit(None, None, error.needed_bytes, error.free_bytes)
    free_bytes = hardware.gpu_free_bytes if plan.mode == "gpu" else hardware.ram_free_bytes
    return Fit(plan.mode, context, needed_bytes(entry.spec, n_draft_parameters, context, plan.dtype), free_bytes)


def _entry(values: dict[str, Any]) -> Entry:
    spec = Spec(
        architecture=values["architecture"],
        n_layers=values["layers"],
        n_heads=values["heads"],
        n_kv_heads=values["kv_heads"],
        head_dim=values["head_dim"],
        hidden_size=values["hidden"],
        intermediate_size=values["intermediate"],
        vocab_size=values["vocabulary"],
        norm_eps=1e-5,
        ties_embeddings=values["ties_embeddings"],
        has_qk_norm=False,
        trained_context=values["context"],
    )
    return Entry(
        id=values["id"],
        role=values.get("role", "target"),
        draft=values.get("draft"),
        spec=spec,
        parameters=values["parameters"],
        licence=values["licence"],
        is_gated=values["gated"],
        is_supported=values.get("is_supported", True),
        note=values.get("note"),
    )
