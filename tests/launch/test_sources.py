"""From a name to files on this disk: folders, .gguf files, and what is wrong with other names."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.errors import EngineError, ModelDamaged, ModelNotFound
from runtime.models.sources import Source, default_cache_dir, locate
from runtime.models.starter import STARTER, place


def find(model: str | Path, cache_dir: Path) -> Source:
    return locate(str(model), cache_dir, allow_download=False, progress=lambda _: None)


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"\0" * 8)
    return folder


def test_a_folder_with_config_and_weights_is_a_model(model_folder: Path, tmp_path: Path) -> None:
    """Given as the person writes it, found as an absolute path."""
    assert find(model_folder, tmp_path) == Source("folder", str(model_folder), model_folder.resolve())


def test_a_folder_wins_over_a_hub_id_of_the_same_spelling(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`org/name` here is a folder."""
    (tmp_path / "org").mkdir()
    model_folder.rename(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert find("org/name", tmp_path).kind == "folder"


def test_all_shards_of_a_model_must_be_there(model_folder: Path, tmp_path: Path) -> None:
    """By the count in their names."""
    (model_folder / "model.safetensors").rename(model_folder / "model-00001-of-00003.safetensors")
    with pytest.raises(ModelNotFound, match=r"2 of its weight files are missing.* model-00002-of-00003"):
        find(model_folder, tmp_path)
    (model_folder / "model-00002-of-00003.safetensors").touch()
    (model_folder / "model-00003-of-00003.safetensors").touch()
    assert find(model_folder, tmp_path).kind == "folder"


def test_all_files_of_the_index_must_be_there(model_folder: Path, tmp_path: Path) -> None:
    """By the index, whatever they are called."""
    index = {"weight_map": {"a": "model.safetensors", "b": "rest.safetensors"}}
    (model_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelNotFound, match=r"1 of its weight files are missing, the first is rest"):
        find(model_folder, tmp_path)


@pytest.mark.parametrize(
    ("reason", "spoil"),
    [
        ("there is no config.json in it", lambda folder: (folder / "config.json").unlink()),
        ("there are no *.safetensors weights in it", lambda folder: (folder / "model.safetensors").unlink()),
        (
            "there are no *.safetensors weights in it (weights in other formats are not read from a folder)",
            lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        ),
    ],
)
def test_a_folder_that_is_no_model_says_what_it_lacks(
    model_folder: Path, tmp_path: Path, reason: str, spoil: Callable[[Path], object]
) -> None:
    """The reason is for the person, the name is as it was given."""
    spoil(model_folder)
    with pytest.raises(ModelNotFound) as caught:
        find(model_folder, tmp_path)
    assert (caught.value.source, caught.value.reason) == (str(model_folder), reason)


def test_a_gguf_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    """The ending alone proves nothing."""
    path = tmp_path / "some.GGUF"
    path.write_bytes(b"GGUF\3\0\0\0")
    assert find(path, tmp_path) == Source("gguf", str(path), path.resolve())
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(ModelDamaged, match="does not begin like one"):
        find(path, tmp_path)
    path.write_bytes(b"")
    with pytest.raises(ModelDamaged):
        find(path, tmp_path)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("./nowhere", "there is no such file or folder"),
        ("/no/such/folder", "there is no such file or folder"),
        ("~/no-such-folder-as-this", "there is no such file or folder"),
        ("models/deep/er", "there is no such file or folder"),
        ("missing.gguf", "there is no such file or folder"),
        ("llama", "it is no file or folder here, and a hub id has the form org/name"),
        ("", "it is no file or folder here, and a hub id has the form org/name"),
        ("org/na me", "it is no file or folder here, and a hub id has the form org/name"),
        ("-org/name", "it is no file or folder here, and a hub id has the form org/name"),
        ("a\0b", "it is no file or folder here, and a hub id has the form org/name"),
        ("org/name", "it is not on this machine, and downloads are switched off"),
        ("starter", "it was not downloaded yet, and downloads are switched off"),
    ],
)
def test_any_other_name_is_refused_with_the_reason(tmp_path: Path, model: str, reason: str) -> None:
    """A path that is not there, a name of the wrong form, a model that would have to be downloaded."""
    with pytest.raises(ModelNotFound) as caught:
        find(model, tmp_path)
    assert caught.value.reason == reason


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A single safetensors file has no config beside it that belongs to it for sure."""
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(ModelNotFound, match=r"a model file is a \.gguf"):
        find(path, tmp_path)


def test_a_fetched_starter_is_checked_by_its_size_each_time(tmp_path: Path) -> None:
    """The hash was checked when it came; a file cut short since then is not taken for whole."""
    path = place(STARTER, tmp_path)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(STARTER.file_bytes)
    assert find("starter", tmp_path) == Source("starter", "starter", path)
    with path.open("r+b") as file:
        file.truncate(STARTER.file_bytes - 1)
    with pytest.raises(ModelDamaged, match="it is not 98,362,432 bytes long"):
        find("starter", tmp_path)


def test_every_failure_is_an_engine_error() -> None:
    """So that the app has words for it."""
    assert issubclass(ModelNotFound, EngineError)
    assert default_cache_dir().name.lower() in ("fullread", "cache")
