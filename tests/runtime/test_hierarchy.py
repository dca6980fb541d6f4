"""Levels compose freely, and whatever drafts, the answer is that of plain decoding."""

from dataclasses import replace
from pathlib import Path

import pytest

from runtime.config import DraftCacheChoice, DrafterChoice, EngineConfig, Request, Speculation
from runtime.errors import InvalidSetting
from runtime.session import Session
from tests.runtime.sessions import GREEDY, HIERARCHY, PLAIN, ask, draft_always, prompt, tiny

DRAFTERS: tuple[tuple[DrafterChoice, DraftCacheChoice, set[str]], ...] = (
    ("none", "streaming", set()),
    ("lookup", "streaming", {"lookup"}),
    ("model", "streaming", {"model"}),
    ("model", "retrieval", {"model"}),
    ("merged", "streaming", {"lookup", "model"}),
    ("merged", "retrieval", {"lookup", "model"}),
)


@pytest.mark.parametrize("retrieval", [True, False], ids=["over retrieval", "alone"])
@pytest.mark.parametrize(("drafter", "draft_cache", "names"), DRAFTERS)
def test_every_composition_answers_as_plain_decoding(
    drafter: DrafterChoice,
    draft_cache: DraftCacheChoice,
    names: set[str],
    retrieval: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Greedy in float32, for an answer longer than the retrieval cache; the levels say what ran."""
    draft_always(monkeypatch, has_retrieval=True)
    model, ids, request = tiny(), prompt(200), Request(GREEDY, max_tokens=60)
    speculation = replace(HIERARCHY, retrieval=retrieval, drafter=drafter, draft_cache=draft_cache)
    end = ask(Session(model, tiny(seed=1), speculation, 512), ids, request)
    assert end.token_ids == ask(Session(model, None, PLAIN, 512), ids, request).token_ids
    ran = {level.name: level for level in end.stats.levels}
    assert set(ran) == {"full"} | names | ({"retrieval"} if retrieval else set())
    assert all(level.proposed for name, level in ran.items() if name in names)
    assert bool(ran["full"].proposed) == (retrieval or bool(names))


def test_what_is_left_to_us_follows_from_the_models() -> None:
    assert Speculation().chosen_drafter(has_draft_model=True) == "merged"
    assert Speculation().chosen_drafter(has_draft_model=False) == "lookup"
    assert Speculation(drafter="none").chosen_drafter(has_draft_model=True) == "none"


@pytest.mark.parametrize("drafter", ["model", "merged"])
def test_a_drafter_that_needs_a_draft_model_is_refused_without_one(drafter: DrafterChoice) -> None:
    """When the settings are read, and where a session is made without an engine."""
    speculation = Speculation(drafter=drafter)
    with pytest.raises(InvalidSetting, match="unless a draft model is named"):
        EngineConfig(Path(), speculation=speculation)
    EngineConfig(Path(), draft_model="small", speculation=speculation)
    with pytest.raises(InvalidSetting, match="unless a draft model is named"):
        ask(Session(tiny(), None, speculation, 512), prompt(30), Request(GREEDY, max_tokens=4))


def test_names_that_are_no_choice_are_refused() -> None:
    for wrong in ({"drafter": "trees"}, {"draft_cache": "whole"}):
        with pytest.raises(InvalidSetting):
            Speculation(**wrong)
