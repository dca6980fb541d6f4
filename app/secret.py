"""The secret of this installation, from which the marks around document text are made."""

import os
import secrets
from pathlib import Path

from app.errors import DataFolderUnusable

_LENGTH = 32


def installation_secret(data_dir: Path) -> bytes:
    """32 random bytes kept in `data_dir`, made at the first call. Raises `DataFolderUnusable`.

    Stable over restarts, so that a document's prompt, and with it its saved KV, stays the same; unknown to
    whoever writes a document, so that no document can imitate the marks between pages.
    """
    path = data_dir / "secret"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _create(path)
        secret = path.read_bytes()
    except OSError as error:
        raise DataFolderUnusable(str(data_dir), error.strerror or str(error)) from error
    if len(secret) != _LENGTH:
        raise DataFolderUnusable(str(data_dir), f"its file “secret” has {len(secret)} bytes instead of {_LENGTH}")
    return secret


def _create(path: Path) -> None:
    """Write the file whole or not at all, readable by its owner only; the first of two processes wins."""
    draft = path.with_name(f"secret.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(_LENGTH))
    try:
        if not path.exists():
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
