"""The files of a folder that count: what git would show in a work tree, else all but what `.gitignore` files
name.

Nothing outside the folder is ever opened: links are not followed, and only regular files are read.
"""

import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pathspec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from ingest.flags import LeftOut
from ingest.rules import SKIPPED_FOLDERS

_GIT_SECONDS = 20
_LONGEST_IGNORE_FILE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file: its path from the root, "/" between folders, as os.fsdecode gives it."""

    path: str
    n_bytes: int


def list_folder(root: str) -> Iterator[Found | LeftOut]:
    """Every file below `root` that is not ignored, in no order, and what was left out with its reason."""
    listed = _git_files(root)
    if listed:
        return (_looked_at(root, path) for path in listed)
    return _walk(root)


def read_file(root: str, path: str, most_bytes: int) -> bytes:
    """The first `most_bytes` + 1 bytes of a file. Raises OSError, also when it is not a regular file below
    `root`."""
    full = os.path.join(root, path)
    if os.path.realpath(full) != os.path.join(os.path.realpath(root), os.path.normpath(path)):
        raise OSError("it is reached through a link")
    # Between the listing and now the name may have become a link or a pipe, which would block.
    descriptor = os.open(
        full,
        os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0),
    )
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is not a regular file")
        return file.read(most_bytes + 1)


def _git_files(root: str) -> list[str]:
    """What git tracks or would track below `root`; empty when there is no git, no work tree, or nothing in
    it."""
    # A hostile repository's configuration may name a program to run as file system monitor.
    command = (
        "git",
        "-c",
        "core.fsmonitor=false",
        "-C",
        root,
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=True,
            env=environment | {"GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return sorted({os.fsdecode(path) for path in done.stdout.split(b"\0") if path})


def _looked_at(root: str, path: str) -> Found | LeftOut:
    if path.endswith("/"):
        return LeftOut(path, "a repository of its own")
    try:
        status = os.lstat(os.path.join(root, path))
    except OSError:
        return LeftOut(path, "known to git but not on disk")
    return _judged(path, status)


def _judged(path: str, status: os.stat_result) -> Found | LeftOut:
    if stat.S_ISREG(status.st_mode):
        return Found(path, status.st_size)
    if stat.S_ISLNK(status.st_mode):
        return LeftOut(path, "a symbolic link")
    return LeftOut(path, "a submodule" if stat.S_ISDIR(status.st_mode) else "not a regular file")


def _walk(root: str) -> Iterator[Found | LeftOut]:
    """Top-down, so that nothing below an ignored folder can be included again, which is git's rule."""
    exclude = _rules(Path(root, ".git", "info", "exclude"))
    waiting: list[tuple[str, tuple[tuple[str, pathspec.GitIgnoreSpec], ...]]] = [("", (("", exclude),))]
    while waiting:
        prefix, rules = waiting.pop()
        rules = (*rules, (prefix, _rules(Path(root, prefix, ".gitignore"))))
        try:
            with os.scandir(os.path.join(root, prefix)) as entries:
                children = list(entries)
        except OSError as error:
            yield LeftOut(prefix, "could not be opened", error.strerror or "")
            continue
        for child in children:
            path = prefix + child.name
            is_folder = child.is_dir(follow_symlinks=False)
            if is_folder and child.name in SKIPPED_FOLDERS:
                if child.name != ".git":
                    yield LeftOut(f"{path}/", "kept by tools")
            elif _is_ignored(path + "/" * is_folder, rules):
                yield LeftOut(path + "/" * is_folder, "named by a .gitignore file")
            elif is_folder:
                waiting.append((f"{path}/", rules))
            else:
                yield _judged(path, child.stat(follow_symlinks=False))


def _is_ignored(path: str, rules: tuple[tuple[str, pathspec.GitIgnoreSpec], ...]) -> bool:
    """The nearest rule file that says anything about `path` decides."""
    for prefix, spec in reversed(rules):
        verdict = spec.check_file(path[len(prefix) :]).include
        if verdict is not None:
            return verdict
    return False


def _rules(file: Path) -> pathspec.GitIgnoreSpec:
    """An ignore file's rules; none when it is not there. It need not be UTF-8, may have a mark and CRLF."""
    try:
        if not stat.S_ISREG(os.lstat(file).st_mode):
            return pathspec.GitIgnoreSpec([])
        with file.open("rb") as opened:
            text = opened.read(_LONGEST_IGNORE_FILE).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    except OSError:
        return pathspec.GitIgnoreSpec([])
    patterns: list[GitIgnoreSpecPattern] = []
    for line in text.split("\n"):
        line = line.removesuffix("\r")
        if line.endswith("/**"):  # All that is in a folder, but pathspec takes the folder itself as well.
            line += "/*"
        try:
            patterns += pathspec.GitIgnoreSpec.from_lines([line]).patterns
        except ValueError:
            continue  # git takes no notice of a pattern it cannot read, either.
    return pathspec.GitIgnoreSpec(patterns)
