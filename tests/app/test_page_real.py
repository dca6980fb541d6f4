"""The page over the real engine and the starter model, from a dropped PDF to a marked page."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from app.assistant import Assistant, open_assistant
from app.settings import Settings
from tests.app.browsing import chromium, visiting
from tests.app.papers import write_pdf
from tests.app.serving import serving

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    # Gradio reckons statistics of its queue with pandas, in ways that pandas deprecates.
    pytest.mark.filterwarnings("ignore:::gradio"),
]

PAGES = [
    [
        "Site report, spring 2026",
        "The weather station at Hallin was rebuilt in March. Its mast is now 34 metres high, and the",
        "wind gauge at the top is read every ten seconds.",
    ],
    [
        "Repairs",
        "The diesel generator failed on 12 March after a bearing broke. A spare bearing was flown in",
        "from Oslo two days later. The repair cost 4,310 euros.",
    ],
    ["Visitors", "In all 212 people visited the station. A guided walk starts each Saturday at ten."],
]
LONG = 240_000  # milliseconds: two slow cores may be shared with much else


@pytest.fixture
def assistant(starter_path: Path, tmp_path: Path) -> Iterator[Assistant]:
    settings = Settings(temperature=0.0, max_tokens=200, data_dir=tmp_path / "data")
    opened = open_assistant(settings, lambda _: None)
    yield opened
    opened.close()


def test_a_pdf_is_asked_stopped_and_asked_again(assistant: Assistant, tmp_path: Path) -> None:
    """Drop, ask, open the page it rests on, ask again from the kept cache, Stop."""
    report = write_pdf(tmp_path / "report.pdf", PAGES)
    with chromium(LONG) as browser, serving(assistant, tmp_path) as address, visiting(browser, address) as visit:
        page = visit.page
        page.set_input_files("[data-picker=files]", report)
        expect(page.locator(".meter-numbers")).to_have_text(re.compile(r"^\d+ of [\d,]+ tokens$"))

        page.fill("#question textarea", "What did the repair cost?")
        page.click("button#send")
        expect(page.locator(".exchange .question")).to_have_text("What did the repair cost?")
        expect(page.locator(".exchange[data-phase=done] .stats")).to_contain_text("0 cached + ")
        assert page.locator(".exchange .words").inner_text().strip()
        page.locator(".chip").first.click()
        expect(page.locator(".reader-text mark")).to_be_visible()

        page.fill("#question textarea", "Tell the whole report again in your own words, at length.")
        page.click("button#send")
        expect(page.locator(".exchange[data-phase=answering] .words")).not_to_be_empty()
        page.click("button#stop")
        expect(page.locator(".exchange[data-phase=stopped]")).to_contain_text("You stopped this answer.")
        stats = page.locator(".exchange[data-phase=stopped] .stats").inner_text()
        cached, new = re.search(r"([\d,]+) cached \+ ([\d,]+) new", stats).groups()  # type: ignore[union-attr]
        assert int(cached.replace(",", "")) > int(new.replace(",", ""))
