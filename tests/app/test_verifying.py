"""`verify`: the whole of it on a tiny model, its words, and its exit status."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from app.cli import main
from app.verifying import describe, to_json
from runtime import lossless
from runtime.engine import EngineFacts
from runtime.lossless import Difference, Report, Sampled
from runtime.stats import LevelStats
from runtime.verify import Verdict
from tests.runtime.tiny import save_tiny

KEYS = {"greedy_equal", "near_ties", "prompts", "sampled_distance", "bound", "ok"}
FACTS = EngineFacts("small\nmodel", "llama", 1, "cpu", "", "cpu", "bfloat16", 1, 512, 512, None, ())
LEVELS = (LevelStats("full", 1000, 2000, 1500), LevelStats("retrieval", 1200, 1000, 400))
GOOD = Report(3, True, (), (), 0.5, (Sampled(0.01, 0.03, LEVELS), Sampled(0.02, 0.04, LEVELS)))
TIE = Difference(2, 17, 5, 6, 0.125)
WRONG = Difference(1, 4, 7, 8, 2.5)


@pytest.fixture
def verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs `verify` over a tiny model, out of sight of this machine's settings, with fewer tokens and draws."""
    for name in [name for name in os.environ if name.startswith("FULLREAD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FULLREAD_CONFIG", str(tmp_path / "none"))
    for name in ("GRADIO_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")  # set by `main`, and put back after the test
    monkeypatch.setattr(lossless, "ROUNDS", 600)
    monkeypatch.setattr(lossless, "ANSWER_TOKENS", 16)
    save_tiny(tmp_path / "model", "llama", num_hidden_layers=2)
    threads = torch.get_num_threads()
    given = ["--model", str(tmp_path / "model"), "--dtype", "float32", "--threads", "1", "--top-k", "20"]
    yield lambda *argv: main(["verify", *given, *argv])
    torch.set_num_threads(threads)


def test_a_good_decoder_is_status_0_and_json_has_its_keys_alone(verify, capsys) -> None:
    assert verify("--json", "--prompts", "2") == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert set(record) == KEYS
    assert (record["ok"], record["greedy_equal"], record["near_ties"], record["prompts"]) == (True, True, [], 2)
    assert 0 <= record["sampled_distance"] < record["bound"] < 0.2
    assert "greedy: prompt 2 of 2" in err
    assert "sampled: place 2, 0 of 600 rounds" in err


def test_a_broken_rule_is_status_1_and_said_in_words(verify, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a decoder that accepts every draft is not let through."""
    broken = lambda draft, probs, choices: Verdict(len(draft.tokens), choices.draw(probs[-1]), "bonus")  # noqa: E731
    monkeypatch.setattr("runtime.speculation.verify", broken)
    assert verify("--prompts", "1") == 1
    out, _ = capsys.readouterr()
    assert out.startswith("Speculative decoding does NOT give the model's own answers")
    assert "These tokens are not what plain decoding takes:" in out
    assert "--plain" in out


def told(report: Report) -> str:
    return describe(report, FACTS, lambda ids: f"<{ids[0]}\n>")


def test_the_verdict_in_words() -> None:
    text = told(GOOD)
    assert text.startswith("Speculative decoding gives the model's own answers (small\\nmodel, bfloat16, cpu).")
    assert "equal with and without drafts, token for token" in text
    assert "0.0200 away from the model's own distribution; allowed are 0.0400" in text
    assert "2,000 tokens drafted over the retrieval cache 1,500 were accepted" in text
    assert "1,000 found by lookup for it, 400" in text


@pytest.mark.parametrize("accepted", [0, 2000])
def test_a_check_that_put_little_to_the_test_says_so(accepted: int) -> None:
    levels = (LevelStats("full", 1000, 2000, accepted), LEVELS[1])
    assert "puts little to the test" in told(replace(GOOD, sampled=(Sampled(0.01, 0.03, levels),)))
    assert "puts little to the test" not in told(GOOD)


def test_near_ties_are_listed_with_their_gaps_and_are_no_fault() -> None:
    report = replace(GOOD, greedy_equal=False, near_ties=(TIE,))
    assert report.ok
    text = told(report)
    assert "but for near-ties (1)" in text
    assert "prompt 2, token 17: “<5\\n>”, where “<6\\n>” is ahead by 0.125" in text
    assert json.loads(to_json(report))["near_ties"] == [
        {"prompt": 2, "position": 17, "token": 5, "best": 6, "gap": 0.125}
    ]


@pytest.mark.parametrize(
    "report",
    [
        replace(GOOD, greedy_equal=False, wrong=(WRONG,)),
        replace(GOOD, sampled=(Sampled(0.01, 0.03, LEVELS), Sampled(0.05, 0.04, LEVELS))),
        replace(GOOD, sampled=(Sampled(0.031, 0.03, LEVELS), Sampled(0.039, 0.04, LEVELS))),
    ],
    ids=["a wrong token", "the second place", "the first place, though the other is further away"],
)
def test_any_fault_makes_the_whole_not_ok(report: Report) -> None:
    assert not report.ok
    assert "NOT" in told(report).splitlines()[0]
    record = json.loads(to_json(report))
    assert record["ok"] is False
    assert set(record) == KEYS
    assert report.wrong or record["sampled_distance"] > record["bound"]
