"""What passes cost is measured once and kept."""

import json
from pathlib import Path

import pytest
import torch

from runtime import passes
from runtime.passes import TOKENS, measure, pass_costs
from tests.runtime.tiny import tiny_decoder


def test_passes_are_timed_and_the_threads_left_alone() -> None:
    decoder, _ = tiny_decoder("llama")
    before = torch.get_num_threads()
    costs = measure(decoder, 2)
    assert torch.get_num_threads() == before
    assert (costs.most_threads, costs.tokens) == (2, TOKENS)
    assert costs.threads in (1, 2)
    assert all(seconds > 0 for seconds in (*costs.short, *costs.long))


def test_a_slow_model_is_timed_at_fewer_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, _ = tiny_decoder("llama")
    monkeypatch.setattr(passes, "SLOW_SECONDS", 0.0)
    assert measure(decoder, 1).tokens == (1, 4, 16)


def test_what_was_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For this model on so many threads; what is damaged is measured again."""
    decoder, _ = tiny_decoder("llama")
    first = pass_costs(decoder, "a", tmp_path, 1)
    (path,) = (tmp_path / "passes").iterdir()
    measured_again = []

    def noted(*_: object) -> object:
        measured_again.append(1)
        return first

    monkeypatch.setattr(passes, "measure", noted)
    assert pass_costs(decoder, "a", tmp_path, 1) == first
    assert not measured_again
    pass_costs(decoder, "b", tmp_path, 1)
    pass_costs(decoder, "a", tmp_path, 2)
    assert len(measured_again) == 2
    for damaged in ("", "{}", json.dumps({"most_threads": 1, "threads": 1, "tokens": [1], "short": [1], "long": [1]})):
        path.write_text(damaged, "utf-8")
        assert pass_costs(decoder, "a", tmp_path, 1) == first
    assert len(measured_again) == 5


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    decoder, _ = tiny_decoder("llama")
    (tmp_path / "passes").write_text("a file where the folder would be", "utf-8")
    assert pass_costs(decoder, "a", tmp_path, 1).threads == 1
