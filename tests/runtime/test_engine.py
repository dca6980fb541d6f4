"""The engine: one device, one queue, prompts that share their KV, and clear refusals."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType

from runtime.config import EngineConfig, Request, Sampling, Speculation, Wishes
from runtime.engine import Engine, assemble
from runtime.errors import (
    ContextExceeded,
    HardwareRefused,
    InvalidSetting,
    KvDiskFull,
    ModelNotFound,
    NoSuchDevice,
    OutOfMemory,
    VocabularyMismatch,
)
from runtime.events import Emission, Finished, Progress
from runtime.footprint import Pair
from runtime.hardware_file import written
from runtime.kv.mapped import MappedStore
from runtime.memory import plan
from runtime.models.load import read_facts
from runtime.models.packed import PackedLinear, can_pack
from runtime.models.sources import locate
from runtime.ways import ways
from tests.runtime.machines import machine
from tests.runtime.tiny import N_TOKENS, change_config, random_ids, save_tiny, tiny_model
from tests.runtime.tiny_gguf import write_gguf

GREEDY = Sampling(temperature=0)
SMALL = Speculation(gamma=4, inner_gamma=2, budget=64, chunk_size=4, sinks=4, window=28)


def config(folder: Path, **options: object) -> EngineConfig:
    values: dict[str, object] = {
        "threads": 1,
        "dtype": "float32",
        "device": "cpu",
        "context": 2048,
        "speculation": SMALL,
    }
    return EngineConfig(folder / "cache", str(folder / "model"), **(values | options))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_tiny(folder / "model", "llama")
    save_tiny(folder / "draft", "llama", seed=1, num_hidden_layers=1)
    return folder


@pytest.fixture
def engine(models: Path) -> Iterator[Engine]:
    threads = torch.get_num_threads()
    built = assemble(config(models), lambda _: None)
    yield built
    built.close()
    torch.set_num_threads(threads)


def prompt(n_tokens: int, seed: int = 0) -> list[int]:
    return [i + 3 for i in (random_ids(n_tokens, seed) % (N_TOKENS - 3)).tolist()]


def ask(engine: Engine, ids: list[int], max_tokens: int = 8, cancel: threading.Event | None = None) -> Finished:
    *_, end = engine.answer(ids, Request(GREEDY, max_tokens), cancel or threading.Event())
    assert isinstance(end, Finished)
    return end


def test_loading_reports_progress(models: Path) -> None:
    seen: list[Progress] = []
    assemble(config(models), seen.append).close()
    assert [(event.stage, event.done) for event in seen] == [("load", done) for done in range(4)]


def test_facts_say_what_runs_where_and_why(engine: Engine, models: Path) -> None:
    facts = engine.facts
    assert (facts.mode, facts.device, facts.dtype, facts.threads) == ("cpu", "cpu", "float32", 1)
    assert facts.architecture == "llama"
    assert (facts.trained_context, facts.context) == (512, 2048)
    assert "The CPU was asked for" in facts.mode_reason


def test_a_too_long_prompt_is_refused_at_the_call_with_both_numbers(engine: Engine) -> None:
    with pytest.raises(ContextExceeded) as refused:
        engine.answer(prompt(2045), Request(GREEDY, 4), threading.Event())
    assert (refused.value.prompt_tokens, refused.value.max_tokens, refused.value.context) == (2045, 4, 2048)
    assert ask(engine, prompt(2044), 4).stats.prompt_tokens == 2044


def test_an_empty_prompt_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidSetting):
        engine.answer([], Request(GREEDY, 4), threading.Event())


def test_two_documents_in_turn_are_prefilled_once_each(engine: Engine) -> None:
    first, second = prompt(300, 1), prompt(300, 2)
    assert [ask(engine, ids).stats.cached_tokens for ids in (first, second)] == [0, 0]
    again = [ask(engine, [*ids, 7, 8, 9]).stats.cached_tokens for ids in (first, second)]
    assert again == [300, 300]


def test_a_longer_prompt_than_its_rope_was_made_for_is_prefilled_anew_and_right(engine: Engine) -> None:
    """Rotated keys of another YaRN factor cannot be reused."""
    short, long = prompt(500, 1), [*prompt(500, 1), *prompt(400, 2)]
    ask(engine, short, 4)
    stretched = ask(engine, long, 8)
    assert stretched.stats.cached_tokens == 0
    assert engine.rope_note(908) == "YaRN x2 is on: 908 tokens are more than the 512 the model was trained on."
    assert engine.rope_note(512) is None
    engine._sessions.clear()
    assert ask(engine, long, 8).token_ids == stretched.token_ids


def test_longrope_s_switch_begins_a_new_session(tmp_path: Path) -> None:
    """Phi-3's keys are rotated otherwise for texts beyond its original length; a note tells nothing of it."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]}
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, **factors}
    save_tiny(tmp_path / "model", "phi3", original_max_position_embeddings=64, rope_parameters=rope)
    built = assemble(config(tmp_path, context=512), lambda _: None)
    try:
        ids = prompt(100)
        short = ask(built, ids[:50])
        again = ask(built, ids[:55])
        long = ask(built, ids)
        longer = ask(built, [*ids, *prompt(9, 1)])
        assert [end.stats.cached_tokens for end in (short, again, long, longer)] == [0, 50, 0, 100]
        assert built.rope_note(100) is None
        built._sessions.clear()
        assert ask(built, ids).token_ids == long.token_ids
    finally:
        built.close()


