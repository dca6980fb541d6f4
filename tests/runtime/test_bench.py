"""The bench: what it asks, in which order, what it counts, and what it says where it cannot measure. No time is
tested."""

import io
import json
import mmap
import pickle
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from runtime.bench import plot
from runtime.bench.measure import measure, run
from runtime.bench.peak import peak_bytes
from runtime.bench.plan import SYSTEMS, Plan, Rival, System
from runtime.bench.rivals import child, process
from runtime.bench.rivals.process import RivalProcess, require
from runtime.bench.rivals.rival import Answer, Done, Failed, Job, Load, Prefill
from runtime.bench.rows import Row, describe, ratio_table, ratios, summed
from runtime.bench.runner import Ours, Runner, Timed
from runtime.bench.systems import speculation_of
from runtime.bench.tasks import LEAD_TOKENS, Copied, copied, looped, prompts, slices
from runtime.bench.text import text_of
from runtime.config import EngineConfig, Sampling, Speculation
from runtime.engine import Engine, assemble
from runtime.errors import ExtraMissing, InvalidSetting, RivalFailed
from runtime.stats import LevelStats
from runtime.tokenizer import Tokenizer
from tests.runtime.tiny import N_TOKENS, save_tiny, tiny_backend, tiny_model
from tests.runtime.tiny_gguf import write_gguf

GREEDY = Sampling(temperature=0)
JOB = Job(Path("model"), 1, "float32", "cpu", 640, 512, 1.0)


