"""The engine over several ranks, from start to every kind of end; no process is left behind by any."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from runtime.config import EngineConfig, Request, Sampling, Speculation
from runtime.engine import assemble
from runtime.errors import InvalidSetting, TooFewGpus
from runtime.events import Finished
from tests.runtime.ranks import assert_gone
from tests.runtime.sessions import prompt
from tests.runtime.tiny import N_TOKENS, save_tiny


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    heads = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}
    save_tiny(folder / "model", "llama", max_position_embeddings=4096, vocab_size=N_TOKENS, eos_token_id=None, **heads)
    save_tiny(folder / "draft", "llama", seed=1, num_hidden_layers=1, max_position_embeddings=4096)
    return folder


def config(folder: Path, gpus: int, **options: object) -> EngineConfig:
    values: dict[str, object] = {"context": 2048, "dtype": "float32", "threads": 1}
    return EngineConfig(folder / "cache", str(folder / "model"), gpus=gpus, **values | options)


def answers(folder: Path, gpus: int, **options: object) -> list[tuple[int, ...]]:
    """To two prompts in turn and the first of them gone on with. Greedy: how much is drafted, which passes decide that
    are timed for each number of ranks, moves what a seed draws."""
    engine = assemble(config(folder, gpus, **options), lambda _: None, backend="gloo")
    try:
        found = []
        for ids in (prompt(300), prompt(200, 4), [*prompt(300), 5, 6, 7]):
            *_, end = engine.answer(ids, Request(Sampling(temperature=0), 24), threading.Event())
            assert isinstance(end, Finished)
            found.append(end.token_ids)
        return found
    finally:
        engine.close()


def test_the_engine_answers_over_ranks_as_over_one_process(models: Path) -> None:
    """With a draft model; and closed, it leaves nothing running."""
    small = Speculation(gamma=4, budget=64, chunk_size=4, sinks=4, window=28)
    options = {"draft_model": str(models / "draft"), "speculation": small}
    before = psutil.Process().children(recursive=True)
    assert answers(models, 2, **options) == answers(models, 1, **options)
    assert psutil.Process().children(recursive=True) == before


def test_without_gpus_several_are_refused_with_both_numbers(models: Path) -> None:
    with pytest.raises(TooFewGpus) as refused:
        assemble(config(models, 2), lambda _: None)
    assert (refused.value.wanted, refused.value.found) == (2, 0)


def test_several_gpus_and_the_processor_contradict_each_other(models: Path) -> None:
    for option in ({"device": "cpu"}, {"mode": "cpu"}):
        with pytest.raises(InvalidSetting):
            config(models, 2, **option)


@contextmanager
def answering(models: Path) -> Iterator[tuple["subprocess.Popen[str]", list[psutil.Process]]]:
    """A process in the middle of an answer, and those of the two other ranks."""
    command = [sys.executable, "-m", "tests.runtime.asking_ranks", str(models), "3"]
    asking = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    others: list[psutil.Process] = []
    try:
        assert asking.stdout is not None
        others = [psutil.Process(int(pid)) for pid in asking.stdout.readline().split()]
        assert len(others) == 2
        assert asking.stdout.readline() == "token\n"
        yield asking, others
        asking.wait(60)
        assert_gone(others)
    finally:
        asking.kill()
        asking.communicate()
        for process in others:
            if process.is_running():
                process.kill()


def last_line(asking: "subprocess.Popen[str]") -> str:
    assert asking.stdout is not None
    return asking.stdout.read().splitlines()[-1]


def test_rank_0_killed_takes_the_others_along(models: Path) -> None:
    with answering(models) as (asking, _):
        asking.kill()


def test_ctrl_c_ends_all_ranks(models: Path) -> None:
    """In a terminal it reaches the whole process group; the other ranks have groups of their own."""
    with answering(models) as (asking, others):
        assert os.getpgid(others[0].pid) != os.getpgid(asking.pid)
        os.killpg(asking.pid, signal.SIGINT)
        assert last_line(asking) == "interrupted"
        assert asking.wait(60) == 0


def test_a_rank_killed_ends_the_answer_with_its_name_and_all_others(models: Path) -> None:
    with answering(models) as (asking, others):
        others[1].kill()
        assert last_line(asking) == "lost 2 3 it was ended by SIGKILL"
        assert asking.wait(60) == 0
