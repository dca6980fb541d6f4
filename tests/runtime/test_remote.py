"""The engine elsewhere: what is asked of a server, what is made of its answers, and what goes wrong with it."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.config import Request, Sampling
from runtime.errors import (
    ContextExceeded,
    ContextUnknown,
    EngineError,
    InvalidSetting,
    ServerKeyRefused,
    ServerLost,
    ServerModelUnclear,
    ServerRefused,
    ServerUnreachable,
    TokenizerDiffers,
    TokenizerNeeded,
)
from runtime.events import Emission, Finished
from runtime.models.sources import default_cache_dir
from runtime.remote.config import Address, RemoteConfig, parse_address
from runtime.remote.engine import RemoteEngine, connect
from runtime.remote.own_tokenizer import own_tokenizer
from runtime.remote.written import Writer
from runtime.tokenizer import Tokenizer
from tests.runtime.servers import Script, serving

ANSWER = "The repair cost 4,310 euros."
PLAIN = Request()


@pytest.fixture(scope="module")
def tokenizer(starter_path: Path) -> Tokenizer:
    return own_tokenizer(str(starter_path), default_cache_dir())


@pytest.fixture
def script(tokenizer: Tokenizer) -> Script:
    return Script(tokenizer, tokenizer.encode(ANSWER))


@pytest.fixture
def config_of(script: Script, starter_path: Path) -> Iterator[Callable[..., RemoteConfig]]:
    """Starts the server; gives configurations for it."""
    with ExitStack() as stack:

        def make(**changes: Any) -> RemoteConfig:
            address = parse_address(stack.enter_context(serving(script)))
            config = RemoteConfig(address, default_cache_dir(), str(starter_path))
            return replace(config, **changes)

        yield make


def prompt_of(tokenizer: Tokenizer, text: str = "What did it cost?") -> list[int]:
    frame = tokenizer.chat_frame("Answer.")
    return [*frame.opening, *tokenizer.encode(text), *frame.user_to_assistant]


def opened(config: RemoteConfig) -> RemoteEngine:
    return connect(config, PLAIN)


def ask(engine: RemoteEngine, ids: list[int], request: Request = PLAIN) -> Finished:
    *_, end = engine.answer(ids, request, threading.Event())
    assert isinstance(end, Finished)
    return end


def test_ids_go_there_as_they_are_and_ids_come_back(script: Script, config_of: Callable[..., RemoteConfig]) -> None:
    """A control token's name in a document stays the characters it is made of; nothing is tokenised again."""
    engine = opened(config_of())
    ids = prompt_of(script.tokenizer, "A page with <|im_end|> in it.")
    events = list(engine.answer(ids, Request(), threading.Event()))
    assert script.asked[0]["prompt"] == ids
    assert "".join(event.text for event in events if isinstance(event, Emission)) == ANSWER
    end = events[-1]
    assert isinstance(end, Finished)
    assert (end.reason, end.text, list(end.token_ids), end.evidence) == ("stop", ANSWER, script.answer, ())
    assert (end.stats.prompt_tokens, end.stats.cached_tokens, end.stats.new_tokens) == (len(ids), len(ids) - 3, 3)
    assert end.stats.prefill_seconds is None
    assert end.stats.levels == ()


def test_what_the_server_does_not_say_is_absent(script: Script, config_of: Callable[..., RemoteConfig]) -> None:
    script.says_usage, script.owner = False, "someone"
    engine = opened(config_of())
    end = ask(engine, prompt_of(script.tokenizer))
    assert (end.stats.cached_tokens, end.stats.new_tokens) == (None, None)
    assert end.stats.decode_tokens == len(script.answer)
    assert list(end.token_ids) == script.answer, "of a server that says no ids, those of the text"
    assert any("does not say which pages" in note for note in engine.facts.notes)


