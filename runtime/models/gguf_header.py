"""The front of a GGUF file: its metadata and where each tensor lies. The `gguf` package's own reader makes a Python
object of every token and takes seconds over a large vocabulary, so string arrays are stepped over here."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from runtime.errors import ModelDamaged, UnsupportedModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
STRING, ARRAY = 8, 9  # value types of the format; the others are numbers:
NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}

Value = str | int | float | bool | tuple[int | float | bool, ...]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies. `shape` as torch has it, the last axis contiguous."""

    quantization: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`metadata` lacks arrays of strings; `data` is the whole file, mapped."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, StoredTensor]
    data: NDArray[np.uint8]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def get(self, key: str) -> Value | None:
        """The architecture's own value `key`."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def bytes_of(self, tensor: StoredTensor) -> NDArray[np.uint8]:
        """The tensor as it is stored, [rows, bytes a row]."""
        stored = self.data[tensor.start : tensor.start + tensor.n_bytes]
        return stored.reshape(-1, tensor.n_bytes * tensor.shape[-1] // _count(tensor.shape))


def read_header(path: Path) -> GgufHeader:
    """Read the front of `path`; raises `ModelDamaged` when it is no whole GGUF file, `UnsupportedModel` for a
    quantisation that is not known."""
    try:
        data: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:  # mapping an empty file is a ValueError
        raise ModelDamaged(str(path), f"it cannot be read ({error})") from error
    cursor = _Cursor(data, str(path))
    if cursor.bytes(4) != MAGIC:
        raise ModelDamaged(str(path), "it does not begin like a GGUF file")
    version = int(cursor.number("<I"))
    if version not in VERSIONS:
        raise ModelDamaged(str(path), f"its GGUF version {version} is not one of {VERSIONS}")
    n_tensors, n_values = int(cursor.number("<Q")), int(cursor.number("<Q"))
    metadata: dict[str, Value] = {}
    for _ in range(n_values):
        key = cursor.string()
        value = cursor.value(int(cursor.number("<I")))
        if value is not None:
            metadata[key] = value
    entries = [cursor.tensor() for _ in range(n_tensors)]
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelDamaged(str(path), f"its alignment is {alignment}")
    base = -(-cursor.place // alignment) * alignment
    tensors = {entry.name: _placed(path, len(data), base, entry) for entry in entries}
    return GgufHeader(path, metadata, tensors, data)


def _placed(path: Path, file_bytes: int, base: int, entry: "_Entry") -> StoredTensor:
    try:
        quantization = GGMLQuantizationType(entry.kind)
    except ValueError as error:
        known = tuple(known.name for known in GGMLQuantizationType)
        raise UnsupportedModel(f"GGUF quantisation number {entry.kind}", known) from error
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    count = _count(entry.shape)
    if count == 0 or entry.shape[-1] % block:
        reason = f"the tensor {entry.name} has the shape {entry.shape}, not in blocks of {block}"
        raise ModelDamaged(str(path), reason)
    start, n_bytes = base + entry.offset, count // block * block_bytes
    if start + n_bytes > file_bytes:
        end = f"{entry.name} would end at byte {start + n_bytes:,} of {file_bytes:,}"
        raise ModelDamaged(str(path), f"it is cut off: {end}")
    return StoredTensor(quantization, entry.shape, start, n_bytes)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


class _Entry(NamedTuple):
    """A tensor as the front of the file describes it; `offset` from where the tensors begin."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


class _Cursor:
    """Reads a mapped file from its front."""

    def __init__(self, data: NDArray[np.uint8], name: str) -> None:
        self._data = data.data
        self._name = name
        self.place = 0

    def number(self, form: str) -> int | float | bool:
        try:
            (number,) = struct.unpack_from(form, self._data, self.place)
        except struct.error as error:
            raise self._cut_off() from error
        self.place += struct.calcsize(form)
        value: int | float | bool = number
        return value

    def bytes(self, length: int) -> bytes:
        if self.place + length > len(self._data):
            raise self._cut_off()
        self.place += length
        return bytes(self._data[self.place - length : self.place])

    def string(self) -> str:
        return self.bytes(int(self.number("<Q"))).decode("utf-8", "replace")

    def value(self, kind: int) -> Value | None:
        """The value here; None for an array of strings, which is stepped over."""
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.number(self._form(kind))
        kind, count = int(self.number("<I")), int(self.number("<Q"))
        if kind == STRING:
            self._step_over_strings(count)
            return None
        form = self._form(kind)
        stored = self.bytes(count * struct.calcsize(form))
        return tuple(number for (number,) in struct.iter_unpack(form, stored))

    def tensor(self) -> _Entry:
        """The tensor described here."""
        name = self.string()
        n_axes = int(self.number("<I"))
        if not 1 <= n_axes <= 4:
            raise ModelDamaged(self._name, f"the tensor {name[:100]} has {n_axes} axes")
        shape = tuple(int(self.number("<Q")) for _ in range(n_axes))
        return _Entry(name, shape[::-1], int(self.number("<I")), int(self.number("<Q")))

    def _step_over_strings(self, count: int) -> None:
        length_at, data, place, end = struct.Struct("<Q").unpack_from, self._data, self.place, len(self._data)
        for _ in range(count):
            if place + 8 > end:
                raise self._cut_off()
            place += 8 + length_at(data, place)[0]
        if place > end:
            raise self._cut_off()
        self.place = place

    def _form(self, kind: int) -> str:
        if kind not in NUMBERS:
            raise ModelDamaged(self._name, f"its metadata has values of the unknown type {kind}")
        return NUMBERS[kind]

    def _cut_off(self) -> ModelDamaged:
        return ModelDamaged(self._name, f"it is cut off: its front would end behind byte {len(self._data):,}")
