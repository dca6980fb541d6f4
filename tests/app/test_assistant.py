"""The assistant over a scripted engine: which prompts it sends, which events it gives, what a chat keeps."""

import threading
from dataclasses import replace

import pytest

from app.assistant import Answer, Assistant
from app.errors import NotReady, UnknownChat
from app.library import Library
from ingest.errors import NoSuchPages
from runtime.config import Sampling
from runtime.errors import ContextExceeded
from runtime.events import Emission, Progress


@pytest.fixture
def reply(engine):
    """Sets what the engine answers, in turn."""
    kind = type(engine.replies[0])

    def script(*texts: str, **particulars) -> None:
        engine.replies[:] = [kind(text, **particulars) for text in texts]

    return script


def put(assistant: Assistant, question: str, chat: str | None = None, **particulars) -> Answer:
    *_, answer = assistant.ask(chat or assistant.new_chat(), question, threading.Event(), **particulars)
    assert isinstance(answer, Answer)
    return answer


def test_events_come_in_order(assistant, engine, reply, manual):
    """Progress, then text, then exactly one answer, whose text is the sum of what was streamed."""
    reply("It opens at 7 bar.", used=(("opens at 7 bar", 1.0),))
    assistant.admit(manual)
    events = list(assistant.ask(assistant.new_chat(), "When?", threading.Event()))
    kinds = [type(event) for event in events]
    n_progress = kinds.index(Emission)
    assert kinds == [Progress] * n_progress + [Emission] * (len(kinds) - n_progress - 1) + [Answer]
    assert events[0].done == 0
    answer = events[-1]
    assert "".join(event.text for event in events if isinstance(event, Emission)) == answer.text
    assert (answer.text, answer.finish_reason, answer.mode, answer.model) == (
        "It opens at 7 bar.",
        "stop",
        "cpu",
        "scripted",
    )
    (source,) = answer.sources
    assert (source.document, source.page, source.label, source.weight) == ("manual.pdf", 4, "2", 1.0)
    assert "opens at 7 bar" in source.quote


def test_a_follow_up_computes_only_its_own_tokens(assistant, engine, reply, manual):
    """The second prompt begins with the first and the ids generated for it."""
    reply("First.", "Second.")
    assistant.admit(manual)
    chat = assistant.new_chat()
    first, second = put(assistant, "One?", chat), put(assistant, "Two?", chat)
    assert engine.prompts[1][: len(engine.prompts[0])] == engine.prompts[0]
    assert second.stats.cached_tokens == first.stats.prompt_tokens + len("First.") + 1
    assert second.stats.new_tokens == len("Two?") + 3


def test_a_new_chat_shares_the_documents(assistant, engine, manual):
    """Only the question differs between two chats about the same documents."""
    assistant.admit(manual)
    put(assistant, "One?")
    second = put(assistant, "Two?")
    assert second.stats.cached_tokens >= assistant.meter().used
    assert b"One?" not in bytes(token % 256 for token in engine.prompts[1])


def test_a_cancelled_answer_keeps_what_it_came_to(assistant, engine, reply, manual):
    """Its partial ids stand in the chat, and the next question continues from them."""
    reply("A long answer that is stopped.", "More.")
    assistant.admit(manual)
    chat, cancel = assistant.new_chat(), threading.Event()
    for event in assistant.ask(chat, "One?", cancel):
        if isinstance(event, Emission):
            cancel.set()
    assert (event.finish_reason, event.text) == ("cancelled", "A lo")
    put(assistant, "Two?", chat)
    assert b"One?" + bytes((0, 2)) + b"A lo" in bytes(token % 256 for token in engine.prompts[1])


def test_an_answer_nobody_listens_to_keeps_what_it_came_to(assistant, engine, reply, manual):
    """Closing the generator ends the engine's work and leaves the chat as after a stop."""
    reply("A long answer.", "More.")
    chat = assistant.new_chat()
    events = assistant.ask(chat, "One?", threading.Event())
    while not isinstance(next(events), Emission):
        pass
    events.close()
    put(assistant, "Two?", chat)
    assert b"A lo" in bytes(token % 256 for token in engine.prompts[1])


def test_stopping_before_the_first_token_leaves_no_turn(assistant, engine, manual):
    """A question without any answer is as if it had not been asked."""
    assistant.admit(manual)
    chat, cancel = assistant.new_chat(), threading.Event()
    engine.pause = cancel.set
    *_, answer = assistant.ask(chat, "One?", cancel)
    assert (answer.text, answer.finish_reason) == ("", "cancelled")
    engine.pause = lambda: None
    put(assistant, "Two?", chat)
    assert b"One?" not in bytes(token % 256 for token in engine.prompts[1])


def test_a_turn_is_kept_before_its_answer_is_seen(assistant, engine):
    """Whoever holds the answer may ask on at once, before the generator is done with."""
    chat = assistant.new_chat()
    events = assistant.ask(chat, "One?", threading.Event())
    while not isinstance(next(events), Answer):
        pass
    put(assistant, "Two?", chat)
    assert engine.prompts[1][: len(engine.prompts[0])] == engine.prompts[0]


