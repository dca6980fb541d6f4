"""What outlives an open page: the chats, the running answer, the files on their way in."""

import threading
from pathlib import Path

import pytest
from pypdf import PdfWriter

from app.problems import explain
from app.ui.desk import Desk
from app.ui.intake import Intake
from runtime.errors import OutOfMemory
from tests.app.scripted import ScriptedAssistant
from tests.app.serving import wait_for


def idle(desk: Desk) -> bool:
    return not desk.view().is_answering


def test_an_answer_is_written_without_a_page() -> None:
    """The question returns at once; the answer comes by itself."""
    desk = Desk(ScriptedAssistant("It stops at 40 bar."))
    assert desk.ask("When?")
    wait_for(lambda: idle(desk))
    (exchange,) = desk.view().chat.exchanges
    assert (exchange.question, exchange.text, exchange.phase) == ("When?", "It stops at 40 bar.", "done")


def test_stop_reaches_the_assistant_and_keeps_what_was_written() -> None:
    assistant = ScriptedAssistant("one two three four")
    assistant.gate.clear()
    desk = Desk(assistant)
    desk.ask("Count")
    wait_for(lambda: desk.view().chat.exchanges[0].text == "one two ")
    desk.stop()
    wait_for(lambda: idle(desk))
    assert assistant.was_cancelled
    assert (desk.view().chat.exchanges[0].phase, desk.view().chat.exchanges[0].text) == ("stopped", "one two ")


def test_one_answer_at_a_time() -> None:
    """A second question is refused while the first is answered, also from another chat; then it is taken."""
    assistant = ScriptedAssistant("one two")
    assistant.gate.clear()
    desk = Desk(assistant)
    desk.ask("first")
    assert not desk.ask("second")
    desk.new_chat()
    assert not desk.ask("third")
    assistant.gate.set()
    wait_for(lambda: idle(desk))
    assert desk.ask("fourth")
    wait_for(lambda: idle(desk))
    assert assistant.asked == ["first", "fourth"]


def test_a_new_chat_keeps_the_old_one() -> None:
    desk = Desk(ScriptedAssistant())
    desk.ask("first")
    wait_for(lambda: idle(desk))
    first = desk.view().chat.id
    desk.new_chat()
    desk.new_chat()  # an empty chat is not left behind for another empty one
    assert [chat.title for chat in desk.view().chats] == ["first", "New chat"]
    desk.open_chat(first)
    assert [exchange.question for exchange in desk.view().chat.exchanges] == ["first"]
    desk.open_chat("no such chat")
    assert desk.view().chat.id == first


def test_an_error_ends_the_exchange_with_its_words() -> None:
    error = OutOfMemory(10, 5, "the model")
    assistant = ScriptedAssistant()
    assistant.ask = lambda *_: (_ for _ in ()).throw(error)  # type: ignore[assignment, method-assign]
    desk = Desk(assistant)
    desk.ask("Why?")
    wait_for(lambda: idle(desk))
    (exchange,) = desk.view().chat.exchanges
    assert (exchange.phase, exchange.problem) == ("failed", explain(error))
    assert desk.ask("again")


def test_close_ends_a_running_answer() -> None:
    assistant = ScriptedAssistant("one two")
    assistant.gate.clear()
    desk = Desk(assistant)
    desk.ask("Count")
    wait_for(lambda: bool(desk.view().chat.exchanges[0].text))
    desk.close(5)
    assert assistant.was_cancelled


@pytest.fixture
def assistant() -> ScriptedAssistant:
    return ScriptedAssistant()


def received(intake: Intake, name: str, content: bytes) -> Path:
    path = intake.folder() / name
    path.write_bytes(content)
    return path


def settled(assistant: ScriptedAssistant, n_entries: int) -> bool:
    entries = assistant.entries()
    return len(entries) == n_entries and all(entry.status != "reading" for entry in entries)


