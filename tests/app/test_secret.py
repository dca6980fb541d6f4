"""The installation's secret: made once, kept, and refused when it cannot be."""

import os
import stat

import pytest

from app.errors import DataFolderUnusable
from app.secret import installation_secret


def test_the_secret_is_made_once_and_stays(tmp_path):
    """The second call gives what the first made; another folder has another."""
    secret = installation_secret(tmp_path / "a" / "b")
    assert len(secret) == 32
    assert installation_secret(tmp_path / "a" / "b") == secret
    assert installation_secret(tmp_path / "c") != secret
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["secret"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_only_its_owner_reads_the_secret(tmp_path):
    """Others on the machine could forge page marks with it."""
    installation_secret(tmp_path)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    """The error names the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFolderUnusable) as refused:
        installation_secret(tmp_path / "file")
    assert refused.value.path == str(tmp_path / "file")


def test_a_cut_secret_is_refused(tmp_path):
    """A file of the wrong length is not the secret that was made."""
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(DataFolderUnusable):
        installation_secret(tmp_path)
