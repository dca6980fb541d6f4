"""What pyproject.toml asks for, and whether the running environment has it; contacts nothing."""

import operator
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from app.setup.failure import SetupFailed

REQUIREMENT = re.compile(r"\s*([\w.-]+)\s*(?:\[([^]]*)\])?\s*([^;]*?)\s*")
RANGE = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*([\d.]+)\s*")
COMPARE = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Project:
    """The requirement lines of a project: always wanted, and those of each extra."""

    always: tuple[str, ...]
    extras: dict[str, tuple[str, ...]]

    def wanted(self, extras: frozenset[str]) -> tuple[str, ...]:
        """The lines that hold with these extras; an extra the project no longer has asks for nothing."""
        return self.always + tuple(line for extra in sorted(extras) for line in self.extras.get(extra, ()))

    def ranges_of(self, name: str) -> str:
        """The versions allowed of one package, as in `>=2.9,<2.14`; empty where it is not asked for."""
        for line in self.always:
            if (parts := REQUIREMENT.fullmatch(line)) and parts[1] == name:
                return parts[3]
        return ""


def read_project(path: Path) -> Project:
    """The requirements in a pyproject.toml. Raises SetupFailed where it cannot be read."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))["project"]
        always = tuple(map(str, table.get("dependencies", ())))
        extras = {name: tuple(map(str, lines)) for name, lines in table.get("optional-dependencies", {}).items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise SetupFailed(
            "pyproject.toml cannot be read", "Restore it: git checkout pyproject.toml", [repr(error)]
        ) from error
    return Project(always, extras)


def missing_here(lines: Sequence[str]) -> list[str]:
    """The requirement lines that the running environment does not satisfy."""
    return [line for line in lines if not is_satisfied(line)]


def is_satisfied(requirement: str) -> bool:
    """Whether the running environment has a package in range, with what its extras add.

    Cautious: what this cannot read (markers, links) counts as not satisfied, and pip decides.
    """
    parts = REQUIREMENT.fullmatch(requirement)
    if parts is None:
        return False
    name, extras, ranges = parts.groups()
    try:
        version = metadata.version(name)
        added = [line for line in metadata.requires(name) or () if _extra_of(line) in _names(extras)]
        for line in added:
            metadata.version(re.split(r"[^\w.-]", line, maxsplit=1)[0])
    except metadata.PackageNotFoundError:
        return False
    return is_within(version, ranges)


def is_within(version: str, ranges: str) -> bool:
    """Whether a version lies in ranges like `>=2.9,<2.14`, by its release numbers."""
    for one in filter(None, ranges.split(",")):
        parts = RANGE.fullmatch(one)
        if parts is None or not COMPARE[parts[1]](release(version), release(parts[2])):
            return False
    return True


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version without zeros at their end: `2.10.0+cpu` is (2, 10)."""
    numbers = [int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", version, maxsplit=1)[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _extra_of(requirement: str) -> str | None:
    found = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
    return found[1] if found else None


def _names(extras: str | None) -> set[str]:
    return {name.strip() for name in (extras or "").split(",") if name.strip()}
