"""The promises kept on a real model: the starter, in float32."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.config import EngineConfig, Request, Sampling, Speculation
from runtime.engine import Engine, assemble
from runtime.events import Finished
from runtime.pacing import Costs

pytestmark = pytest.mark.slow
GREEDY = Sampling(temperature=0)
SYSTEM = "Answer the question from the documents. If the answer is not in them, say so."


@pytest.fixture
def cheap_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The retrieval level is used however short the prompt, with one to three tokens a draft."""
    monkeypatch.setattr("runtime.hierarchy.retrieval_costs", lambda *_: Costs(0.3, 0.1))


@pytest.fixture(scope="module")
def engine(starter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    speculation = Speculation(gamma=6, inner_gamma=2, budget=160, chunk_size=8)
    cache = tmp_path_factory.mktemp("cache")
    config = EngineConfig(cache, str(starter_path), device="cpu", dtype="float32", threads=1, speculation=speculation)
    built = assemble(config, lambda _: None)
    yield built
    built.close()


def finish(events: Iterator[object]) -> Finished:
    *_, end = events
    assert isinstance(end, Finished)
    return end


def source_text(name: str, n_characters: int) -> str:
    return (Path(re.__file__).parent.parent / name).read_text("utf-8")[:n_characters]


PROMPTS = {
    "continue prose": lambda: source_text("this.py", 700),
    "continue code": lambda: source_text("bisect.py", 1800),
    "question about code": lambda: source_text("heapq.py", 2000) + "\n\nWhat is a heap?",
    "question about text": lambda: "The train left Bern at noon. It was late. " * 30 + "\n\nWhen did the train leave?",
    "list": lambda: source_text("keyword.py", 1200) + "\n\nList ten of these words.",
}


@pytest.mark.parametrize("name", PROMPTS)
def test_speculative_greedy_equals_plain_greedy_over_200_tokens(engine: Engine, name: str, cheap_drafts: None) -> None:
    """Token for token; the end of a turn does not count as an end here, so that all 200 are compared."""
    frame = engine.tokenizer.chat_frame(SYSTEM)
    ids = [*frame.opening, *engine.tokenizer.encode(PROMPTS[name]())]
    if not name.startswith("continue"):
        ids += frame.user_to_assistant
    ends = []
    for enabled in (False, True):
        session = engine.new_session(len(ids) + 200)
        session.speculation = Speculation(gamma=6, inner_gamma=2, budget=160, chunk_size=8, enabled=enabled)
        session.eos_ids = frozenset()
        ends.append(finish(session.answer(ids, Request(GREEDY, 200), threading.Event(), 0.0)))
    plain, fast = ends
    assert len(plain.token_ids) == 200
    assert fast.token_ids == plain.token_ids
    assert fast.stats.levels[0].rounds < 200
    assert {level.name for level in fast.stats.levels} == {"full", "retrieval", "lookup"}


FACTS = (
    ("The password of the north gate is Larkspur.", "What is the password of the north gate?"),
    ("Captain Odell was born in the town of Brixley.", "In which town was Captain Odell born?"),
    ("The annual budget of the museum is 412 thousand crowns.", "What is the annual budget of the museum?"),
    ("The red boat belongs to Miriam Castellan.", "Who owns the red boat?"),
    ("Dinner in the tower is served at a quarter past seven.", "When is dinner served in the tower?"),
    ("The old bridge is made of black basalt.", "What is the old bridge made of?"),
    ("The secret recipe needs eleven spoons of honey.", "How many spoons of honey does the secret recipe need?"),
    ("Doctor Venn keeps her telescope in the cellar.", "Where does Doctor Venn keep her telescope?"),
    ("The library closes on Wednesdays.", "On which day does the library close?"),
    ("The winning horse was called Silver Thistle.", "What was the winning horse called?"),
)
FILLER = (
    "The valley lies between two long hills, and a slow river runs through it from east to west. ",
    "In spring the farmers mend their fences and talk about the weather, which changes every hour. ",
    "Visitors come by the morning coach, walk along the water, and go home before it is dark. ",
    "There is a market with bread, cheese and cloth, and a bench where old people like to sit. ",
    "Nobody remembers when the mill was built, but its wheel still turns when the river is high. ",
)


def test_the_planted_page_is_first_or_second_of_all_pages(engine: Engine) -> None:
    """Ten facts on twelve pages of 1.5K tokens: the page that attention used is found in at least 80 %."""
    n_pages = len(FACTS) + 2
    ids = list(engine.tokenizer.chat_frame(SYSTEM).opening)
    spans = []
    for page in range(n_pages):
        filler = [FILLER[(page + i) % len(FILLER)] for i in range(5)]
        if 1 <= page <= len(FACTS):
            filler.insert(2, FACTS[page - 1][0] + " ")
        ids += engine.tokenizer.encode(f"\n[p. {page + 1}]\n")
        text = engine.tokenizer.encode("".join(filler))
        spans.append((len(ids), len(ids) + len(text)))
        ids += text
    assert 1300 <= len(ids) <= 1700
    ranks = []
    for number, (_, question) in enumerate(FACTS):
        prompt = [*ids, *engine.tokenizer.encode(f"\n\nQuestion: {question}")]
        prompt += engine.tokenizer.chat_frame(SYSTEM).user_to_assistant
        end = finish(engine.answer(prompt, Request(GREEDY, 16, evidence_spans=tuple(spans)), threading.Event()))
        if number:
            assert end.stats.new_tokens < 60, "only the question is prefilled"
        weights = [sum(e.weight for e in end.evidence if first <= e.start < last) for first, last in spans]
        ranks.append(sorted(weights, reverse=True).index(weights[number + 1]) + 1 if weights[number + 1] else n_pages)
    assert sum(rank <= 2 for rank in ranks) >= 0.8 * len(FACTS), ranks
