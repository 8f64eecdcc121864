"""Sound over HTTP: OpenAI's client gets transcribe.py's transcripts, in every format and several at once."""

import json
import subprocess
import sys
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from http.client import HTTPConnection
from urllib.parse import urlencode

import numpy as np
import pytest
from helpers import whisper_models as wm
from helpers.programs import ROOT, call
from helpers.serving import WATCHED, Server, form, heavy
from helpers.sounds import sound_file, write_wav

pytestmark = pytest.mark.slow
openai = pytest.importorskip("openai")
ONE = {"best_of": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech")
    wm.write_pair(folder)
    for i in range(4):
        write_wav(folder / f"{i}.wav", 0.7 + 0.4 * i, seed=i)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    limit = "--max-seconds", "1000"
    arguments = "--model", "target", "--draft-model", "shared", *limit
    with Server(folder, *arguments, program=WATCHED) as server:
        yield server
        assert heavy(server) == []  # whatever was the first request of its kind


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def small(folder):
    """A server that takes little at once."""
    limits = "--batch-size 1 --queue 1 --max-upload 1 --upload-seconds 1".split()
    with Server(folder, "--model", "target", *limits) as server:
        yield server


@cache
def printed(folder, name, *arguments):
    models = "--model target --num-draft 0 --temperature 1 --best-of 1".split()
    return call(name, *models, *arguments, cwd=folder, script="transcribe.py").stdout


def ask(client, folder, name, **fields):
    with open(folder / name, "rb") as file:
        return client.audio.transcriptions.create(
            model="target", file=file, **{"temperature": 1.0, "extra_body": ONE} | fields
        )


def test_requests_of_every_kind_are_answered(client, folder):
    """Without imports on the event loop: see `server`."""
    extra = ONE | {"reference": "x", "vad_filter": True, "origins": True}
    assert [*ask(client, folder, "0.wav", stream=True, extra_body=extra)]
    with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        session = {"type": "transcription", "audio": {"input": {"turn_detection": None}}}
        connection.session.update(session=session)
        connection.input_audio_buffer.append(audio=b64encode(b"\0" * 48000).decode())
        connection.input_audio_buffer.commit()
        next(event for event in connection if event.type.endswith("completed"))


@pytest.mark.parametrize("kind", ["srt", "vtt", "json", "text", "verbose_json"])
def test_answers_are_transcribe_pys(client, folder, kind):
    for language in (None, "de"):
        given = {"language": language} if language else {}
        flags = ["--language", language] if language else []
        found = ask(client, folder, "2.wav", response_format=kind, **given)
        expected = json.loads(printed(folder, "2.wav", "-f", "json", *flags))
        if kind in ("srt", "vtt"):
            assert found == printed(folder, "2.wav", "-f", kind, *flags)
        elif kind == "text":
            assert found.strip() == expected["text"].strip()
        else:
            assert found.text == expected["text"].strip() and found.usage.seconds == 1.5
        if kind == "verbose_json":
            name = {"en": "english", "de": "german", "fr": "french"}[expected["language"]]
            assert found.language == name and found.duration == 1.5
            spans = [(s["start"], s["end"], s["tokens"]) for s in expected["segments"]]
            assert [(s.start, s.end, s.tokens) for s in found.segments] == spans
            assert all(0 < s.no_speech_prob < 1 for s in found.segments)


def test_languages_have_openais_names_without_transformers():
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    program = f"""
import sys; from apps.serving.audio import _body; from apps.speech.segments import Transcript
for code, name in {LANGUAGES}.items():
    assert _body(Transcript("", (), code, 1.0), None, True)["language"] == name, code
assert "transformers" not in sys.modules"""
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def test_words_are_transcribe_pys(client, folder):
    asked = dict(response_format="verbose_json", timestamp_granularities=["word"])
    found = ask(client, folder, "3.wav", **asked)
    segments = json.loads(printed(folder, "3.wav", "--word-timestamps", "-f", "json"))["segments"]
    words = [(w["word"], w["start"], w["end"]) for s in segments for w in s["words"]]
    assert [(w.start, w.end) for w in found.words] == [(start, end) for _, start, end in words]
    for word, (marked, *_) in zip(found.words, words, strict=True):
        assert word.word in marked and word.word == word.word.strip() and len(words) > 3
    assert [s.end for s in found.segments] == [s["end"] for s in segments]
    assert ask(client, folder, "3.wav", response_format="verbose_json").words is None


def test_limits_of_uploads_are_flags(small):
    post = partial(small.post, path="/v1/audio/transcriptions")
    body, headers = form({}, b"x" * (1 << 20))
    assert post(body, **headers)[0] == 413
    headers["content-length"] = str(len(body) + 9)
    assert post(body[: 1 << 19], **headers)[0] == 408


def test_several_at_once_are_each_its_own(client, folder):
    names = [f"{i}.wav" for i in range(4)] * 2
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda name: ask(client, folder, name).text, names))
    alone = {
        name: json.loads(printed(folder, name, "-f", "json"))["text"].strip() for name in names
    }
    assert found == [alone[name] for name in names] and len(set(found)) == 4