def test_changed_documents_come_first_and_turns_stay(assistant, engine, manual, tree):
    """Checking another document starts the prompt anew from the documents, with the turns so far."""
    first = assistant.admit(manual)
    chat = assistant.new_chat()
    put(assistant, "One?", chat)
    assistant.check(first.id, False)
    assistant.admit(tree)
    put(assistant, "Two?", chat)
    text = bytes(token % 256 for token in engine.prompts[1])
    assert b"7 bar" not in text
    assert text.index(b"pump.start()") < text.index(b"One?") < text.index(b"An answer.") < text.index(b"Two?")


def test_too_long_is_refused_before_anything_is_sent(assistant, engine, manual):
    """At the call, with the numbers; one token less is taken."""
    assistant.admit(manual)
    chat = assistant.new_chat()
    room = engine.facts.context - 64 - put(assistant, "").stats.prompt_tokens
    with pytest.raises(ContextExceeded) as refused:
        assistant.ask(chat, "x" * (room + 1), threading.Event())
    assert (refused.value.prompt_tokens, refused.value.max_tokens, refused.value.context) == (4033, 64, 4096)
    assert len(engine.prompts) == 1
    assert put(assistant, "x" * room, chat).stats.prompt_tokens == 4032


def test_the_meter_counts_what_the_prompt_will_take(assistant, engine, manual, tree):
    """Documents at the limit still leave room for a question of 256 tokens and the whole answer."""
    assert assistant.meter().used == 0
    assistant.admit(manual)
    entry = assistant.admit(tree)
    meter = assistant.meter()
    room = "x" * 256
    assert put(assistant, room).stats.prompt_tokens + 64 == meter.used + (meter.context - meter.limit)
    assistant.check(entry.id, False)
    assert assistant.meter().used < meter.used
    assert not meter.over
    assert replace(meter, used=meter.limit + 1).over


def test_choosing_pages_changes_prompt_and_meter(assistant, engine, manual):
    """Pages that are not chosen are not in the prompt; those that are keep their numbers."""
    entry = assistant.admit(manual)
    whole = assistant.meter().used
    assert assistant.select(entry.id, "3-4").selected == (3, 4)
    assert assistant.meter().used < whole
    put(assistant, "When?")
    text = bytes(token % 256 for token in engine.prompts[0])
    assert b"Preface" not in text
    assert b"p. 4]\nThe valve" in text
    assert assistant.select(entry.id, " ").selected is None
    with pytest.raises(NoSuchPages):
        assistant.select(entry.id, "5")
    assert assistant.meter().used == whole


def test_sampling_and_length_of_one_question(assistant, engine):
    """What is given with the question wins over the settings."""
    put(assistant, "One?", sampling=Sampling(temperature=0), max_tokens=7)
    put(assistant, "Two?")
    assert (engine.requests[0].sampling.temperature, engine.requests[0].max_tokens) == (0, 7)
    assert (engine.requests[1].sampling.temperature, engine.requests[1].max_tokens) == (0.6, 64)


def test_a_note_of_the_engine_reaches_the_answer(assistant, engine):
    """That YaRN is on, for one."""
    engine.rope = "YaRN ×2 is on."
    assert put(assistant, "One?").notes == ("YaRN ×2 is on.",)


def test_an_unknown_chat_is_named(assistant):
    """An id from before a restart is no chat."""
    with pytest.raises(UnknownChat):
        assistant.ask("gone", "One?", threading.Event())


def test_a_file_is_read_and_counted(assistant, tmp_path):
    """Reading and counting are one call; the name can be another than the path's."""
    path = tmp_path / "upload-1.txt"
    path.write_text("Some words.\n")
    entry = assistant.add(path, name="notes.txt")
    assert (entry.name, entry.status, entry.n_pages, entry.n_tokens) == ("notes.txt", "ready", 1, 12)
    assert assistant.entries() == (entry,)


def test_a_file_that_cannot_be_read_is_a_failed_entry(assistant, tmp_path):
    """No error is raised; the entry says what is wrong, and the rest goes on."""
    (tmp_path / "empty.pdf").write_bytes(b"")
    failed = assistant.add(tmp_path / "empty.pdf")
    assert (failed.status, failed.problem.sentence) == ("failed", "empty.pdf is empty.")
    with pytest.raises(NotReady):
        assistant.select(failed.id, "1")
    assert assistant.meter().used == 0


def test_reading_that_breaks_off_leaves_no_entry(assistant, monkeypatch, tmp_path):
    """An interrupt while a file is read does not leave an entry that is being read for ever."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("app.assistant.read_document", interrupted)
    with pytest.raises(KeyboardInterrupt):
        assistant.add(tmp_path)
    assert assistant.entries() == ()


def test_two_chats_at_once_do_not_mix(engine, settings, manual):
    """Each thread's chat holds its own questions and answers, in order."""
    assistant = Assistant(engine, Library(), settings)
    assistant.admit(manual)

    def talk(name: str) -> None:
        chat = assistant.new_chat()
        for number in range(5):
            put(assistant, f"{name}{number}?", chat)

    threads = [threading.Thread(target=talk, args=(name,)) for name in "AB"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = [bytes(token % 256 for token in prompt) for prompt in engine.prompts]
    assert len(texts) == 10
    assert not any(b"A0?" in text and b"B0?" in text for text in texts)
    last = max((text for text in texts if b"A4?" in text), key=len)
    assert [last.count(f"A{number}?".encode()) for number in range(5)] == [1] * 5
