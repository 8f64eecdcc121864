"""LibreTranslate's and DeepL's routes: their texts are translate.py's, whole and in order; documents; errors in their forms."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from threading import Event
from urllib.parse import urlencode

import pytest
from helpers.programs import call
from helpers.serving import Server
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from apps.documents import apart, html, read
from apps.documents.apart import read_apart
from apps.documents.language import LanguageChange
from apps.documents.plain import parse as parse_plain
from apps.documents.translator import Translation
from apps.serving import translation
from apps.serving.engine import Engine, Refused
from apps.serving.gate import Gate, Limits
from apps.serving.translation import Asked, Translations, texts_of, translation_of
from decoder import Options
from speculative.common.errors import InputError
from speculative.text.language_detector import LanguageDetector

KING, HAUS = "The old king sees two red doors.", "The king sees the house."
GERMAN = {KING: "Der alte König sieht zwei rote Türen.", HAUS: "Der König sieht das Haus."}
TEXTS = [f"{KING} {HAUS}\n\n1234, a@b.org\n{KING}\n", "", " \n ", HAUS]
PAGE = f"<p>{KING[:-1]} &amp; more.</p><script>1 < 2</script><p><b>{HAUS}</b></p>"
FILM = f"1\n00:00:01,000 --> 00:00:02,000\n{KING[:17]}\n{KING[18:]}\n"
PAIR = {"source": "en", "target": "de"}
BOUNDARY = "x-boundary-x"
FORM = {"content-type": "application/x-www-form-urlencoded"}
MULTIPART = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def translated(folder, name: str, source: str) -> str:
    """What translate.py writes for a document."""
    (folder / name).write_text(source)
    result = call(name, "--to", "de", "-o", f"new.{name}", cwd=folder, script="translate.py")
    assert result.returncode == 0, result.stderr
    return (folder / f"new.{name}").read_text()


def upload(fields: dict, name: str, data: bytes) -> bytes:
    parts = [f'name="{field}"\r\n\r\n{value}' for field, value in fields.items()]
    head = "".join(f"--{BOUNDARY}\r\ncontent-disposition: form-data; {part}\r\n" for part in parts)
    file = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return f"{head}{file}".encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()


def request(server, method: str, path: str, body=None, **headers) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, data


@pytest.fixture(scope="module")
def server(demo_folders):
    with Server(demo_folders) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(demo_folders):
    """A server with a key, for one row at a time."""
    limits = ("--batch-size", "1", "--queue", "1", "--max-upload", "1")
    with Server(demo_folders, "--api-key", "kéy", *limits) as server:
        yield server


@pytest.mark.slow
def test_texts_are_translate_pys_in_every_form_of_a_request(server, work):
    expected = [translated(work, f"{i}.txt", text) for i, text in enumerate(TEXTS)]
    assert (
        expected[0].startswith(f"{GERMAN[KING]} {GERMAN[HAUS]}\n\n1234") and expected[2] == " \n "
    )
    status, answer = server.post(PAIR | {"q": TEXTS}, "/translate")
    assert (status, answer) == (200, {"translatedText": expected})
    one = PAIR | {"q": TEXTS[0]}
    form = upload(one, "", b"")
    for path, body, headers in (
        ("/translate", urlencode(one), FORM),
        (f"/translate?{urlencode(one)}", b"", {}),
        ("/translate", form, MULTIPART),
    ):
        status, data = request(server, "POST", path, body, **headers)
        assert (status, json.loads(data)) == (200, {"translatedText": expected[0]}), path
    _, answer = server.post({"text": TEXTS, "target_lang": "DE", "context": "x"}, "/v2/translate")
    assert [each["text"] for each in answer["translations"]] == expected
    assert [each["billed_characters"] for each in answer["translations"]] == [*map(len, TEXTS)]
    body = urlencode({"text": TEXTS, "target_lang": "DE", "source_lang": "EN"}, doseq=True)
    _, data = request(server, "POST", "/v2/translate", body, **FORM)
    assert [each["text"] for each in json.loads(data)["translations"]] == expected


@pytest.mark.slow
def test_text_with_tags(server, work):
    expected = translated(work, "page.html", PAGE)
    fields = PAIR | {"q": [PAGE, f"<i>{HAUS}</i>"], "format": "html"}
    new = [expected, f"<i>{GERMAN[HAUS]}</i>"]
    assert server.post(fields, "/translate") == (200, {"translatedText": new})
    fields = {"text": PAGE, "target_lang": "DE", "tag_handling": "html"}
    assert server.post(fields, "/v2/translate")[1]["translations"][0]["text"] == expected
    xml = f'<s><x id="1">{KING}</x><br>{HAUS}</br></s><n>{KING}</n><c/>'
    tags = {"tag_handling": "xml", "ignore_tags": ["N"], "splitting_tags": "s,br"}
    _, answer = server.post({"text": [xml], "target_lang": "DE", **tags}, "/v2/translate")
    new = f'<s><x id="1">{GERMAN[KING]}</x><br>{GERMAN[HAUS]}</br></s><n>{KING}</n><c/>'
    assert answer["translations"][0]["text"] == new


def test_a_tag_of_xml_ends_no_sentence_unless_that_is_said():
    data = b"<br>The <k1>old</k1> king</br> <c++>1 < 2</c++> <p/>goes."
    (passage,) = html.parse_xml(data, stays=["C++"]).passages
    assert passage.text == "The old king {1} goes."
    assert len(html.parse_xml(data, splits=["BR"]).passages) == 2
    listed = b'<!DOCTYPE a [<!ENTITY x "<b>">]><d><t>A king.</t><t>A <b>red</b> dog.</t></d>'
    texts = ["A king.", "A red dog."]
    assert [passage.text for passage in html.parse_xml(listed).passages] == texts
    for told in (dict(inline=None), dict(inline=["T", "d"])):
        assert len(html.parse_xml(listed, **told).passages) == 1


@pytest.mark.slow
def test_a_stream_adds_up_to_the_texts(server):
    fields = PAIR | {"source": "auto", "q": f"{KING} {HAUS}", "stream": True, "num_draft": 0}
    _, stream = server.post(fields, "/translate")
    *events, last = [json.loads(line[6:]) for line in stream.split("\n\n")[:-1]]
    texts = {KING: "", HAUS: ""}
    for event in events:
        assert event["sentence"] == [*texts].index(event["source"])
        assert "".join(text for text, _ in event["origins"]) == event["text"]
        texts[event["source"]] += event["text"]
    assert texts == GERMAN and {event["finish_reason"] for event in events} == {None, "stop"}
    assert last["translatedText"] == f"{GERMAN[KING]} {GERMAN[HAUS]}"
    assert last["detectedLanguage"] == {"confidence": 100.0, "language": "en"}


@pytest.mark.slow
def test_documents(server, work):
    expected = translated(work, "film.srt", FILM).encode()
    body = upload(PAIR, "Film.SRT", FILM.encode())
    status, data = request(server, "POST", "/translate_file", body, **MULTIPART)
    path = json.loads(data)["translatedFileUrl"].removeprefix(server.url)
    assert (
        status == 200 and [request(server, "GET", path) for _ in range(2)] == [(200, expected)] * 2
    )
    body = upload(PAIR, "a.html", f'<html lang="en"><p>{KING}'.encode())
    _, data = request(server, "POST", "/translate_file", body, **MULTIPART)
    page = json.loads(data)["translatedFileUrl"].removeprefix(server.url)
    new = f'<html lang="de"><p>{GERMAN[KING]}'.encode()
    assert request(server, "GET", page) == (200, new)
    body = upload({"target_lang": "DE"}, "film.srt", FILM.encode())
    document = json.loads(request(server, "POST", "/v2/document", body, **MULTIPART)[1])
    key, path = (
        {"document_key": document["document_key"]},
        f"/v2/document/{document['document_id']}",
    )
    _, status = server.post(key, path)
    assert (status["status"], status["billed_characters"]) == ("done", len(KING))
    assert server.post(key, f"{path}/result")[1].encode() == expected
    for name, data in (("a.xyz", b"x"), ("a.docx", b"x"), ("a.docx", b"PK\3\4"), ("a.txt", b"\0")):
        body = upload(PAIR, name, data)
        status, error = request(server, "POST", "/translate_file", body, **MULTIPART)
        assert status == 400 and json.loads(error)["error"], name
    assert request(server, "GET", "/download_file/x")[0] == 404


PLURALS = b"""msgid ""
msgstr ""
"Content-Type: text/plain; charset=utf-8\\n"
"Plural-Forms: nplurals=%d; plural=0;\\n"