def test_questions_from_many_threads_are_answered_one_by_one_and_right(engine: Engine) -> None:
    prompts = [prompt(80 + 10 * i, i) for i in range(6)]
    alone = [ask(engine, ids).token_ids for ids in prompts]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda ids: ask(engine, ids).token_ids, prompts))
    assert together == alone


def test_a_cancelled_question_in_the_queue_never_reaches_the_device(engine: Engine) -> None:
    cancel = threading.Event()
    cancel.set()
    running = engine.answer(prompt(1500), Request(GREEDY, 16), threading.Event())
    waiting = ask(engine, prompt(1500, 3), cancel=cancel)
    assert (waiting.reason, waiting.stats.decode_tokens) == ("cancelled", 0)
    assert isinstance(list(running)[-1], Finished)


def test_closing_the_iterator_stops_the_work(engine: Engine) -> None:
    cancel = threading.Event()
    events = engine.answer(prompt(200), Request(GREEDY, 400), cancel)
    for event in events:
        if isinstance(event, Emission):
            break
    events.close()
    assert cancel.is_set()
    assert ask(engine, prompt(50, 9)).reason == "length"


def test_an_error_while_answering_reaches_the_asker_and_the_next_question_works(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("runtime.session.prefill", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ask(engine, prompt(50))
    assert ask(engine, prompt(50)).reason == "length"


def test_a_draft_model_is_used_at_the_bottom(models: Path) -> None:
    built = assemble(config(models, draft_model=str(models / "draft")), lambda _: None)
    assert built.facts.draft_model is not None
    plain = assemble(config(models, speculation=Speculation(enabled=False)), lambda _: None)
    try:
        ids = prompt(300)
        assert ask(built, ids, 40).token_ids == ask(plain, ids, 40).token_ids
    finally:
        built.close()
        plain.close()


@pytest.mark.parametrize("n_rows", [N_TOKENS + 40, N_TOKENS, N_TOKENS - 2])
def test_vocabularies_padded_otherwise_are_one_vocabulary(models: Path, tmp_path: Path, n_rows: int) -> None:
    """As in Qwen2.5, whose small models have 151,936 rows and whose large ones 152,064, for one tokenizer of fewer
    tokens; in Gemma 3 the smallest has fewer rows than tokens. The chat template is the target's, whatever the
    draft's."""
    draft = tmp_path / "draft"
    model = save_tiny(draft, "llama")
    model.resize_token_embeddings(n_rows, mean_resizing=False)
    model.save_pretrained(draft)
    (draft / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}")
    sees_all = replace(SMALL, window=400)
    built = assemble(config(models, draft_model=str(draft), speculation=sees_all), lambda _: None)
    plain = assemble(config(models, speculation=Speculation(enabled=False)), lambda _: None)
    try:
        ids = prompt(300)
        answer = ask(built, ids, 60)
        assert answer.token_ids == ask(plain, ids, 60).token_ids
        assert answer.stats.levels[0].accepted > 0
        assert built.tokenizer.chat_frame("") == plain.tokenizer.chat_frame("")
    finally:
        built.close()
        plain.close()


def test_another_vocabulary_is_refused_as_a_draft(models: Path, tmp_path: Path) -> None:
    save_tiny(tmp_path / "other", "llama")
    path = tmp_path / "other" / "tokenizer.json"
    tokenizer = json.loads(path.read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["x"], vocabulary["y"] = vocabulary["y"], vocabulary["x"]
    path.write_text(json.dumps(tokenizer), "utf-8")
    with pytest.raises(VocabularyMismatch, match="2 differ"):
        assemble(config(models, draft_model=str(tmp_path / "other")), lambda _: None)


def test_what_cannot_be_had_is_refused_by_name(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        assemble(EngineConfig(tmp_path, str(tmp_path / "nothing")), lambda _: None)
    with pytest.raises(InvalidSetting, match="at most 8,192"):
        assemble(config(models, context=9000), lambda _: None)
    if not torch.cuda.is_available():
        with pytest.raises(NoSuchDevice):
            assemble(config(models, device="cuda"), lambda _: None)


def test_a_card_that_is_in_a_file_alone_is_not_run_on(models: Path, tmp_path: Path) -> None:
    """Whatever the plan says of it; and the processor that is asked for is there."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a card")
    with pytest.raises(HardwareRefused, match="a GPU that this machine does not have"):
        assemble(config(models, device="auto", hardware=written_to(tmp_path)), lambda _: None)
    with pytest.raises(HardwareRefused):
        assemble(config(models, device="auto", mode="offload", hardware=written_to(tmp_path)), lambda _: None)
    built = assemble(config(models, hardware=written_to(tmp_path)), lambda _: None)
    assert built.facts.mode == "cpu"
    built.close()


def offloading(engine: Engine, layers_on_gpu: int) -> Engine:
    """The twin on a processor of what a plan for a card asks for: the same models, the KV cache passing a bus."""
    found = plan(machine(64, 24), Pair(engine._loaded.target.spec), 2048, Wishes(mode="offload"))
    loaded = replace(engine._loaded, plan=replace(found, layers_on_gpu=layers_on_gpu))
    return Engine(engine.facts, loaded, SMALL, lambda *_: None)


@pytest.mark.parametrize("layers_on_gpu", [0, 1, 2])
def test_the_plan_decides_where_the_kv_cache_lies(engine: Engine, layers_on_gpu: int) -> None:
    """Offloaded, all layers but those on the card cross the bus, and the answer stays what it was."""
    built = offloading(engine, layers_on_gpu)
    store, plain = built.new_session(512)._full, engine.new_session(512)._full
    per_layer = 100 * 2 * 2 * 16 * 4
    assert (store.carried_bytes(100), plain.carried_bytes(100)) == ((3 - layers_on_gpu) * per_layer, 0)
    assert ask(built, prompt(200), 40).token_ids == ask(engine, prompt(200), 40).token_ids
    built.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_card_offload_answers_as_the_card_alone(models: Path) -> None:
    """One layer's KV cache of the three is streamed; plain and drafted."""
    answers = []
    for mode in ("gpu", "offload"):
        for speculation in (SMALL, Speculation(enabled=False)):
            built = assemble(config(models, device="cuda", mode=mode, speculation=speculation), lambda _: None)
            assert built.facts.mode == mode
            answers.append(ask(built, prompt(300), 40))
            built.close()
    assert len({answer.token_ids for answer in answers}) == 1
    assert [answer.stats.to_device_bytes > 0 for answer in answers] == [False, False, True, True]


def written_to(folder: Path) -> Path:
    """A file that describes a machine with a card."""
    path = folder / "machine.toml"
    path.write_text(written(machine(64, 24)), "utf-8")
    return path


def test_a_model_with_its_own_scaling_is_not_stretched_further(tmp_path: Path) -> None:
    save_tiny(tmp_path / "model", "llama")
    scaling = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}
    change_config(tmp_path / "model", rope_parameters=scaling)
    built = assemble(config(tmp_path), lambda _: None)
    assert built.facts.context == built.facts.trained_context == 2048
    assert built.rope_note(2048) is None
    built.close()


def on_disk(engine: Engine, folder: Path) -> Engine:
    """The same models, by the plan for a machine that has memory for weights, not for the KV cache."""
    *_, found = ways(machine(), Pair(engine._loaded.target.spec), 2048, Wishes(dtype="float32"))
    return Engine(engine.facts, replace(engine._loaded, plan=found), SMALL, lambda *_: None, folder)


def test_a_kv_cache_on_the_disk_answers_as_one_in_memory(engine: Engine, tmp_path: Path) -> None:
    built = on_disk(engine, tmp_path)
    store = built.new_session(512)._full
    assert isinstance(store, MappedStore)
    assert store.carried_bytes(100) == 100 * built._loaded.target.spec.kv_bytes_per_token(4)
    assert ask(built, prompt(300)).token_ids == ask(engine, prompt(300)).token_ids
    assert ask(built, [*prompt(300), 7]).stats.cached_tokens == 300
    built.close()


def test_kept_documents_make_room_on_the_disk(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where it is full all the same, that is said; the next answer finds it as it is then."""
    built = on_disk(engine, tmp_path)
    ask(built, prompt(300, 1))
    ask(built, prompt(300, 2))
    assert len(built._sessions) == 2
    monkeypatch.setattr("runtime.engine.free_disk_bytes", lambda _: 1000)
    ask(built, prompt(300, 3))
    assert len(built._sessions) == 1
    monkeypatch.setattr("runtime.kv.mapped.free_disk_bytes", lambda _: 1000)
    with pytest.raises(KvDiskFull) as refused:
        ask(built, prompt(300, 4))
    assert refused.value.needed_bytes > refused.value.free_bytes == 1000
    monkeypatch.undo()
    assert len(ask(built, prompt(300, 4)).token_ids) > 0
    built.close()


def test_a_kept_document_gives_its_disk_to_the_one_that_grows(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.session.ROOM", 0)
    built = on_disk(engine, tmp_path)
    ask(built, prompt(300, 1))
    ask(built, prompt(300, 2))
    monkeypatch.setattr("runtime.kv.mapped.free_disk_bytes", lambda _: 10**9 if len(built._sessions) == 1 else 1000)
    grown = ask(built, [*prompt(300, 2), *prompt(100, 5)])
    assert (grown.stats.cached_tokens, len(built._sessions)) == (300, 1)
    built.close()


def test_a_default_context_shrinks_to_the_memory_there_is(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a wish of the person's, less context is better than none; a wish is refused with its numbers."""
    spec = read_facts(locate(str(models / "model"), models, False, lambda _: None), models).spec
    wishes = Wishes(dtype="float32", speculation=SMALL)
    plans = [plan(machine(), Pair(spec), context, wishes) for context in (4096, 8192)]
    needed = sum(chosen.bytes.total for chosen in plans) // 2
    monkeypatch.setattr("runtime.loading.known_hardware", lambda *_: replace(machine(), ram_free_bytes=needed))
    built = assemble(config(models, context=None), lambda _: None)
    assert built.facts.context == 4096
    built.close()
    with pytest.raises(OutOfMemory):
        assemble(config(models, context=8192), lambda _: None)


def test_a_kept_document_makes_room_for_one_that_would_not_fit_beside_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(engine, prompt(300, 1))
    monkeypatch.setattr("runtime.engine.free_bytes", lambda _: 1000)
    ask(engine, prompt(300, 2))
    assert ask(engine, [*prompt(300, 2), 7, 8]).stats.cached_tokens == 300
    assert ask(engine, [*prompt(300, 1), 7, 8]).stats.cached_tokens == 0


@pytest.mark.parametrize(
    ("asked", "has_bfloat16", "dtype"),
    [("auto", True, torch.bfloat16), ("auto", False, torch.bfloat16), ("float32", True, torch.float32)],
)
def test_four_bit_weights_are_kept_so_unless_exactness_is_asked_for(
    asked: str, has_bfloat16: bool, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On any processor: what it has no instructions for is widened."""
    for module in ("runtime.hardware", "runtime.models.linear", "runtime.models.attention"):
        monkeypatch.setattr(f"{module}.cpu_multiplies_bfloat16", lambda: has_bfloat16)
    path = tmp_path / "m.gguf"
    write_gguf(path, tiny_model("llama", vocab_size=N_TOKENS), GGMLQuantizationType.Q4_1)
    options = {"cache_dir": tmp_path / "cache", "model": str(path), "device": "cpu", "dtype": asked, "threads": 1}
    built = assemble(EngineConfig(context=512, **options), lambda _: None)
    try:
        decoder = built.new_session(512).decoder
        packs = any(isinstance(part, PackedLinear) for part in decoder._weights.layers[0].linears)
        assert (decoder.dtype, packs) == (dtype, dtype == torch.bfloat16 and can_pack(decoder.device))
        assert built.facts.dtype == str(dtype).removeprefix("torch.")
        assert len(ask(built, prompt(40), 6).token_ids) <= 6
    finally:
        built.close()
