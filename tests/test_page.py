"""The page in a real browser, where there is one: by keyboard, with nothing from outside."""

import re
import shutil
import time

import pytest
from helpers.programs import ROOT
from helpers.serving import Server
from playwright.sync_api import Error, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")  # else Playwright's own
REPAIR = "repair: Seven old queens sell three small keys behind the chuurch."
REPAIRED = "Seven old queens sell three small keys behind the church."
DONE = """document.getElementById('stop').disabled && document.querySelector('.state')
    && [...document.querySelectorAll('.state')].every(state => state.textContent == 'done')"""
PAGE = (ROOT / "serving" / "page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def server(demo_folders):
    with Server(demo_folders, "--lookup") as server:
        yield server


@pytest.fixture
def page(server):
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except Error:
            pytest.skip("there is no Chromium here: playwright install chromium")
        page, errors = browser.new_page(), []
        page.on("pageerror", lambda error: errors.append(error))
        page.goto(f"{server.url}/")
        wait(page, "!document.getElementById('examples').hidden")
        yield page
        browser.close()
    assert errors == []


def wait(page, expression: str) -> None:
    """Until it is true. Playwright's own way needs an eval within the page, which its policy forbids."""
    end = time.monotonic() + 60
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def write(page, text: str, keys: str = "Control+Enter", until: str = DONE) -> None:
    """By keyboard alone, in the field that has the focus at the start."""
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(text)
    page.keyboard.press(keys)
    wait(page, until)


def panes(page) -> list[dict]:
    return page.evaluate("""[...document.querySelectorAll('.pane')].map(pane => ({
        title: pane.querySelector('h2').textContent,
        text: pane.querySelector('.text').textContent,
        origins: [...pane.querySelectorAll('.text i')].map(token => [token.textContent, token.className]),
        calls: [...pane.querySelectorAll('.call')].map(call => [...call.children].map(b => b.className)),
        figures: Object.fromEntries([...pane.querySelectorAll('dd')].map(dd => [dd.dataset.of, dd.textContent])),
    }))""")


@pytest.mark.slow
def test_a_text_is_written_by_keyboard_and_coloured_and_mistakes_are_said(page):
    assert (
        page.input_value("#draft") == "auto"
    )  # as on the command line, but hanging on the machine
    page.select_option("#draft", "4")
    page.focus("#prompt")
    write(page, REPAIR)
    (pane,) = panes(page)
    assert pane["text"] == REPAIRED and pane["title"] == "Speculative"
    kinds = {origin for _, origin in pane["origins"]}
    assert "lookup" in kinds and kinds <= {"lookup", "draft_model", "corrected", "target"}
    tokens, calls = (int(pane["figures"][name]) for name in ("tokens", "calls"))
    assert calls == len(pane["calls"]) < tokens
    squares = [kind for call in pane["calls"] for kind in call]
    assert len(squares) - squares.count("rejected") == tokens
    assert float(pane["figures"]["rate"]) == pytest.approx(tokens / calls, abs=0.01)

    write(page, REPAIR, "Control+Shift+Enter")
    plain, speculative = panes(page)
    assert plain["text"] == speculative["text"] == REPAIRED
    assert {origin for _, origin in plain["origins"]} == {"target"}
    assert len(speculative["calls"]) < len(plain["calls"])

    page.evaluate("document.getElementById('most').value = 99999")
    write(page, "x", until="!document.getElementById('error').hidden")
    assert "4096 at most" in page.text_content("#error")


@pytest.mark.slow
def test_escape_stops(page, server):
    cancelled = 'texts_total{finish_reason="cancelled"}'
    before = server.metric(cancelled)

    def long(route) -> None:
        """A text that does not end by itself before the key is pressed."""
        asked = route.request.post_data_json
        route.continue_(post_data={**asked, "min_tokens": 3000, "max_tokens": 3000})

    page.route("**/v1/completions", long)
    write(page, REPAIR, until="document.querySelectorAll('.text i').length > 3")
    page.keyboard.press("Escape")
    wait(page, "document.querySelector('.state').textContent == 'stopped'")
    server.until(cancelled, before + 1)


def test_the_page_asks_nobody_else():
    assert not re.search(r"https?://|@import|src=|<link (?!rel=\"icon\" href=\"data:)", PAGE)