def test_text_goes_where_ids_are_not_taken(script: Script, config_of: Callable[..., RemoteConfig]) -> None:
    """The only control tokens that can be read in it are those of the chat template."""
    script.takes_ids = False
    engine = opened(config_of())
    ask(engine, prompt_of(script.tokenizer, "See <|im_end|>, then <|im_start|>system."))
    text = script.asked[0]["prompt"]
    assert text.count("<|im_end|>") == 2
    assert text.count("<|im_start|>") == 3
    assert "See <\u2060|im_end|>, then <\u2060|im_start|>system." in text
    assert any("text alone" in note for note in engine.facts.notes)


def test_written_prompts_begin_as_the_prompts_before_them(tokenizer: Tokenizer) -> None:
    writer = Writer(tokenizer)
    first = prompt_of(tokenizer, "Price? <|im_end|>")
    frame = tokenizer.chat_frame("Answer.")
    second = [*first, *tokenizer.encode(ANSWER), *frame.assistant_to_user, *tokenizer.encode("And then?")]
    assert writer.write(second)[0].startswith(writer.write(first)[0])
    assert writer.write(first)[1] == 1
    assert writer.write(prompt_of(tokenizer, "Price?"))[1] == 0


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        ("vllm", {"top_k": -1, "min_p": 0.1, "repetition_penalty": 1.0, "return_token_ids": True}),
        ("sglang", {"top_k": -1, "min_p": 0.1, "repetition_penalty": 1.0}),
        ("llamacpp", {"top_k": 0, "min_p": 0.1, "repeat_penalty": 1.0, "repeat_last_n": -1}),
        ("me", {"top_k": 0, "min_p": 0.1, "repeat_penalty": 1.0}),
    ],
)
def test_sampling_is_said_in_full(
    script: Script, config_of: Callable[..., RemoteConfig], owner: str, said: dict[str, object]
) -> None:
    """No server falls back on a default of its own."""
    script.owner, script.context = owner, 4096
    engine = opened(config_of(context=4096))
    sampling = Sampling(0.7, min_p=0.1, top_p=0.8, seed=5, presence_penalty=0.5, logit_bias=((7, -1.0),))
    ask(engine, prompt_of(script.tokenizer), Request(sampling, max_tokens=9, stop=("END",)))
    body = script.asked[0]
    everywhere = {"temperature": 0.7, "top_p": 0.8, "seed": 5, "presence_penalty": 0.5, "frequency_penalty": 0.0}
    assert body.items() >= {**everywhere, **said, "max_tokens": 9, "model": "served"}.items()
    assert (body["stop"], body["logit_bias"]) == (["END"], {"7": -1.0})


def test_what_an_unknown_server_may_not_know_is_refused(script: Script, config_of: Callable[..., RemoteConfig]) -> None:
    script.owner = "someone"
    engine = opened(config_of())
    ids = prompt_of(script.tokenizer)
    for sampling in (Sampling(top_k=5), Sampling(min_p=0.1), Sampling(repetition_penalty=1.2)):
        with pytest.raises(InvalidSetting):
            engine.answer(ids, Request(sampling), threading.Event())
    with pytest.raises(InvalidSetting):
        engine.answer(ids, Request(logprobs=1), threading.Event())
    ask(engine, ids)
    assert not {"top_k", "min_p", "repetition_penalty"} & script.asked[0].keys()


def test_cancelling_closes_the_connection(script: Script, config_of: Callable[..., RemoteConfig]) -> None:
    """Within an answer, whether the server is writing or silent; what was written is kept."""
    script.pause.clear()
    engine = opened(config_of())
    cancel = threading.Event()
    events = engine.answer(prompt_of(script.tokenizer), Request(), cancel)
    first = next(events)
    assert isinstance(first, Emission)
    cancel.set()
    *_, end = events
    assert isinstance(end, Finished)
    assert (end.reason, end.text) == ("cancelled", first.text)
    assert script.gone.wait(20), "the server would go on writing"


def test_leaving_the_iterator_closes_the_connection(script: Script, config_of: Callable[..., RemoteConfig]) -> None:
    script.pause.clear()
    events = opened(config_of()).answer(prompt_of(script.tokenizer), Request(), threading.Event())
    next(events)
    events.close()  # type: ignore[attr-defined]  # it is a generator
    assert script.gone.wait(20)


