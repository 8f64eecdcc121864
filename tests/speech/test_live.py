"""Live sound: words are final once two texts agree on them, hypotheses are plain decoding's, and the same over a WebSocket."""

import base64
import json
import signal
import socket
import subprocess
import sys
import time
import wave
from asyncio import Event, create_task, sleep
from asyncio import run as run_to_end
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import whisper_models as wm
from helpers.programs import DEMO, ROOT, call
from helpers.serving import Server, openai_client

from apps.cli import cli
from apps.serving import realtime
from apps.serving.gate import Gate
from apps.speech.audio import RATE, pcm
from apps.speech.features import HOP
from apps.speech.live import microphone
from apps.speech.live.live import Live
from apps.speech.live.samples import from_ulaw
from apps.speech.live.sources import listen
from apps.speech.options import TranscribeOptions
from apps.speech.pipeline import Pipeline
from apps.speech.transcriber import Transcriber
from apps.speech.voice import Detector
from decoder import Options
from speculative.common.reporting import reporter
from speculative.models.conversion import convert

CLIPS = json.loads((DEMO / "speech" / "clips.json").read_text(encoding="utf-8"))
CONFIG = SimpleNamespace(
    num_mel_bins=80, frames=400, max_positions=448, vocab_size=wm.VOCAB, eos_token_ids=(wm.END,)
)