def needs(package: str) -> pytest.MarkDecorator:
    """A package of the bench extra, which is not among what tests need; not imported here."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} (extra bench) is not installed")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.bench.measure.SETTLE_SECONDS", 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    save_tiny(folder / "model", "llama", vocab_size=N_TOKENS)
    return folder


@pytest.fixture(scope="module")
def config(folder: Path) -> EngineConfig:
    small = Speculation(gamma=4, inner_gamma=2, budget=64, chunk_size=4, sinks=4, window=28)
    model = str(folder / "model")
    return EngineConfig(
        folder / "cache", model, context=1024, device="cpu", dtype="float32", threads=1, speculation=small
    )


@pytest.fixture(scope="module")
def engine(config: EngineConfig) -> Iterator[Engine]:
    built = assemble(config, lambda _: None)
    yield built
    built.close()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny_backend())


@pytest.fixture(scope="module")
def text(tokenizer: Tokenizer) -> list[int]:
    functions = (
        f"def area_{i}(width_{i * i}, height):\n    return width_{i * i} * height + {i}\n\n" for i in range(99)
    )
    return tokenizer.encode("".join(functions))


def test_copied_counts_long_runs_alone_and_says_how_long_the_longest_is() -> None:
    """The longest run at each place; a run one token short of `LONG_RUN` counts for nothing."""
    source = list(range(100))
    assert copied(source, [*range(20, 50), 500, *range(3, 13), 501]) == Copied(40, 30)
    assert copied(source, list(range(40, 47))) == Copied(0, 0)
    assert copied([*range(8), 900, *range(20)], list(range(20))) == Copied(20, 20)
    assert copied([], [1, 2, 3]) == Copied(0, 0)


def test_looped_counts_what_stands_earlier_in_the_answer() -> None:
    """The first time round is not a repetition, also where rounds overlap."""
    assert looped([*range(30), *range(30)]) == Copied(30, 30)
    assert looped(20 * [7]) == Copied(19, 19)
    assert looped(list(range(40))) == Copied(0, 0)


def test_every_task_asks_about_the_same_document_in_a_prompt_of_the_context_s_length(
    tokenizer: Tokenizer, text: list[int]
) -> None:
    made = prompts(tokenizer, text[:1100], Plan(answer_tokens=60))
    assert {task: len(ids) for task, ids in made.items()} == dict.fromkeys(
        ("continue", "question", "quote", "repeat"), 1100
    )
    opening = len(tokenizer.chat_frame("Answer the question about the text.").opening)
    assert made["continue"][opening:] == text[: 1100 - opening]
    assert all(ids[:400] == made["continue"][:400] for ids in made.values())
    assert tokenizer.decode(made["question"]).endswith("main parts?\nassistant\n")


def test_repeat_ends_with_the_beginning_of_a_passage_that_stands_in_the_document_and_in_copies_of_it(
    tokenizer: Tokenizer, text: list[int]
) -> None:
    """An answer that goes on with the passage is copied as a whole; with little room there are fewer copies."""
    for n_tokens, n_times in ((2400, 4), (650, 3), (400, 1)):
        ids = prompts(tokenizer, text[:n_tokens], Plan(tasks=("repeat",), answer_tokens=60))["repeat"]
        lead = ids[-LEAD_TOKENS:]
        places = [i for i in range(len(ids) - LEAD_TOKENS) if ids[i : i + LEAD_TOKENS] == lead]
        assert len(places) == n_times
        rest = ids[places[0] + LEAD_TOKENS :][:60]
        assert all(ids[i + LEAD_TOKENS :][:60] == rest for i in places)
        assert copied(ids, rest) == Copied(60, 60)
        assert tokenizer.decode(lead).startswith("def area_")


def test_a_text_too_short_for_the_passage_or_for_the_prompts_is_refused(tokenizer: Tokenizer, text: list[int]) -> None:
    with pytest.raises(InvalidSetting, match="at least") as refused:
        prompts(tokenizer, text[:200], Plan(answer_tokens=128))
    least = int(refused.value.allowed.split()[2])
    assert prompts(tokenizer, text[:least], Plan(answer_tokens=128))
    with pytest.raises(InvalidSetting, match="998 tokens"):
        slices(range(1000), 999, 3)


def test_slices_lie_side_by_side_where_there_is_room_and_differ_in_any_case() -> None:
    assert slices(range(100), 30, 3) == [range(30), range(30, 60), range(60, 90)]
    assert slices(range(100), 90, 3) == [range(90), range(5, 95), range(10, 100)]
    assert slices(range(100), 100, 1) == [range(100)]


def test_text_comes_from_the_files_given_each_below_its_name(tmp_path: Path) -> None:
    for name in ("b.txt", "a.py"):
        (tmp_path / name).write_text(f"text of {name}")
    assert text_of([tmp_path / "b.txt", tmp_path / "a.py"], 1000) == "# b.txt\ntext of b.txt\n# a.py\ntext of a.py\n"
    assert text_of([tmp_path / "b.txt", tmp_path / "gone"], 9) == "# b.txt\nt"
    (tmp_path / "c.pdf").write_bytes(b"%PDF\0")
    with pytest.raises(InvalidSetting, match="text and source"):
        text_of([tmp_path / "c.pdf"], 100)


class Scripted:
    """A rival that takes as long as it is told, and writes down in `calls` whose turn it was."""

    systems = ("llama.cpp",)

    def __init__(self, calls: list[str], per_second: float) -> None:
        self.name = "llama.cpp"
        self._calls = calls
        self._per_second = per_second

    def prefill(self, ids: Sequence[int]) -> float:
        self._calls.append("prefill")
        return 10.0

    def answer(self, system: str, ids: Sequence[int], sampling: Sampling, n_tokens: int) -> Timed:
        self._calls.append(f"{system} {len(ids)} {sampling.temperature:g} {sampling.seed}")
        return Timed(tuple(ids[-n_tokens:]), n_tokens / self._per_second)

    def peak_bytes(self) -> int:
        return 5

    def close(self) -> None:
        self._calls.append("close")


def test_everyone_answers_every_prompt_and_each_is_first_in_turn(
    engine: Engine, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two prompts, two temperatures and two seeds: every system draws the same, and no one always goes first."""
    calls: list[str] = []
    plain = Ours.answer

    def noted(self: Ours, system: str, ids: Sequence[int], sampling: Sampling, n_tokens: int) -> Timed:
        calls.append(f"{system} {len(ids)} {sampling.temperature:g} {sampling.seed}")
        return plain(self, system, ids, sampling, n_tokens)

    monkeypatch.setattr(Ours, "answer", noted)
    plan = Plan((400,), ("continue", "question"), against=("llama.cpp",), n_prompts=2, answer_tokens=9)
    chains = [replace(GREEDY, temperature=value) for value in (0.0, 0.6)]
    rows = list(measure(engine, config, plan, chains, engine.new_session, lambda *_: Scripted(calls, 4.0)))
    timed = [call for call in calls if call.endswith((" 1", " 2"))]
    systems = ["plain", "triforce", "llama.cpp"]
    assert all(calls[i - 1] == f"{call[:-1]}0" for i, call in enumerate(calls) if call in timed)  # the untimed token
    assert {call.partition(" ")[2]: 0 for call in timed}.keys() == {
        f"400 {t} {s}" for t in ("0", "0.6") for s in (1, 2)
    }
    rounds = [[call.split()[0] for call in timed[i : i + 3]] for i in range(0, len(timed), 3)]
    assert len(rounds) == 2 * 2 * 2 * 2
    assert all(sorted(each) == sorted(systems) for each in rounds)
    assert {each[0] for each in rounds} == set(systems)
    assert calls[-1] == "close"
    assert [(row.task, row.temperature, row.system) for row in rows] == [
        (task, temperature, system)
        for task in ("continue", "question")
        for temperature in (0.0, 0.6)
        for system in systems
    ]
    rival = rows[2]
    assert (rival.prefills, rival.speeds, rival.peak_rss_bytes) == ((10.0, 10.0), (4.0,) * 4, 5)
    assert (rival.copied_tokens, rival.answer_tokens) == (9, 9)
    assert all(row.peak_rss_bytes > 10_000_000 for row in rows if row.system == "plain")


