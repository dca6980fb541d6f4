"""Models that people can run, from the catalogue, and what of them fits a machine."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import assets
from runtime.config import Wishes
from runtime.errors import OutOfMemory
from runtime.footprint import Pair
from runtime.hardware import Hardware
from runtime.memory import plan_longest
from runtime.models.rope import LARGEST_YARN_FACTOR
from runtime.models.spec import Spec
from runtime.plan import Mode

PATH = Path(next(iter(assets.__path__))) / "models.toml"
BFLOAT16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A model by its hub id (or `starter`), and the id of the entry that drafts for it.

    Of its `spec` only sizes are told. `context` is what it was made for, in tokens; `parameters` as published;
    `packed_bytes` what a processor holds besides of a file in four-bit groups. A model that is not supported is listed
    for what its `note` says.
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
    packed_bytes: int = 0

    @property
    def context(self) -> int:
        return self.spec.trained_context

    @property
    def longest_context(self) -> int:
        """What can be read with YaRN. Of models with a scaling of their own none here is made for less than any plan
        counts on, so theirs is left aside."""
        return int(LARGEST_YARN_FACTOR * self.context)

    @property
    def weight_bytes(self) -> int:
        """In bfloat16."""
        return BFLOAT16_BYTES * self.parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """In bfloat16."""
        return self.spec.kv_bytes_per_token(BFLOAT16_BYTES)

    def pair_with(self, draft: "Entry | None") -> Pair:
        """What a plan must know of both."""
        if draft is None:
            return Pair(self.spec, packed_bytes=self.packed_bytes)
        return Pair(self.spec, draft.spec, self.packed_bytes, draft.packed_bytes)


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


def fit(entry: Entry, entries: Mapping[str, Entry], hardware: Hardware, wishes: Wishes) -> Fit:
    """Where `entry` would run on this hardware; `entries` by id give its draft model. Raises `NoSuchDevice`,
    `InvalidSetting` for a mode that does not run yet."""
    pair = entry.pair_with(entries[entry.draft] if entry.draft else None)
    try:
        plan = plan_longest(hardware, pair, entry.context, wishes)
    except OutOfMemory as error:
        return Fit(None, None, error.needed_bytes, error.free_bytes)
    return Fit(plan.mode, plan.context, plan.bytes.total, plan.free_bytes)


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
        packed_bytes=values.get("packed_bytes", 0),
    )
