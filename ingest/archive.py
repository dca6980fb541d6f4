"""The members of a zip archive, read where they lie: nothing is ever written to disk."""

import re
import stat
import zipfile
import zlib
from collections.abc import Iterator

from ingest.errors import Damaged, PasswordNeeded, UnknownFormat, WrongPassword
from ingest.flags import LeftOut
from ingest.folder import Found
from ingest.limits import MIB, Limits

# Documents that are zip archives inside; their text is not that of their members.
_DOCUMENT_MEMBERS = ("[Content_Types].xml", "mimetype")
_ENCRYPTED = 1
_DRIVE = re.compile(r"[A-Za-z]:")


class Zip:
    """An opened archive. Raises `Damaged`, `PasswordNeeded`, for office files and e-books `UnknownFormat`."""

    def __init__(self, path: str, name: str, password: str | None, limits: Limits) -> None:
        self._name, self._limits = name, limits
        self._password = password.encode() if password else None
        try:
            self._file = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError):
            raise Damaged(name, "the archive's list of members cannot be read") from None
        members = self._file.infolist()
        if any(member.filename in _DOCUMENT_MEMBERS for member in members):
            raise UnknownFormat(name)
        if self._password is None and any(member.flag_bits & _ENCRYPTED for member in members):
            raise PasswordNeeded(name)
        # Later members replace earlier ones of the same name, as when unpacking.
        self._members = {_plain(member.filename): member for member in members if not member.is_dir()}
        self.n_replaced = sum(not member.is_dir() for member in members) - len(self._members)

    def members(self) -> Iterator[Found | LeftOut]:
        """Every file in it; left out are links, paths that lead outside, and what unpacks without end."""
        for path, member in self._members.items():
            mode = member.external_attr >> 16
            if path.startswith("/") or _DRIVE.match(path) or ".." in path.split("/"):
                yield LeftOut(path, "its path leads out of the archive")
            elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                yield LeftOut(path, "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file")
            elif member.file_size > MIB and member.file_size > self._limits.zip_ratio * member.compress_size:
                yield LeftOut(path, "unpacks to a suspicious size", f"{member.file_size:,} bytes")
            else:
                yield Found(path, member.file_size)

    def read(self, path: str, most_bytes: int) -> bytes:
        """At most `most_bytes` + 1 bytes of a member, whatever it claims. Raises OSError, `WrongPassword`."""
        try:
            with self._file.open(self._members[path], pwd=self._password) as member:
                return member.read(most_bytes + 1)
        except RuntimeError as error:
            if isinstance(error, NotImplementedError):
                raise OSError("it is packed in an unknown way") from None
            raise WrongPassword(self._name) from None
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError):
            raise OSError("it is broken") from None


def _plain(name: str) -> str:
    r"""Some archivers write "\" between folders."""
    return name.replace("\\", "/")