def test_a_rival_that_cannot_run_the_model_is_named_with_the_reason_and_left_out(
    engine: Engine, config: EngineConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(rival: Rival, n_tokens: int) -> Runner:
        raise RivalFailed(rival, "it is no GGUF file")

    plan = Plan((400,), ("continue",), against=("llama.cpp",), n_prompts=1, n_seeds=1, answer_tokens=4)
    rows = list(measure(engine, config, plan, [GREEDY], engine.new_session, start))
    assert [row.system for row in rows] == ["plain", "triforce"]
    assert "llama.cpp cannot run this model: it is no GGUF file" in capsys.readouterr().out


def test_a_bench_prints_rows_and_ratios_and_writes_json(
    config: EngineConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the real engine and no rival; llama.cpp cannot run a folder, and says so."""
    plan = Plan((600, 800), ("repeat",), n_prompts=1, n_seeds=1, answer_tokens=16, json_path=tmp_path / "rows.json")
    rows = run(config, plan, Sampling(temperature=0.6))
    said = capsys.readouterr().out
    assert all(describe(row) in said for row in rows)
    assert said.splitlines()[-3].split() == ["context", "task", "T", "triforce", "/", "plain"]
    written = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["context"], row["system"]) for row in written] == [
        (c, s) for c in (600, 800) for s in ("plain", "triforce")
    ]
    assert {"task", "prefill_seconds", "tokens_per_second", "levels", "temperature", "copied_tokens"} <= written[
        0
    ].keys()
    assert written[1]["levels"][0]["name"] == "full"


def test_systems_are_what_they_are_called() -> None:
    """ "triforce" is the hierarchy as configured, whatever that is; the others keep its sizes."""
    configured = Speculation(gamma=3, enabled=False, retrieval=False)
    assert speculation_of("triforce", configured) == replace(configured, enabled=True)
    assert speculation_of("plain", Speculation()).enabled is False
    drafters: dict[System, tuple[bool, str]] = {
        "lookup": (False, "lookup"),
        "retrieval": (True, "none"),
        "retrieval-lookup": (True, "lookup"),
        "model": (False, "model"),
        "merged": (False, "merged"),
        "retrieval-model": (True, "model"),
        "retrieval-merged": (True, "merged"),
    }
    for system, (retrieval, drafter) in drafters.items():
        made = speculation_of(system, configured)
        assert (made.enabled, made.gamma, made.retrieval, made.drafter) == (True, 3, retrieval, drafter)
    assert speculation_of("model-chunks", configured).draft_cache == "retrieval"


def test_all_systems_answer_alike_over_one_prefill_and_past_the_end_of_a_turn(
    config: EngineConfig, folder: Path, text: list[int]
) -> None:
    """Greedily, with another model as the draft model; no answer is shorter for an end-of-turn token in it."""
    save_tiny(folder / "draft", "llama", seed=1, num_hidden_layers=1, vocab_size=N_TOKENS)
    engine = assemble(replace(config, draft_model=str(folder / "draft")), lambda _: None)
    try:
        runner = Ours(engine.new_session, SYSTEMS, config.speculation, 500)
        runner.prefill(text[:300])
        expected = runner.answer("plain", text[:300], GREEDY, 200).ids
        assert len(expected) == 200
        for system in SYSTEMS:
            assert runner.answer(system, text[:300], GREEDY, 200).ids == expected
        hot = [Sampling(temperature=5, top_p=1, seed=seed) for seed in range(9)]
        answers = [runner.answer("triforce", text[:300], sampling, 200).ids for sampling in hot]
        assert {len(ids) for ids in answers} == {200}
        assert any(engine.tokenizer.eos_ids & set(ids[:-1]) for ids in answers)
    finally:
        engine.close()


def test_a_system_that_needs_a_draft_model_is_refused_without_one(config: EngineConfig) -> None:
    with pytest.raises(InvalidSetting, match="draft model"):
        run(replace(config, model="nowhere"), Plan(systems=("plain", "merged")), GREEDY)


def test_what_is_not_installed_is_told_before_anything_is_loaded(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    nowhere = replace(config, model="nowhere")
    with pytest.raises(ExtraMissing) as missing:
        run(nowhere, Plan(against=("llama.cpp",)), GREEDY)
    assert missing.value.args == ("llama.cpp", "llama-cpp-python", "bench")
    with pytest.raises(ExtraMissing, match="accelerate"):
        require("transformers")
    with pytest.raises(ExtraMissing, match="matplotlib"):
        run(nowhere, Plan(plot_path=tmp_path / "plot.png"), GREEDY)


@pytest.mark.parametrize(
    "changes",
    [
        {"contexts": ()},
        {"contexts": (64, 64)},
        {"tasks": ("quote", "quote")},
        {"temperatures": (0.6, 0.6)},
        {"n_prompts": 0},
        {"answer_tokens": 1},
    ],
)
def test_a_plan_that_says_nothing_or_one_thing_twice_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting):
        replace(Plan(), **changes)  # type: ignore[arg-type]


def row(system: str, context: int, speeds: tuple[float, ...], prefills: tuple[float, ...] = (2.0,)) -> Row:
    return Row(context, "quote", system, 0.6, prefills[0], speeds[0], (), 64, 1, 2, 3, 4, prefills, speeds)


def test_ratios_are_medians_of_pairs() -> None:
    """A machine that becomes twice as slow in the middle changes the medians, and no ratio."""
    rows = [row("plain", 100, (10, 10, 5)), row("triforce", 100, (20, 20, 10)), row("rival", 100, (5, 4, 2), (6.0,))]
    found = ratios([*rows, row("plain", 200, (3,)), row("triforce", 200, (6,))], ("rival",))
    assert {(ratio.context, ratio.what): ratio.value for ratio in found} == {
        (100, "prefill / rival"): 3.0,
        (100, "plain / rival"): 2.5,
        (100, "triforce / plain"): 2.0,
        (100, "triforce / rival"): 5.0,
        (200, "triforce / plain"): 2.0,
    }
    heading, first, second = ratio_table(found)
    assert [len(line) for line in (first, second)] == [len(heading)] * 2
    assert first.split() == ["100", "quote", "0.6", "3.00", "2.50", "2.00", "5.00"]
    assert second.split() == ["200", "quote", "0.6", "-", "-", "2.00", "-"]


def test_levels_are_summed_by_name() -> None:
    """An answer that never drafted by a level lacks it."""
    full, lookup = LevelStats("full", 4, 3, 2), LevelStats("lookup", 1, 1, 1)
    assert summed([(full,), (full, lookup)]) == (LevelStats("full", 8, 6, 4), lookup)


def test_peak_memory_counts_what_was_given_back() -> None:
    process = psutil.Process()
    with mmap.mmap(-1, 160_000_000) as held:  # a mapping of its own, which no heap keeps
        held.write(b"1" * len(held))
        most = process.memory_info().rss
    assert most < peak_bytes() + 2**20  # Linux counts in steps of some pages a thread
    assert process.memory_info().rss < most - 100_000_000


@needs("matplotlib")
def test_a_plot_is_drawn(tmp_path: Path) -> None:
    rows = [row(system, context, (10.0,)) for system in ("plain", "triforce") for context in (1024, 4096)]
    plot.draw(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


class Parrot:
    """A rival that says its prompt again, and writes down what it was given to read."""

    def __init__(self) -> None:
        self.done: list[object] = []

    def cut(self, length: int) -> None:
        self.done.append(("cut", length))

    def read(self, ids: Sequence[int], n_held: int) -> None:
        self.done.append(list(ids[n_held:]))

    def decode(self, ids: Sequence[int], sampling: Sampling, n_tokens: int) -> list[int]:
        if n_tokens > 100:
            raise MemoryError
        return list(ids[:n_tokens])


def test_a_rival_s_process_reads_only_what_its_cache_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefill starts over; an answer keeps what prompt and cache have in common, at most all but the last token."""
    parrot = Parrot()
    monkeypatch.setattr(child, "load", lambda *_: parrot)
    desk = child.Desk()
    desk.do(Load("parrot", JOB))
    desk.do(Prefill([1, 2, 3, 4]))
    assert desk.do(Answer([1, 2, 3, 4], GREEDY, 2)).ids == (1, 2)
    desk.do(Answer([1, 2, 3, 4, 1, 9, 8], GREEDY, 2))
    desk.do(Answer([1, 2, 7], GREEDY, 1))
    assert parrot.done == [("cut", 0), [1, 2, 3], ("cut", 3), [], ("cut", 5), [9], ("cut", 2), []]


def test_a_rival_s_process_tells_what_stopped_it_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "load", lambda *_: Parrot())
    orders = [Prefill([1]), Load("parrot", JOB), Answer([1, 2], GREEDY, 101), Answer([1, 2], GREEDY, 2)]
    sent, replies = io.BytesIO(b"".join(map(pickle.dumps, orders))), io.BytesIO()
    child.serve(sent, replies)
    replies.seek(0)
    said = [pickle.load(replies) for _ in orders]
    assert said[0] == Failed("RuntimeError: a model is loaded first")
    assert said[2] == Failed("MemoryError")
    assert isinstance(said[3], Done)
    assert said[3].ids == (1, 2)


def test_a_rival_that_cannot_load_or_dies_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's own words where it could still speak, else its last line or its exit status."""
    monkeypatch.setattr(process, "COMMAND", ["-c", "import sys; sys.exit('out of breath')"])
    with pytest.raises(RivalFailed, match="out of breath"):
        RivalProcess("llama.cpp", JOB)
    monkeypatch.setattr(process, "COMMAND", ["-c", "import os; os._exit(7)"])
    with pytest.raises(RivalFailed, match="status 7"):
        RivalProcess("llama.cpp", JOB)
    monkeypatch.setattr(process, "COMMAND", ["-c", "import os; os.abort()"])
    with pytest.raises(RivalFailed, match="was ended by SIGABRT" if sys.platform != "win32" else "status 3"):
        RivalProcess("llama.cpp", JOB)


def test_a_rival_s_threads_wait_as_its_library_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Fullread sets for its own threads is not handed on; the rest of the environment is."""
    for name in process.OURS:
        monkeypatch.setenv(name, "2000")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    handed_on = process.environment()
    assert not set(process.OURS) & handed_on.keys()
    assert handed_on["OMP_NUM_THREADS"] == "3"


def ours(engine: Engine, n_tokens: int) -> Ours:
    return Ours(engine.new_session, ("plain", "triforce"), Speculation(), n_tokens)


def test_transformers_says_what_we_say(engine: Engine, folder: Path, text: list[int]) -> None:
    """Greedy in float32 beyond the trained 512 tokens, as far stretched as ours; the prompt is asked twice."""
    rival = RivalProcess("transformers", replace(JOB, path=folder / "model", yarn_factor=1.5))
    try:
        mine = ours(engine, 584)
        for runner in (mine, rival):
            assert runner.prefill(text[:560]) > 0
        expected = mine.answer("plain", text[:560], GREEDY, 24).ids
        assert len(expected) == 24
        for _ in range(2):
            assert rival.answer("transformers", text[:560], GREEDY, 24).ids == expected
        assert len(rival.answer("transformers", text[:560], Sampling(seed=1), 24).ids) == 24
        assert rival.peak_bytes() > 10_000_000
    finally:
        rival.close()


@needs("llama_cpp")
@pytest.mark.parametrize("name", ["llama.cpp", "llama.cpp-no-fa"])
@pytest.mark.parametrize(("n_prompt", "factor"), [(200, 1.0), (560, 1.5)])
def test_llama_cpp_says_what_we_say(folder: Path, text: list[int], n_prompt: int, factor: float, name: str) -> None:
    """Greedy over the same weights as a GGUF file, within the trained 512 tokens and beyond; its cache is float16, so
    the first tokens alone."""
    path = folder / "model.gguf"
    write_gguf(path, tiny_model("llama", vocab_size=N_TOKENS))
    config = EngineConfig(folder / "cache", str(path), context=1024, device="cpu", dtype="float32", threads=1)
    engine = assemble(config, lambda _: None)
    rival = RivalProcess(name, replace(JOB, path=path, yarn_factor=factor))
    try:
        mine = ours(engine, n_prompt + 24)
        for runner in (mine, rival):
            assert runner.prefill(text[:n_prompt]) > 0
        expected = mine.answer("plain", text[:n_prompt], GREEDY, 8).ids
        for _ in range(2):
            assert rival.answer(name, text[:n_prompt], GREEDY, 8).ids == expected
        assert len(rival.answer(name, text[:n_prompt], Sampling(seed=1), 24).ids) == 24
    finally:
        rival.close()
        engine.close()
