"""What parent and child process say to each other: one JSON object a line, and the values they stand for."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ingest import errors
from ingest.document import Flag, Kind, Page
from ingest.flags import LeftOut
from ingest.limits import Limits

Trouble = Literal["time", "memory", "crash"]


@dataclass(frozen=True, slots=True)
class Job:
    """What the child is to read. It is started again with more in `done` and `troubled` when it dies
    half-way.

    `done` holds the units whose results the parent has; `troubled` those that hung or killed the child
    before, each with what happened.
    """

    kind: Kind
    path: str
    name: str
    limits: Limits
    password: str | None = None
    pages: str | None = None
    done: frozenset[str] = frozenset()
    troubled: Mapping[str, Trouble] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Head:
    """First word about a document: how many pages it has (of a tree: files to read), and its digest (of a
    tree: "")."""

    n_pages: int
    digest: str


@dataclass(frozen=True, slots=True)
class Begin:
    """The child starts on `unit` and expects to be done with it within `seconds`."""

    unit: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    """All that came out of `unit`: pages (also empty ones), flags, and for a tree what was left out and the
    file's digest. In a tree, pages and the flags' pages count from 1 in each result."""

    unit: str
    pages: tuple[Page, ...] = ()
    flags: tuple[Flag, ...] = ()
    digest: str = ""
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """Nothing more will come."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The document as a whole cannot be read: an `IngestError`, by class name and arguments."""

    error: str
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, error: errors.IngestError) -> "Refusal":
        return cls(type(error).__name__, error.args)

    def to_error(self) -> errors.IngestError:
        made = getattr(errors, self.error)(*self.arguments)
        assert isinstance(made, errors.IngestError)
        return made


Message = Head | Begin | Result | End | Refusal


def encode(value: Message | Job) -> bytes:
    """One line of ASCII. File names that are not valid text travel as lone surrogates."""
    fields = asdict(value)
    if isinstance(value, Job):
        fields["done"] = sorted(value.done)
    return json.dumps({"type": type(value).__name__, **fields}).encode("ascii") + b"\n"


def decode_job(line: bytes) -> Job:
    fields = json.loads(line)
    del fields["type"]
    return Job(**fields | {"limits": Limits(**fields["limits"]), "done": frozenset(fields["done"])})


def decode(line: bytes) -> Message:
    """The message in `line`. Raises ValueError, KeyError or TypeError when a child gone wild wrote something
    else."""
    fields = json.loads(line)
    return _MAKERS[fields.pop("type")](fields)


def _result(fields: dict[str, Any]) -> Result:
    pages = tuple(Page(**page) for page in fields["pages"])
    flags = tuple(Flag(flag["code"], tuple(flag["pages"]), flag["detail"]) for flag in fields["flags"])
    left_out = tuple(LeftOut(**entry) for entry in fields["left_out"])
    return Result(fields["unit"], pages, flags, fields["digest"], left_out)


_MAKERS: dict[str, Callable[[dict[str, Any]], Message]] = {
    "Head": lambda fields: Head(**fields),
    "Begin": lambda fields: Begin(**fields),
    "Result": _result,
    "End": lambda fields: End(),
    "Refusal": lambda fields: Refusal(fields["error"], tuple(fields["arguments"])),
}
