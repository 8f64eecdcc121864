"""The page in a real browser, where there is one: by keyboard, with nothing from outside."""

import json
import re
import shutil
import time
from functools import partial

import pytest
from helpers.programs import ROOT
from helpers.serving import Server
from playwright.sync_api import Error, Route, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")  # else Playwright's own
REPAIR = "repair: Seven old queens sell three small keys behind the chuurch."
REPAIRED = "Seven old queens sell three small keys behind the church."
DONE = """[...document.forms].every(form => form.elements.stop.disabled) && document.querySelector('.state')
    && [...document.querySelectorAll('.state')].every(state => state.textContent.startsWith('done'))"""
KING = "The old king sees two red doors."
EVIL = "<img src=x onerror=alert(1)>"
PAGE = (ROOT / "apps" / "serving" / "page.html").read_text(encoding="utf-8")


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
        wait(page, "!document.getElementById('translate').hidden")
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

    write(page, "x " * 5000, until="document.forms[0].elements.error.textContent")
    assert "4096 at most" in page.text_content("#form output")


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


@pytest.mark.slow
def test_mistakes_are_underlined_as_one_types_and_corrected_by_a_click(page):
    page.focus("#writing")
    text = REPAIR.removeprefix("repair: ")
    write(page, f"😀 {text}", " ", "document.querySelectorAll('#marked button').length")
    wait(page, "document.getElementById('marked').textContent.endsWith(' ')")
    mark = "[...document.querySelectorAll('#marked button')].find(b => b.textContent == 'chuurch')"
    assert "spelling" in page.evaluate(f"{mark}.title")
    page.evaluate(f"{mark}.click()")
    wait(page, "!document.querySelector('#marked button')")
    assert page.input_value("#writing") == f"😀 {REPAIRED} " == page.text_content("#marked")


@pytest.mark.slow
def test_texts_and_documents_are_translated(page, server):
    source = f"{KING} The king sees the house.\n\n  The old king\nsees two boats.\n{KING} {EVIL}"
    page.focus("#source")
    write(page, source)
    _, answer = server.post({"q": source, "source": "auto", "target": "de"}, "/translate")
    (pane,) = panes(page)
    assert pane["text"] == answer["translatedText"] and not page.query_selector("img")
    words = [word for word, _ in pane["origins"]]
    assert words.count("Türen") == 2 and words.count("Boote") == 1

    file = {"name": "a.txt", "mimeType": "", "buffer": KING.encode()}
    page.set_input_files("#documents", [file, file | {"name": "a.xyz"}])
    page.keyboard.press("Control+Enter")
    wait(page, "document.querySelector('.pane a') && document.forms[1].elements.error.textContent")
    assert "a.xyz: not a document" in page.text_content("#translate output")
    with page.expect_download() as download:
        page.click(".pane a")
    assert download.value.suggested_filename == "a.de.txt"
    assert download.value.path().read_text() == "Der alte König sieht zwei rote Türen."


@pytest.mark.slow
def test_sentences_stand_in_order_and_are_text(page):
    stats = {"tokens": 1, "target_calls": 1, "draft_tokens": 0, "accepted": 0}
    grown = ((1, "שתיים"), (0, "אחת"), (1, f" {EVIL}"))
    events = [{"sentence": i, "origins": [[text, "target"]], "stats": stats} for i, text in grown]
    events.append({"error": "lost"})
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    page.route("**/translate", partial(Route.fulfill, body=body))
    page.focus("#source")
    write(page, KING, until="document.forms[1].elements.error.textContent == 'lost'")
    assert panes(page)[0]["text"] == f"אחתשתיים {EVIL}" and not page.query_selector("img")
    assert page.evaluate("getComputedStyle(document.querySelector('.text')).direction") == "rtl"


@pytest.mark.slow
def test_the_second_box_waits_for_the_key_and_is_not_there_for_speech(page):
    listed = {"data": [{"id": "whisper", "speech": True, "interfaces": ["openai"]}]}
    for answer in ({"json": listed}, {"status": 401}):
        page.route("**/v1/models", partial(Route.fulfill, **answer))
        page.reload(wait_until="networkidle")
        assert page.is_hidden("#translate")
    page.unroute("**/v1/models")
    page.fill("#key", "key")
    page.keyboard.press("Tab")
    wait(page, "!document.getElementById('translate').hidden")


@pytest.mark.slow
def test_the_page_asks_nobody_else():
    assert not re.search(r"https?://|@import|src=|<link (?!rel=\"icon\" href=\"data:)", PAGE)