msgid "The king."
msgid_plural "The kings."
msgstr[0] ""
"""


@pytest.mark.parametrize(
    "name, data",
    [
        ("a.po", PLURALS % 2),
        ("a.html", PAGE.encode()),
        ("a.txt", b"a king. " * 50_000),  # more than a pipe holds
    ],
)
def test_a_document_read_apart_is_the_same(name, data):
    there, here = read_apart(Path(name), data, lambda: None), read(Path(name), data)
    change = LanguageChange("en", "pl")
    assert there.passages == here.passages
    targets = [[((0, 1), True)] * len(passage.formatting) for passage in here.passages]
    texts = [f"{i} new" for i in range(len(here.passages))]
    written = here.write(texts, targets, change)
    assert there.write(texts, targets, change) == written
    assert written.data != data


@pytest.mark.slow
def test_what_hangs_or_breaks_its_parser_is_given_up(monkeypatch):
    def closed() -> None:
        raise Refused("shutting down")

    with pytest.raises(Refused):
        read_apart(Path("a.po"), PLURALS % 2, closed)
    monkeypatch.setattr(apart, "SECONDS", 0.01)
    monkeypatch.setattr(apart, "_POLL", 0.01)
    with pytest.raises(InputError, match="takes too long to read"):
        read_apart(Path("a.po"), PLURALS % 2, lambda: None)


@pytest.mark.slow
def test_a_signal_ends_a_server_that_reads(demo_folders):
    with Server(demo_folders) as server, ThreadPoolExecutor(1) as clients:
        body = upload(PAIR, "a.po", PLURALS % 2)
        reading = clients.submit(request, server, "POST", "/translate_file", body, **MULTIPART)
        for _ in range(3):
            assert server.post(PAIR | {"q": HAUS}, "/translate")[0] == 200
        server.process.terminate()
        assert server.process.wait(20) == 0 and reading.result()[0] in (200, 503)


def asker(host: str) -> Request:
    return Request({"type": "http", "client": (host, 1)})


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["_STORED", "_STORED_SIZE"])
def test_no_translation_is_dropped_before_it_was_fetched_or_is_old(decoder, monkeypatch, limit):
    """By number and by size; the first one that was fetched goes first."""
    monkeypatch.setattr(translation, "read_apart", lambda path, data, _: read(path, data))
    monkeypatch.setattr(translation, limit, 3)
    engine = Engine(decoder, Options(), 1, 1)
    translations = Translations(engine, Gate("m"), Limits(99, 99, 9, len(KING), 9))

    async def store() -> str:
        file = UploadFile(BytesIO(KING.encode()), filename="a.txt")
        stored = await translations.store(
            asker("a"), Asked(file=file), "en", "EN"
        )  # nothing to decode
        await stored.task
        return stored.key

    async def run() -> None:
        keys = [await store() for _ in range(3)]
        with pytest.raises(Refused, match="too many documents"):
            await store()
        for key in keys[1:]:
            assert (await translations.stored(key).download()).body == KING.encode()
        monkeypatch.setattr(translation, "STORED_SECONDS", 0)
        last = await store()
        assert {*translations._stored} == {keys[0], keys[2], last}
        await asyncio.sleep(0.01)
        with pytest.raises(HTTPException):
            translations.stored(last)

    asyncio.run(run())


def test_a_clients_slow_documents_hold_up_its_own_alone(decoder, monkeypatch):
    translations = Translations(
        Engine(decoder, Options(), 2, 1), Gate("m"), Limits(99, 99, 9, 99, 9)
    )
    begun, go_on = [], Event()

    def read_slowly(path: Path, *_):
        begun.append(path.name)
        assert "slow" not in path.name or go_on.wait(30)
        return read(path, b"a")

    monkeypatch.setattr(translation, "read_apart", read_slowly)

    async def store(name: str, client: str) -> None:
        asked = Asked(file=UploadFile(BytesIO(b"a"), filename=name))
        await (await translations.store(asker(client), asked, "en", "EN")).task

    async def run() -> None:
        slow = [asyncio.create_task(store(f"slow{i}.txt", "a")) for i in range(3)]
        while not begun:
            await asyncio.sleep(0.01)
        await store("quick.txt", "b")
        assert begun[1:] == ["quick.txt"]
        go_on.set()
        await asyncio.gather(*slow)

    asyncio.run(run())


def test_each_text_is_from_its_own_language_or_where_that_is_not_sure_from_that_of_all(
    decoder, monkeypatch
):
    translations = Translations(
        Engine(decoder, Options(), 1, 1), Gate("m"), Limits(99, 99, 9, 99, 9)
    )
    translations.sources = ["en", "de", "fr"]
    translations._is_told_source = False  # the demo model knows English alone
    translations._detector = LanguageDetector(translations.sources)

    async def steps(_, translator, document):
        texts = [f"{translator.service.assumed_source}: {each.text}" for each in document.passages]
        yield Translation(document.write(texts).data, [], [])

    monkeypatch.setattr(translation, "steps_of_document", steps)
    texts = [HAUS, "Le roi voit la maison.", "", GERMAN[KING], "Ja", KING]

    async def start(source: str) -> tuple[list[str], list[str]]:
        steps, sources = translations.start_texts(texts, parse_plain, source, "de")
        return texts_of(await translation_of(steps)), [language for language, _ in sources]

    new, sources = asyncio.run(start("auto"))
    assert sources == ["en", "fr", "en", "de", "en", "en"]
    prefixes = ["en: ", "fr: ", "", "", "en: ", "en: "]  # German stays
    assert new == [before + text for before, text in zip(prefixes, texts, strict=True)]
    assert asyncio.run(start("fr"))[1] == ["fr"] * len(texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields, message",
    [
        ({"q": ""}, "q is empty"),
        ({"q": None}, "q: field required"),
        ({"q": [5]}, "q.0: input should be a valid string"),
        ({"target": "tlh"}, "no language 'tlh'"),
        ({"target": "German\0"}, "no language 'German\\x00'"),
        ({"source": "de" + "-1996" * 3600}, "no language 'de-1996"),
        ({"source": "fr"}, "no language 'fr'"),
        ({"format": "yaml"}, "format: input should be 'text' or 'html'"),
        ({"alternatives": "x"}, "alternatives: input should be a valid integer"),
    ],
)
def test_what_is_wrong_is_said_in_the_interfaces_forms(server, fields, message):
    status, answer = server.post(PAIR | {"q": KING} | fields, "/translate")
    assert status == 400 and message in answer["error"]
    of_deepl = {"text": fields.get("q", KING), "target_lang": fields.get("target", "DE")}
    of_deepl |= {"source_lang": fields.get("source", "EN"), "glossary_id": fields.get("format")}
    if "alternatives" not in fields and fields.get("q") != "":
        status, answer = server.post(of_deepl, "/v2/translate")
        assert status == 400 and answer["message"]
    assert json.loads(request(server, "GET", "/translate")[1]).keys() == {"error"}
    for path in ("/v2/translate", "/v3/glossaries"):
        assert json.loads(request(server, "GET", path)[1]).keys() == {"message"}


@pytest.mark.slow
def test_who_may_ask(server, guarded):
    fields = PAIR | {"q": "  "}
    assert guarded.post(fields | {"api_key": "kéy"}, "/translate")[0] == 200
    for key in ("", "key", 5):
        status, answer = guarded.post(fields | {"api_key": key}, "/translate")
        assert status == 403 and "key" in answer["error"]
    body = {"text": " ", "target_lang": "DE"}
    bearer = {"authorization": "DeepL-Auth-Key kéy".encode()}
    assert guarded.post(body, "/v2/translate", **bearer)[0] == 200
    status, answer = guarded.post(body, "/v2/translate", authorization="Bearer x")
    assert status == 403 and "DeepL-Auth-Key" in answer["message"]
    other = FORM | {"origin": "https://page.example"}
    for path in ("/translate", "/v2/translate", f"/translate?{urlencode(fields)}"):
        assert request(server, "POST", path, urlencode(fields), **other)[0] == 403, path
    large = upload(PAIR | {"api_key": "kéy"}, "a.txt", b"a" * (1 << 20))
    assert request(guarded, "POST", "/translate_file", large, **MULTIPART)[0] == 413


@pytest.mark.slow
def test_who_goes_away_leaves_no_rows_and_who_is_too_many_may_come_again(guarded):
    long = {"q": [f"The king sees {i} red doors." for i in range(99)], "api_key": "kéy"}
    data = json.dumps(PAIR | long).encode()
    head = f"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n"
    with socket.create_connection(("127.0.0.1", guarded.port)) as connection:
        connection.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + data)
        key = {"authorization": "Bearer kéy".encode()}

        def running() -> bool:
            return b"texts_running 1.0" in request(guarded, "GET", "/metrics", **key)[1]

        while not running():
            pass
        with ThreadPoolExecutor(8) as pool:
            short = PAIR | {"q": HAUS, "api_key": "kéy"}
            answers = [*pool.map(lambda _: guarded.post(short, "/translate"), range(8))]
        assert {status for status, _ in answers} == {200, 503}
        texts = [answer["translatedText"] for status, answer in answers if status == 200]
        assert {*texts} == {GERMAN[HAUS]}
    while running():
        pass
    assert guarded.post(short, "/translate")[1]["translatedText"] == GERMAN[HAUS]
    # A request of more texts than the queue takes
    status, answer = guarded.post({"prompt": [HAUS] * 3, "max_tokens": 2}, **key)
    assert status == 200 and len(answer["choices"]) == 3


@pytest.mark.slow
def test_what_clients_ask_first(server):
    (english, german, *_) = json.loads(server.get("/languages"))
    assert english == {"code": "en", "name": "English", "longCode": "en-US"} | {
        "targets": ["de", "fr", "es"]
    }
    assert german["targets"] == []
    settings = json.loads(server.get("/frontend/settings"))
    assert ".docx" in settings["supportedFilesFormat"] and settings["keyRequired"] is False
    assert server.post({"q": "Hello"}, "/detect")[1].startswith(
        '[{"confidence":100.0,"language":"en"'
    )
    assert json.loads(server.get("/v2/languages?type=target"))[0]["language"] == "DE"
    english, german, *_ = json.loads(server.get("/v3/languages?resource=translate_text"))
    assert english["lang"] == "en" and german["features"]["tag_handling"]["status"] == "stable"
    assert [english["usable_as_source"], german["usable_as_source"]] == [True, False]
    assert json.loads(server.get("/v2/usage"))["character_count"] >= 0
    (model,) = json.loads(server.get("/v1/models"))["data"]
    assert model["interfaces"] == ["openai", "libretranslate", "deepl"]