def test_received_files_are_read_and_deleted(assistant: ScriptedAssistant) -> None:
    intake = Intake(assistant)
    path = received(intake, "notes.txt", b"one two three")
    intake.put([path])
    wait_for(lambda: settled(assistant, 1) and not path.exists())
    assert assistant.entries()[0].n_tokens == 3
    intake.close()


def test_what_waits_is_named(assistant: ScriptedAssistant) -> None:
    """While one file is read, the names of the next stand in line."""
    hold = threading.Event()
    add = assistant.add

    def slowly(path: Path, name: str | None = None, password: str | None = None) -> object:
        hold.wait(10)
        return add(path, name, password)

    assistant.add = slowly  # type: ignore[assignment, method-assign]
    intake = Intake(assistant)
    intake.put([received(intake, name, b"x") for name in ("a.txt", "b.txt", "c.txt")])
    wait_for(lambda: intake.tray().waiting == ("b.txt", "c.txt"))
    hold.set()
    wait_for(lambda: settled(assistant, 3))
    assert intake.tray().waiting == ()
    intake.close()


def test_an_unforeseen_failure_is_told_and_the_next_file_is_read(assistant: ScriptedAssistant) -> None:
    add = assistant.add

    def failing(path: Path, name: str | None = None, password: str | None = None) -> object:
        if path.name == "odd.txt":
            raise OSError(28, "No space left on device")
        return add(path, name, password)

    assistant.add = failing  # type: ignore[assignment, method-assign]
    intake = Intake(assistant)
    intake.put([received(intake, "odd.txt", b"x"), received(intake, "good.txt", b"x")])
    wait_for(lambda: settled(assistant, 1))
    ((name, problem),) = intake.tray().lost
    assert name == "odd.txt"
    assert "No space left on device" in problem.sentence
    intake.put([received(intake, "next.txt", b"x")])
    assert intake.tray().lost == ()
    intake.close()


def test_an_encrypted_file_is_kept_until_its_password_is_given(assistant: ScriptedAssistant) -> None:
    writer = PdfWriter()
    writer.add_blank_page(200, 200)
    writer.encrypt("open sesame")
    intake = Intake(assistant)
    path = intake.folder() / "secret.pdf"
    writer.write(path)
    intake.put([path])
    for password in ("wrong", "open sesame"):
        wait_for(lambda: bool(intake.tray().locked))
        (entry_id,) = intake.tray().locked
        assert assistant.entries()[0].status == "failed"
        intake.unlock(entry_id, password)
        wait_for(lambda before=entry_id: settled(assistant, 1) and assistant.entries()[0].id != before)
    assert assistant.entries()[0].status == "ready"
    wait_for(lambda: not path.exists())
    assert not intake.tray().locked
    intake.close()


def test_removing_a_locked_file_deletes_it(assistant: ScriptedAssistant) -> None:
    writer = PdfWriter()
    writer.add_blank_page(200, 200)
    writer.encrypt("open sesame")
    intake = Intake(assistant)
    path = intake.folder() / "secret.pdf"
    writer.write(path)
    intake.put([path])
    wait_for(lambda: bool(intake.tray().locked))
    entry_id = assistant.entries()[0].id
    intake.remove(entry_id)
    intake.remove(entry_id)  # from a second page, a moment later
    assert assistant.entries() == ()
    assert not path.exists()
    intake.close()


def test_refused_pages_are_told_and_change_nothing(assistant: ScriptedAssistant) -> None:
    intake = Intake(assistant)
    intake.put([received(intake, "notes.txt", b"one two three")])
    wait_for(lambda: settled(assistant, 1))
    entry = assistant.entries()[0]
    intake.select(entry.id, "7-9")
    ((entry_id, problem),) = intake.tray().refusals
    assert entry_id == entry.id
    assert "7-9" in problem.sentence
    assert assistant.entries()[0].selected is None
    intake.select(entry.id, "1")
    assert intake.tray().refusals == ()
    assert assistant.entries()[0].selected == (1,)
    intake.close()
