"""Which requirements the running environment satisfies, found out without pip."""

from pathlib import Path

import pytest

from app.setup.failure import SetupFailed
from app.setup.requirements import is_satisfied, is_within, missing_here, read_project, release


@pytest.mark.parametrize(
    ("expected", "version", "ranges"),
    [
        (True, "2.13.0+cpu", ">=2.9,<2.14"),
        (False, "2.14.0", ">=2.9,<2.14"),
        (False, "2.8.9", ">=2.9,<2.14"),
        (True, "2.9", ">=2.9.0"),
        (True, "2.10.0", ">=2.9"),
        (True, "5.0.0rc1", ">=5"),
        (False, "1.0", "!=1.0"),
        (True, "1.0", ""),
        (False, "1.0", "~=1.0"),
        (False, "1.0", ">=1.0.dev3"),
    ],
)
def test_ranges_are_compared_by_release_numbers(expected: bool, version: str, ranges: str) -> None:
    """2.10 is newer than 2.9; what cannot be read counts as not satisfied."""
    assert is_within(version, ranges) is expected


def test_a_release_has_no_zeros_at_its_end() -> None:
    """So that 2.9 and 2.9.0 are one version."""
    assert release("2.10.0+cu130") == (2, 10)
    assert release("0.0") == ()


def test_an_installed_package_in_range_is_satisfied() -> None:
    """pytest runs this test, and its plugins are packages as well."""
    assert is_satisfied("pytest>=9,<10")
    assert not is_satisfied("pytest>=1000")
    assert not is_satisfied("no-such-package-as-this>=1")


def test_the_packages_of_an_extra_must_be_there_too() -> None:
    """`pypdf[crypto]` means cryptography as well."""
    assert is_satisfied("pypdf[crypto]>=7,<8")


def test_an_extra_whose_packages_are_missing_is_not_satisfied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package alone is not enough."""
    described = tmp_path / "halfthere-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: halfthere\nVersion: 1.0\nProvides-Extra: more\n"
        "Requires-Dist: no-such-package-as-this>=2; extra == 'more'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert is_satisfied("halfthere>=1")
    assert not is_satisfied("halfthere[more]>=1")


def test_the_project_itself_can_be_read() -> None:
    """Every requirement of this project is in a form that the check understands."""
    project = read_project(Path(__file__).parents[2] / "pyproject.toml")
    assert {"test", "lint"} <= set(project.extras)
    assert project.ranges_of("torch") == ">=2.9,<2.14"
    assert missing_here(project.wanted(frozenset({"test"}))) == []


@pytest.mark.parametrize("text", ["", "[project", "[project]\ndependencies = 3\n"])
def test_a_broken_project_file_is_a_named_failure(tmp_path: Path, text: str) -> None:
    """Not a traceback."""
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(SetupFailed, match=r"pyproject.toml cannot be read"):
        read_project(tmp_path / "pyproject.toml")
