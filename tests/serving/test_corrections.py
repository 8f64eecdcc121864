"""LanguageTool's routes: matches cut the client's text right and make the model's corrections of it; typing decodes little."""

import asyncio
import json
import random
import re
import socket
from urllib.parse import urlencode

import pytest
from helpers.pages import read
from helpers.serving import Server
from test_translation_server import FORM, request

from apps.documents.sentences import UNIT
from apps.serving import correction
from apps.serving.correction import Corrections
from apps.serving.differences import differences
from apps.serving.engine import Engine
from decoder import Options
from speculative.common.errors import InputError
from speculative.text.correction_prompt import PROMPTS, correction_prompt

QUEENS = "Seven old queens sell three small keys behind the chuurch."
BAKERS = "In summer two bakers taek four big doors atthe market."
FOREIGN = {"origin": "http://a.example"}
JSON = {"content-type": "application/json"}  # as LTeX says of its forms
WORDS = [*"king e\u0301clair «a» b, (c) 👍🏽 d. 上 海 , — x's".split(), " ", "b, ", "d. "]


@pytest.fixture(scope="module")
def server(demo_folders):
    with Server(demo_folders, "--lookup") as server:
        yield server


def check(server, text: str = "", path: str = "/v2/check", headers=FORM, **fields) -> dict:
    body = urlencode({"language": "en-US"} | ({"text": text} if text else {}) | fields)
    status, answer = request(server, "POST", path, body, **headers)
    assert status == 200, answer
    return json.loads(answer)


def cut(text: str, match: dict) -> str:
    """What a client marks."""
    units = text.encode("utf-16-le")
    end = match["offset"] + match["length"]
    return units[2 * match["offset"] : 2 * end].decode("utf-16-le")


def applied(text: str, matches: list[dict]) -> str:
    units = text.encode("utf-16-le")
    for match in reversed(matches):
        before = units[: 2 * match["offset"]]
        new = match["replacements"][0]["value"].encode("utf-16-le")
        units = before + new + units[2 * (match["offset"] + match["length"]) :]
    return units.decode("utf-16-le")


def found(text: str, answer: dict) -> list[tuple[str, str, str]]:
    matches = answer["matches"]
    return [(cut(text, m), m["replacements"][0]["value"], m["rule"]["id"]) for m in matches]


@pytest.mark.parametrize(
    "old, new, expected",
    [
        (QUEENS, QUEENS.replace("uu", "u"), "TYPOS: chuurch -> church"),
        ("He sees atthe sea .", "He sees at the sea.", "TYPOS: atthe sea . -> at the sea."),
        ("The the king.", "The king.", "GRAMMAR: The the -> The"),
        ("the king sees", "The king sees it", "CASING: the -> The; GRAMMAR: sees -> sees it"),
        ("king sees", "The king sees", "GRAMMAR: king -> The king"),
        ("Now we know", "Now, we know", "PUNCTUATION: Now -> Now,"),
        ("He go and he go home", "She goes and we went to", "STYLE: all -> all"),
        ("b", "a b c", "GRAMMAR: b -> a b c"),
    ],
)
def test_changes_are_words_with_their_marks(old, new, expected):
    changes = differences(old, new)
    shown = [f"{each.category}: {old[each.start : each.stop]} -> {each.text}" for each in changes]
    assert "; ".join(shown) == expected.replace("all -> all", f"{old} -> {new}")


def test_changes_make_the_correction_and_never_overlap():
    chance = random.Random(0)
    for _ in range(3000):
        old, new = (
            " ".join("".join(chance.choices(WORDS, k=chance.randint(1, 12))).split()) or "a"
            for _ in range(2)
        )
        if chance.random() < 0.5:
            new = " ".join(old.replace(chance.choice(WORDS), "x ").split()) or "a"
        assert "".join(UNIT.findall(old)) == old
        text = old
        last = len(old)
        for each in reversed(differences(old, new, chance.random() < 0.5)):
            assert each.start < each.stop <= last and each.text
            last = each.start
            text = text[: each.start] + each.text + text[each.stop :]
        assert text == new