def test_a_stream_adds_up_to_the_text(client, folder):
    whole = ask(client, folder, "3.wav").text
    *deltas, done = list(ask(client, folder, "3.wav", stream=True))
    assert done.type == "transcript.text.done" and done.text == whole
    assert "".join(event.delta for event in deltas).strip() == whole


def test_bazarrs_requests_are_answered_as_by_whisper_asr_webservice(server, folder):
    """As its provider sends them: the file has its field's name, and raw PCM is in it."""
    raw = (folder / "3.wav").read_bytes()[44:]
    of_film = dict(encode="false", video_file="/films/[1] a.mkv")

    def post(path, data=raw, headers=(), **query):
        body, about = form({}, data, name="audio_file")
        return server.post(body, f"{path}?{urlencode(query)}", **about, **dict(headers))

    for output, task in (("srt", "translate"), ("srt", "transcribe"), ("txt", "transcribe")):
        given = dict(task=task, language="de", temperature="1", **ONE)
        answer = printed(folder, "3.wav", "-f", output, "--task", task, "--language", "de")
        assert post("/asr", output=output, **given, **of_film) == (200, answer)
    assert post("/asr", raw + b"?", **given, **of_film) == (200, answer)  # txt is the default
    _, found = post("/asr", output="json", temperature="1", **of_film, **ONE)
    expected = json.loads(printed(folder, "3.wav", "-f", "json"))
    assert found.keys() == expected.keys() and found["text"] == expected["text"]
    assert all(segment["no_speech_prob"] > 0 for segment in found["segments"])
    _, language = post("/detect-language", **of_film)
    assert 1 / 3 < language.pop("confidence") < 1
    name = {"en": "english", "de": "german", "fr": "french"}[found["language"]]
    assert language == {"detected_language": name, "language_code": found["language"]}
    for path in ("/asr", "/detect-language"):
        assert post(path, b"x" * (26 << 20))[0] == 413 and post(path)[0] == 400
        assert post(path, headers={"origin": "http://elsewhere"})[0] == 403


def test_what_is_too_much_is_refused_before_its_stream_begins(client, small, folder):
    def stream(_):
        try:
            *_, done = ask(other, folder, "3.wav", stream=True)
        except openai.InternalServerError as error:
            return error.status_code
        return done.text

    whole = ask(client, folder, "3.wav").text
    with (
        openai.OpenAI(base_url=f"{small.url}/v1", api_key="none", max_retries=0) as other,
        ThreadPoolExecutor(8) as pool,
    ):
        assert set(pool.map(stream, range(8))) == {whole, 503}


def test_translations_are_another_task(client, folder):
    with open(folder / "1.wav", "rb") as file:
        found = client.audio.translations.create(
            model="target", file=file, temperature=1.0, extra_body=ONE
        )
    expected = json.loads(printed(folder, "1.wav", "-f", "json", "--task", "translate"))
    assert found.text == expected["text"].strip() != ask(client, folder, "1.wav").text


def half(charset: str, prompt: bytes):
    """A form whose prompt is half a character."""
    body, headers = form({"prompt": "?"})
    kind = f"{headers['content-type']}; charset={charset}"
    return body.replace(b"?", prompt), {"content-type": kind}


SECOND = sound_file("wav", "pcm_u8", np.zeros([1000, 1], np.int16), 1000)


@cache
def seven_hours() -> bytes:
    """Of silence, which take seconds to read."""
    return sound_file("wav", "pcm_u8", np.zeros([24 << 20, 1], np.int16), 1000)