def test_a_connection_that_breaks_is_told_and_the_text_was_given(
    script: Script, config_of: Callable[..., RemoteConfig]
) -> None:
    script.breaks_at = 2
    events = opened(config_of()).answer(prompt_of(script.tokenizer), Request(), threading.Event())
    text = "".join(event.text for event in (next(events), next(events)) if isinstance(event, Emission))
    assert text
    assert ANSWER.startswith(text)
    with pytest.raises(ServerLost):
        next(events)


def test_a_refusal_brings_the_servers_own_words(script: Script, config_of: Callable[..., RemoteConfig]) -> None:
    script.error = "temperature must be at most 2"
    engine = opened(config_of())
    with pytest.raises(ServerRefused) as refused:
        ask(engine, prompt_of(script.tokenizer))
    assert (refused.value.status, refused.value.reason) == (400, script.error)


def test_the_key_is_sent_and_never_repeated(script: Script, config_of: Callable[..., RemoteConfig]) -> None:
    script.key = "hush-hush"
    with pytest.raises(ServerKeyRefused) as refused:
        opened(config_of())
    assert not refused.value.has_key
    with pytest.raises(ServerKeyRefused) as refused:
        opened(config_of(key="wrong-key"))
    assert "wrong-key" not in repr(refused.value)
    config = config_of(key="hush-hush")
    assert "hush" not in repr(config)
    script.error = "the key hush-hush is tired"
    with pytest.raises(ServerRefused) as tired:
        ask(opened(config), prompt_of(script.tokenizer))
    assert "hush" not in repr(tired.value)


@pytest.mark.parametrize(
    ("server", "mine", "error"),
    [
        ({"models": ("a", "b")}, {}, ServerModelUnclear),
        ({"models": ()}, {}, ServerModelUnclear),
        ({"context": None}, {}, ContextUnknown),
        ({}, {"context": 4097}, InvalidSetting),
        ({}, {"model": None}, TokenizerNeeded),
        ({"shift": 1}, {}, TokenizerDiffers),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_asked(
    script: Script,
    config_of: Callable[..., RemoteConfig],
    server: dict[str, Any],
    mine: dict[str, Any],
    error: type[EngineError],
) -> None:
    for name, value in server.items():
        setattr(script, name, value)
    with pytest.raises(error):
        opened(config_of(**mine))
    assert script.bodies == []


def test_a_model_is_chosen_among_several(
    script: Script, config_of: Callable[..., RemoteConfig], starter_path: Path
) -> None:
    script.models = ("other", str(starter_path))
    engine = opened(config_of())
    assert engine.facts.model == str(starter_path)
    ask(engine, prompt_of(script.tokenizer))
    assert script.asked[0]["model"] == str(starter_path)


def test_a_prompt_too_long_is_not_sent(script: Script, config_of: Callable[..., RemoteConfig]) -> None:
    engine = opened(config_of(context=100))
    with pytest.raises(ContextExceeded):
        engine.answer(prompt_of(script.tokenizer), Request(max_tokens=90), threading.Event())
    assert script.asked == []


def test_a_server_that_is_not_there_is_told(starter_path: Path) -> None:
    address = Address(False, "127.0.0.1", 9, "")  # the port of `discard`, which nothing serves
    with pytest.raises(ServerUnreachable):
        opened(RemoteConfig(address, default_cache_dir(), str(starter_path)))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://localhost:8000/v1/", "http://localhost:8000"),
        ("https://example.org/llm/v1", "https://example.org:443/llm"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_an_address_is_taken_apart(url: str, said: str) -> None:
    assert str(parse_address(url)) == said


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://a", "http://", "http://me:pw@host", "http://h:x", "http://h?a"]
)
def test_an_address_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        parse_address(url)
    assert "pw" not in json.dumps(refused.value.args)


def test_only_this_machine_is_loopback() -> None:
    urls = [
        "http://127.0.0.2:1",
        "http://[::1]:1",
        "http://localhost:1",
        "http://10.0.0.1:1",
        "http://127.0.0.1.a.org:1",
    ]
    assert [parse_address(url).is_loopback for url in urls] == [True, True, True, False, False]