@pytest.mark.slow
def test_matches_make_the_models_corrections_in_every_form_of_a_request(server, decoder):
    text = f"😀 {QUEENS}\r\n\r\n{QUEENS} {BAKERS}  A NASA 7 a@b.org.\n"
    plain, drafted = (
        [decoder.generate(f"repair: {each}", **options) for each in (QUEENS, BAKERS)]
        for options in ({"num_draft": 0}, {"lookup": True})
    )
    assert plain == drafted
    answer = check(server, text)
    expected = text.replace(QUEENS, plain[0]).replace(BAKERS, plain[1])
    assert applied(text, answer["matches"]) == expected  # the last sentence would lose a name
    assert found(text, answer)[1:] == [
        ("chuurch", "church", "TYPOS"),
        ("taek", "take", "TYPOS"),
        ("atthe", "at the", "TYPOS"),
    ]
    for match in answer["matches"]:
        assert cut(match["context"]["text"], match["context"]) == cut(text, match)
        assert match["sentence"] in (f"😀 {QUEENS}", QUEENS, BAKERS)
    parts = [{"markup": "<p>"}, {"text": "In summer ", "offset": {}}, {"markup": "<b>😀"}]
    parts += [{"text": "two bakers taek four big do"}, {"markup": "</b>"}, {"text": "ors at"}]
    parts += [{"markup": "<i>"}, {"text": "the market."}, {"markup": "<br>", "interpretAs": "\n\n"}]
    given = "".join(part.get("text") or part["markup"] for part in parts)
    data = json.dumps({"annotation": parts})
    expected = [("taek", "take", "TYPOS")]  # "at<i>the" would lose the markup
    assert found(given, check(server, data=data)) == expected
    assert found(given, check(server, data=data, headers=JSON)) == expected
    assert check(server, BAKERS, "/check")["matches"] == check(server, BAKERS)["matches"] != []
    assert check(server, BAKERS, disabledCategories="GRAMMAR,TYPOS")["matches"] == []
    assert check(server, BAKERS, enabledOnly="true", enabledRules="CASING")["matches"] == []
    language = check(server, QUEENS, language="auto", preferredVariants="de-AT,en-GB")["language"]
    assert language["code"] == language["detectedLanguage"]["code"] == "en-GB"
    query = urlencode({"text": BAKERS, "language": "en"})
    assert len(json.loads(request(server, "GET", f"/v2/check?{query}")[1])["matches"]) == 2


@pytest.mark.slow
def test_typing_decodes_the_sentence_that_changes_and_a_client_that_has_gone_leaves_no_rows(server):
    check(server, f"{QUEENS} {BAKERS}")
    before = server.metric('texts_total{finish_reason="stop"}')
    check(server, f"{BAKERS}\n{QUEENS}")
    assert server.metric('texts_total{finish_reason="stop"}') == before
    check(server, f"{QUEENS[:-9]} {BAKERS}")
    assert server.metric('texts_total{finish_reason="stop"}') == before + 1
    text = " ".join(f"{BAKERS[:-1]} {'and a king ' * 12}{i % 7} {i}." for i in range(300))
    body = urlencode({"language": "en", "text": text})
    with socket.create_connection(("127.0.0.1", server.port)) as gone:
        head = f"POST /v2/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        gone.sendall((head + body).encode())
        while not server.metric("texts_running"):
            pass
    server.until("texts_running", 0)
    server.until("texts_waiting", 0)
    assert server.metric('texts_total{finish_reason="cancelled"}')


def test_what_a_sentence_was_is_its_reference_and_old_sentences_are_forgotten(decoder, monkeypatch):
    monkeypatch.setattr(correction, "_REMEMBERED", 2)
    corrections = Corrections(Engine(decoder, Options(), 1, 1), "{text}")
    corrections._texts |= {"The kng": "The king", "The kng se": "The king sees", "x": "y"}
    assert corrections._reference("The kng see") == "The king sees"
    assert corrections._reference("Something else") is None
    asyncio.run(corrections.correct([], "en"))
    assert [*corrections._texts] == ["The kng se", "x"]
    corrections.template = None
    with pytest.raises(InputError, match="--prompt-template"):
        asyncio.run(corrections.correct(["a"], "en"))


@pytest.mark.slow
def test_mistakes_are_answered_with_a_line_of_text_and_keys_and_origins_are_checked(demo_folders):
    with Server(demo_folders, "--api-key", "key", "--allowed-origins", "app://*") as server:

        def ask(path="/v2/check", key="key", headers=FORM, **fields) -> tuple[int, str]:
            body = urlencode({"apiKey": key} | fields)
            status, answer = request(server, "POST", path, body, **headers)
            return status, answer.decode()

        for fields, said in (
            ({"language": "en"}, "either text or data"),
            ({"language": "en", "text": "a", "data": "{}"}, "either text or data"),
            ({"text": "a"}, "language"),
            ({"language": "xx", "text": "a"}, "'xx'"),
            ({"language": "en", "data": "{"}, "JSON"),
            ({"language": "en", "data": '{"annotation": [{"text": 1}]}'}, "annotation.0.text"),
        ):
            status, line = ask(**fields)
            assert status == 400 and line.startswith("Error: ") and said in line, line
        for size in (300_000, 1 << 20):
            status, line = ask(language="en", text="a" * size)
            assert status == 413 and re.fullmatch(r"Error: the .* at most", line)
        for base in ("", "/v2"):
            for name in ("check", "info", "healthcheck"):
                fields = {"language": "en", "text": "1"}
                assert ask(f"{base}/{name}", **fields)[0] == 200
                assert ask(f"{base}/{name}", "wrong", **fields)[0] == 403
                assert ask(f"{base}/{name}", headers=FORM | FOREIGN)[0] == 403
        assert ask("/v2/info", headers=FORM | {"origin": "app://obsidian.md"})[0] == 200


def test_known_models_have_the_prompts_that_the_manual_lists():
    assert correction_prompt(["x", "grammarly/CoEdIT-large"]) == "Fix the grammar: {text}"
    assert correction_prompt(["google/flan-t5-xl", "coedit/other"]) is None
    listed = re.findall(r"\| `(\S+)` \| `(.*\{text\})` \|", read("docs/models.md"))
    assert [correction_prompt([name]) for name, _ in listed] == [prompt for _, prompt in listed]
    assert len(listed) == len(PROMPTS) - 1  # the demo's