@pytest.mark.parametrize(
    "request_, status, message",
    [
        (form({}), 400, "no audio file"),
        (form({}, None), 400, "file: field required"),
        (form({"model": "other"}), 404, "this server has only the model target"),
        (form({"language": "xx"}), 400, "no language 'xx'"),
        (form({"language": "German\0"}), 400, "no language 'German\\x00'"),
        (
            form({"reference": '{"segments": [{"start": 1e999, "end": 2, "text": "a"}]}'}),
            400,
            "finite",
        ),
        (form({"temperature": "nan"}), 400, "temperature is nan"),
        (form({"logprob_thold": "hot"}), 400, "logprob_threshold is 'hot', not a number, or none"),
        (form({"clip_timestamps": "x"}), 400, "clip_timestamps is 'x', not seconds"),
        (form({"reading_speed": "fast"}), 400, "reading_speed is 'fast', not a number above 0"),
        (form({"layout": "x"}), 400, "layout: "),
        (form({"response_format": "diarized_json"}), 400, "input should be 'json', 'verbose"),
        (form({"timestamp_granularities[]": "letter"}), 400, "0: input should be 'word'"),
        (form({"vad_filter": "maybe"}), 400, "vad is 'maybe', not True or False"),
        (form({"model": "whisper-1", "vad_filter": "True"}), 400, "no audio file"),
        (form({"audio_track": "2"}, SECOND), 400, "no audio track 2; there are 1"),
        (form({"beam_size": "5"}), 400, "there is no field 'beam_size'"),
        (form({"best_of": "99"}), 400, "best_of is 99, not a whole number from 1 to 64"),
        (form({}, origin="http://elsewhere"), 403, "other web pages"),
        ((b"{}", {"content-type": "application/json"}), 415, "multipart/form-data"),
        ((b"--", {"content-type": "multipart/form-data"}), 400, "not a form"),
        (form({}, b"x" * (26 << 20)), 413, "too large"),
        (form({}, origin="http://["), 403, "other web pages"),
        (half("unicode_escape", rb"\ud800"), 400, "not a form"),
        (half("utf-7", b"+2AA-"), 400, "not a form"),
    ],
)
def test_what_is_wrong_is_refused(small, request_, status, message):
    assert_refused(small, *request_, status, message)


def test_a_sound_that_is_too_long_is_refused(server):
    assert_refused(server, *form({}, seven_hours()), 400, "more than 1000 seconds of audio")


def assert_refused(server, body, headers, status, message) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", "/v1/audio/transcriptions", body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    except BrokenPipeError:  # of a body that the server has stopped reading
        assert status == 413
        return
    finally:
        connection.close()
    assert answer.status == status and message in json.loads(text)["error"]["message"]


def test_a_client_that_goes_away_is_not_transcribed_to_the_end(server, folder):
    """Whether its sound is being read or decoded."""
    write_wav(folder / "long.wav", 600)
    body, headers = form({"temperature": "1"}, (folder / "long.wav").read_bytes())
    gone = 'requests_total{status="499"}'
    before = server.metric(gone)
    for seconds in (0, 0.2, 0.8):
        connection = HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/v1/audio/transcriptions", body, headers)
        time.sleep(seconds)
        connection.close()
    server.until(gone, before + 3)
    server.until("texts_running", 0)


def test_a_signal_does_not_wait_for_sounds(folder):
    """One is being read, the other waits for it."""
    body, headers = form({}, seven_hours())
    with (
        Server(folder, "--model", "target", "--max-seconds", "86400") as server,
        ThreadPoolExecutor(2) as pool,
    ):
        asked = partial(server.post, body, "/v1/audio/transcriptions", **headers)
        posted = [pool.submit(asked) for _ in range(2)]
        time.sleep(1)
        server.process.terminate()
        assert server.process.wait(10) == 0
        assert [one.result()[0] for one in posted] == [503, 503]


@pytest.mark.parametrize("flags", [("--temp", "1"), ("--memory", "x")])
def test_options_for_texts_are_refused(folder, flags):
    refused = call("--model", "target", "--port", "0", *flags, cwd=folder, script="serve.py")
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1
    assert f"{flags[0]}: the model transcribes audio" in refused.stderr


def test_texts_are_not_for_a_model_of_speech(server):
    status, answer = server.post({"prompt": "x"})
    assert status == 400 and "transcribes audio" in answer["error"]["message"]
