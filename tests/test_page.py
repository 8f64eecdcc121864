"""The page in a real browser: by keyboard, in both themes, with nothing from outside. With Playwright, where that and
a Chromium are installed."""

import re
import shutil
import time

import pytest
from helpers.programs import ANSWER, PROMPT, ROOT
from helpers.serving import Server

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
REPAIR = "repair: Seven old queens sell three small keys behind the chuurch."
REPAIRED = "Seven old queens sell three small keys behind the church."
DONE = """document.getElementById('stop').disabled && document.querySelector('.state')
    && [...document.querySelectorAll('.state')].every(state => state.textContent == 'done')"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(demo_folders):
    with Server(demo_folders, "--lookup") as server:
        yield server


@pytest.fixture(scope="module")
def browser():
    driver = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(server, browser):
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(f"{server.url}/")
    wait(page, "!document.getElementById('examples').hidden")
    yield page
    page.close()
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


def test_a_text_is_written_by_keyboard_and_coloured(page):
    write(page, REPAIR)
    (pane,) = panes(page)
    assert pane["text"] == REPAIRED and pane["title"] == "Speculative"
    kinds = {origin for _, origin in pane["origins"]}
    assert "copied" in kinds and kinds <= {"copied", "drafted", "corrected", "plain"}
    figures = pane["figures"]
    assert int(figures["calls"]) == len(pane["calls"]) < int(figures["tokens"])
    squares = [kind for call in pane["calls"] for kind in call]
    assert len(squares) - squares.count("rejected") == int(figures["tokens"])
    rate = int(figures["tokens"]) / int(figures["calls"])
    assert float(figures["rate"]) == pytest.approx(rate, abs=0.01)
    accepted = squares.count("copied") + squares.count("drafted")
    share = accepted / (accepted + squares.count("rejected"))
    assert int(figures["accepted"].removesuffix(" %")) == pytest.approx(100 * share, abs=1)


def test_plain_and_speculative_are_side_by_side(page):
    write(page, REPAIR, "Control+Shift+Enter")
    plain, speculative = panes(page)
    assert plain["text"] == speculative["text"] == REPAIRED
    assert {origin for _, origin in plain["origins"]} == {"plain"}
    assert {len(call) for call in plain["calls"]} == {1}
    assert len(speculative["calls"]) < len(plain["calls"])


def test_what_is_wrong_is_said(page):
    page.evaluate("document.getElementById('most').value = 99999")
    write(page, "x", until="!document.getElementById('error').hidden")
    assert "4096 at most" in page.text_content("#error")


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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_legible_in_both_themes(page, theme):
    """A contrast of 4.5 at least (WCAG 2, 1.4.3), of each colour of text."""
    page.emulate_media(color_scheme=theme)
    write(page, PROMPT)
    assert panes(page)[0]["text"] == ANSWER
    colours = page.evaluate("""(() => {
        const pane = document.querySelector('.pane'), text = pane.querySelector('.text')
        const seen = (element) => {
            const canvas = document.createElement('canvas').getContext('2d')
            const pixel = (...layers) => { for (const layer of layers) { canvas.fillStyle = layer; canvas.fillRect(0, 0, 1, 1) }
                return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)] }
            const card = getComputedStyle(pane).backgroundColor, style = getComputedStyle(element)
            return [pixel(card, style.backgroundColor), pixel(style.color)]
        }
        return ['drafted', 'copied', 'corrected', 'plain'].map(kind => {
            const token = document.createElement('i')
            token.className = kind
            text.append(token)
            return seen(token)
        }).concat([seen(pane.querySelector('dt'))])
    })()""")
    light = [sum(map(_luminance, ground)) > 1.5 for ground, _ in colours]
    assert all(light) if theme == "light" else not any(light)
    for ground, ink in colours:
        assert _contrast(ground, ink) >= 4.5, (ground, ink)


def _luminance(channel: int) -> float:
    c = channel / 255
    return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4


def _contrast(*colours: list[int]) -> float:
    weights = (0.2126, 0.7152, 0.0722)
    light = sorted(sum(w * _luminance(c) for w, c in zip(weights, x, strict=True)) for x in colours)
    return (light[1] + 0.05) / (light[0] + 0.05)


def test_the_page_asks_nobody_else():
    text = (ROOT / "serving" / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|@import|src=|<link (?!rel=\"icon\" href=\"data:)", text)