def hear(monkeypatch, texts, seconds):
    """What is heard, the rows and the transcript, if the model says these texts one after the other (the last one again and
    again); seconds: of speech and silence, in turn."""
    monkeypatch.setattr(Detector, "hear", lambda self, samples: samples[::HOP].copy())
    heard, rows = [], []
    special = wm.special()
    model = SimpleNamespace(config=CONFIG)
    options = TranscribeOptions("en")
    live = Live(Pipeline(model, wm.tokenizer(), special, options, leaves_rest=False), heard.append)

    def play(steps):
        for work in steps:
            for row in work:
                text = texts[min(len(rows), len(texts) - 1)]
                tokens = [*wm.tokenizer().encode(text).ids, wm.END]
                row.tokens += tokens
                row.origins += ["target"] * len(tokens)
                row.logprobs += [-0.1] * len(tokens)
                rows.append(row)

    speaks = [np.full(round(4 * time), i % 2 == 0) for i, time in enumerate(seconds)]
    for one in np.concatenate(speaks):
        live.append(np.full(RATE // 4, float(one), np.float32))
        play(live.advance())
    play(live.advance(is_end=True))
    return heard, rows, live.transcript()


def test_words_on_which_two_texts_agree_are_final(monkeypatch):
    said = [
        " one two thre",
        " one two three fo",
        " two three four, fi",
        " one two three four five.",
    ]
    texts = [f"<|0.00|>{text}<|0.50|>" for text in said] + [
        "<|0.00|> six<|0.50|><|0.50|> seven.<|0.50|>"
    ]
    heard, rows, transcript = hear(monkeypatch, texts, [3, 1, 1, 1])
    assert [(each.text, each.rest) for each in heard] == [
        ("", ""),
        ("", " one two thre"),
        (" one two", " three fo"),
        (" three", " four, fi"),
        (" four five.", ""),
        ("", ""),
        ("", " six seven."),
        (" six seven.", ""),
    ]
    assert "".join(each.text for each in heard) == transcript.text
    assert [row.reference for row in rows[:4]] == [[], *(row.generated[:-1] for row in rows[:3])]
    assert rows[4].reference == [] and rows[5].reference == rows[4].generated[:-1]
    before = wm.tokenizer().decode(rows[4].tokens[: rows[4].prefix_size])
    assert "two three four five." in before
    (first, end), (again, _), (_, last) = [(s.start, s.end) for s in transcript.segments]
    assert 0 <= first < end <= 3.25 and 3.75 <= again < last <= 5.25
    assert [each.end for each in heard if each.end] == [3.25, 5.25]


def test_speech_without_a_pause_goes_on_in_more_windows(monkeypatch):
    heard, _rows, transcript = hear(monkeypatch, ["<|0.00|> ha<|0.50|>"], [11, 1])
    assert [each.end for each in heard if each.end] == [11.25] and len(transcript.segments) > 3
    assert all(a.end <= b.start for a, b in pairwise(transcript.segments))
    assert (
        transcript.text == "".join(each.text for each in heard) == " ha" * len(transcript.segments)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    convert(str(DEMO / "speech" / "target"), folder / "target", dtype="float32")
    return folder


def sound(name):
    with wave.open(str(DEMO / "speech" / name)) as file:
        return file.readframes(file.getnframes())


@pytest.mark.slow
def test_hypotheses_are_those_of_plain_decoding_in_fewer_calls(folder):
    transcriber = Transcriber(folder / "target")

    def steps(live):
        samples = pcm(sound("numbers.wav"))
        for first in range(0, len(samples), RATE // 4):
            live.append(samples[first : first + RATE // 4])
            yield from live.advance()
        yield from live.advance(is_end=True)
        return live.transcript()

    texts, calls = [], []
    for num_draft in (0, 8):
        options = TranscribeOptions("en", num_draft=num_draft)
        rows = []
        live = transcriber.live(options, lambda heard: None)
        ((_, found),) = transcriber.transcribe_all([steps(live)], options, 1, rows.append)
        texts.append([row.generated for row in rows])
        calls.append(found.stats.target_calls)
        assert found.text.strip() == CLIPS["numbers.wav"]["text"]
    assert texts[0] == texts[1] and len(texts[0]) > 6 and calls[1] < 0.7 * calls[0]


def test_mistakes_are_one_line(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    for arguments, error in (
        ([], "pip install sounddevice"),
        (["a.wav"], "--live takes no file"),
        (["--vad", "--output-dir", "o", "--output-name", "n"], "--vad has no effect with --live"),
    ):
        done = call("--live", "--model", "target", *arguments, cwd=folder, script="transcribe.py")
        assert done.returncode and error in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_command_says_all_that_it_has_heard(folder, number):
    written = folder / f"{number}" / "stdin.srt"
    command = [sys.executable, ROOT / "transcribe.py", "--live", "-", "--model", "target"]
    command += ["-f", "srt", "-o", written.parent]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe) as program:
        assert b"listening" in program.stderr.readline()
        program.stdin.write(sound("sentence.wav") + bytes(3 * RATE))
        program.stdin.flush()
        while not written.exists():  # after the utterance, before the end
            time.sleep(0.1)
        if number:
            program.send_signal(number)
            assert program.wait(60) == 0
        printed, errors = program.communicate()
    text = " ".join(line for line in written.read_text().splitlines() if line[:1].isalpha())
    assert text == CLIPS["sentence.wav"]["text"]
    assert program.returncode == 0 and not errors and not printed


@pytest.mark.parametrize("head", [b"RIFFxxxxWAVE", b"OggS", b"ID3\x04", b"\xff\xfb\x90\x00"])
def test_an_audio_file_is_not_taken_for_raw_sound(folder, head):
    done = subprocess.run(
        [sys.executable, ROOT / "transcribe.py", "--live", "-", "--model", "target"],
        cwd=folder,
        input=head + bytes(4000),
        capture_output=True,
    )
    assert done.returncode == 1 and b"audio file, not raw PCM: use ffmpeg" in done.stderr
    assert done.stderr.count(b"\n") == 2 and not done.stdout


@pytest.mark.parametrize(
    "block, device, told",
    [
        (
            bytes(9600),
            "USB",
            ["overflow 1 of", "overflow 2 of", "System Settings > Privacy & Security"],
        ),
        (bytes(9598) + b"\1\0", 3, ["overflow 1 of", "overflow 2 of"]),
    ],
)
def test_a_microphone_is_heard_at_its_own_rate_and_its_faults_are_told(
    monkeypatch, block, device, told
):
    pytest.importorskip("av")

    class Stream:
        def __init__(self, rate, callback, **about):
            assert (rate, about["device"]) == (48_000, device)
            self.callback = callback

        def start(self):
            for i in range(9):
                flags = SimpleNamespace(input_overflow=i in (2, 4))
                self.callback(block, len(block) // 2, None, flags)

    about = {"default_samplerate": 48_000.0}
    made = SimpleNamespace(
        query_devices=lambda *_: about, RawInputStream=Stream, PortAudioError=OSError
    )
    monkeypatch.setitem(sys.modules, "sounddevice", made)
    monkeypatch.setattr(microphone, "_PATIENCE", 0.7)
    monkeypatch.setattr(reporter, "note", (notes := []).append)
    listen("microphone", pieces := SimpleQueue(), str(device))
    *samples, end = (pieces.get(timeout=60) for _ in range(10))
    assert sum(map(len, samples)) == pytest.approx(0.9 * RATE, abs=100) and end is None
    for note, part in zip(notes, [*told, "the microphone stopped"], strict=True):
        assert part in note


def test_a_signal_that_is_ignored_stays_so():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert cli.on_signals(print, signal.SIGHUP) == {signal.SIGHUP: signal.SIG_IGN}
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def append(data):
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()}


COMMIT = {"type": "input_audio_buffer.commit"}
CLEAR = {"type": "input_audio_buffer.clear"}


def update(**given):
    return {"type": "session.update", "event_id": "mine", "session": {"audio": {"input": given}}}


@pytest.fixture(scope="module")
def server(folder):
    with Server(folder, "--model", "target", "--max-seconds", "40", "--api-key", "key") as made:
        yield made


@contextmanager
def session(server, *events, **how):
    """A connection as a browser makes it: sends these events, and yields what sends one and reads up to a type."""
    client_of = pytest.importorskip("websockets.sync.client")
    address = f"ws://127.0.0.1:{server.port}/v1/realtime?model=gpt-transcribe"
    protocols = ["realtime", "openai-insecure-api-key.key"]
    with client_of.connect(address, subprotocols=protocols, **how) as live:
        assert live.subprotocol == "realtime"

        def talk(event, until=None):
            live.send(json.dumps(event))
            events = []
            while until and not (events and events[-1]["type"].endswith(until)):
                events.append(json.loads(live.recv(timeout=60)))
            return events

        for event in events:
            talk(event)
        yield talk


RAW = {"format": {"rate": RATE}}


@pytest.mark.slow
def test_live_clients_get_their_own_words_beside_files(server):
    def listen(name):
        data = sound(name)
        pieces = [append(data[i : i + 1323]) for i in range(0, len(data), 1323)]  # half samples
        begun = update(**RAW, turn_detection=None), append(b"x"), CLEAR
        with session(server, *begun, *pieces) as talk:
            events = talk(COMMIT, "completed")
        said = "".join(event.get("delta", "") for event in events)
        assert said == events[-1]["transcript"] and events[-2]["item_id"] == events[-1]["item_id"]
        return said

    def ask(name):
        with open(DEMO / "speech" / name, "rb") as file, openai_client(server, "key") as client:
            return client.audio.transcriptions.create(model="gpt-4o-transcribe", file=file).text

    names = ["sentence.wav", "numbers.wav"]
    alone = [each(name) for name in names for each in (listen, ask)]
    assert alone[1::2] == [CLIPS[name]["text"] for name in names]
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(each, name) for name in names for each in (listen, ask)] * 2
        assert [job.result() for job in jobs] == alone * 2


@pytest.mark.slow
def test_each_utterance_has_its_language_and_its_events_openais_order(server):
    pause = bytes(2 * RATE)
    with session(server, update(**RAW, transcription={"tentative": True})) as talk:
        talk(append(sound("sentence.wav") + pause))
        first = talk(append(sound("german.wav") + pause), "completed")
        events = first + talk(append(pause), "completed")
    kinds = [event["type"].rpartition(".")[2] for event in events[2:]]
    item = ["speech_started", "committed", "added", "delta", "speech_stopped", "completed"]
    assert [kind for kind in kinds if kind != "tentative"] == [
        kind for i, kind in enumerate(item * 2)
    ] and "tentative" in kinds
    texts = [event["transcript"] for event in events if event["type"].endswith("completed")]
    assert texts[0] == CLIPS["sentence.wav"]["text"]
    assert texts[1].startswith("Der starke Bruder wäscht meine Lampe.")
    items = [event["item_id"] for event in events if event["type"].endswith("committed")]
    before = [event["previous_item_id"] for event in events if event["type"].endswith("committed")]
    assert before == [None, items[0]]


@pytest.mark.slow
def test_a_commit_is_always_answered_and_settings_change_at_any_time(server):
    silence = append(bytes(RATE))
    with session(server, update(**RAW)) as talk:
        assert talk(COMMIT, "error")[-1]["error"]["code"] == "input_audio_buffer_commit_empty"
        for event in (silence, CLEAR):
            talk(event)
        assert talk(COMMIT, "error")[-1]["error"]["code"] == "input_audio_buffer_commit_empty"
        for turns in ({}, None, {"type": "semantic_vad", "eagerness": "high"}):
            given = {"language": "auto", "model": "none", "prompt": "Hello."}
            events = talk(update(turn_detection=turns, transcription=given), "updated")
            assert (
                events[0]["error"]["event_id"] == "mine"
                and "model" in events[0]["error"]["message"]
            )
            kept = events[-1]["session"]["audio"]["input"]["transcription"]
            assert (kept["prompt"], kept["model"]) == ("Hello.", None)
            talk(silence)
            events = talk(COMMIT, "completed")
            assert [event["type"].rpartition(".")[2] for event in events] == [
                *("committed", "added", "completed")
            ] and events[-1]["transcript"] == ""
        both = update(turn_detection={"silence_duration_ms": 0})
        both["session"]["audio"]["output"] = {"voice": "alloy"}
        (event,) = talk(both, "updated")
        assert event["session"]["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 0
        talk(update(format={"type": "audio/pcmu"}, turn_detection=None), "updated")
        tone = (8000 * np.sin(np.arange(8000))).astype("<i2").tobytes()
        talk(append(bytes(range(256)) + tone[:7744]))
        assert talk(COMMIT, "completed")[-1]["usage"]["seconds"] == pytest.approx(1, abs=0.01)


def test_mu_law_is_g711s():
    audioop = pytest.importorskip("audioop")
    assert from_ulaw(bytes(range(256))) == audioop.ulaw2lin(bytes(range(256)), 2)


@pytest.mark.slow
def test_what_is_wrong_is_told_and_too_much_ends_a_session(server):
    client_of = pytest.importorskip("websockets.sync.client")
    with session(server) as talk:
        bad = {"type": "input_audio_buffer.append", "audio": "!!!!"}
        other = {"type": "session.update", "session": {"type": "realtime"}}
        for wrong in ("x", {}, {"type": "response.create"}, other, bad, COMMIT):
            assert talk(wrong, "error")[-1]["error"]["type"] == "invalid_request_error"
        for _ in range(2):
            talk(append(bytes(1 << 20)))
        with pytest.raises(Exception, match="more than 40 seconds"):
            talk(append(b""), "never")
    server.until("texts_running", 0)  # the client has gone
    for host, origin, key, status in (
        ("elsewhere", None, "key", 400),
        ("localhost", "http://a.org", "key", 403),
        ("localhost", None, "none", 401),
    ):
        line = socket.create_connection(("127.0.0.1", server.port))
        about = dict(origin=origin, subprotocols=["realtime", f"openai-insecure-api-key.{key}"])
        with pytest.raises(client_of.InvalidStatus) as refused:
            client_of.connect(f"ws://{host}/v1/realtime", sock=line, **about)
        assert refused.value.response.status_code == status


def test_others_have_a_turn_after_each_event_and_few_events_wait():
    """Of those that are there already, whose answers nobody waits for."""
    settings = {"type": "session.update", "session": dict.fromkeys(map(str, range(2000)), 1)}
    texts = [json.dumps(settings), *["{}"] * 3000]
    turns, told = (
        [],
        [],
    )  # others' turns; at each answer, how many there were, and how many events waited

    async def receive():
        return {"type": "websocket.receive", "text": texts.pop()} if texts else await Event().wait()

    async def send_json(event):
        told.append((len(turns), len(client._events)))

    async def run():
        tasks = [create_task(client.answer()), create_task(client.receive())]
        while len(told) < 3002 and not tasks[0].done():
            turns.append(await sleep(0))
        for task in tasks:
            task.cancel()

    live = SimpleNamespace(advance=lambda is_end: (each for each in ()), configure=lambda *_: None)
    transcriber = SimpleNamespace(live=lambda *_: live, resolve=lambda options: options)
    speech = SimpleNamespace(gate=Gate("m"), engine=SimpleNamespace(options=Options(), call=None))
    socket = SimpleNamespace(receive=receive, send_json=send_json)
    client = realtime._Client(speech, transcriber, socket)
    run_to_end(run())
    assert max(waiting for _, waiting in told) < 1100
    assert told[3000][0] >= 2999 and told[3001][0] - told[3000][0] >= 2000
