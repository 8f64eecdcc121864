"""Live sound: words are final once two texts agree on them, hypotheses are plain decoding's, and the same over a WebSocket."""

import base64
import json
import signal
import socket
import subprocess
import sys
import wave
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import whisper_models as wm
from helpers.programs import DEMO, ROOT, call
from helpers.serving import Server, openai_client

import speech.live
from families.conversion import convert
from speech.features import HOP, RATE
from speech.live import Live
from speech.options import TranscribeOptions
from speech.pipeline import Pipeline
from speech.transcriber import Transcriber
from speech.voice import Detector

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
        samples = speech.live.pcm(sound("numbers.wav"))
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
        ((_, found),) = transcriber.run(iter([steps(live)]), options, 1, rows.append)
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
@pytest.mark.parametrize("interrupted", [False, True])
def test_the_command_says_all_that_it_has_heard(folder, interrupted):
    command = [
        sys.executable,
        ROOT / "transcribe.py",
        "--live",
        "-",
        "--model",
        "target",
        "-f",
        "srt",
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe) as program:
        assert b"listening" in program.stderr.readline()
        program.stdin.write(sound("sentence.wav") + bytes(RATE))
        program.stdin.flush()
        if interrupted:
            program.send_signal(signal.SIGINT)
            assert program.wait(60) == 0
        printed, errors = program.communicate()
    assert (printed.decode() == "" and interrupted) or CLIPS["sentence.wav"][
        "text"
    ] in printed.decode()
    assert program.returncode == 0 and not errors


def append(data):
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()}


@pytest.mark.slow
def test_live_clients_get_their_own_words_beside_files(folder):
    client_of = pytest.importorskip("websockets.sync.client")
    detection = {"format": {"rate": RATE}, "turn_detection": None}
    update = {"type": "session.update", "session": {"audio": {"input": detection}}}
    commit = {"type": "input_audio_buffer.commit"}

    def connect(**how):
        return client_of.connect(f"ws://127.0.0.1:{server.port}/v1/realtime", **how)

    def listen(name):
        with connect() as live:
            for event in (update, append(sound(name)), commit):
                live.send(json.dumps(event))
            events = [json.loads(live.recv())]
            while not events[-1]["type"].endswith("completed"):
                events.append(json.loads(live.recv()))
        said = "".join(event.get("delta", "") for event in events)
        assert said == events[-1]["transcript"] and events[-2]["item_id"] == events[-1]["item_id"]
        return said

    def ask(name):
        with open(DEMO / "speech" / name, "rb") as file, openai_client(server) as client:
            return client.audio.transcriptions.create(model="target", file=file).text

    with Server(folder, "--model", "target", "--max-seconds", "20") as server:
        names = ["sentence.wav", "numbers.wav"]
        alone = [each(name) for name in names for each in (listen, ask)]
        assert alone[1::2] == [CLIPS[name]["text"] for name in names]
        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(each, name) for name in names for each in (listen, ask)] * 2
            assert [job.result() for job in jobs] == alone * 2
        with connect() as live:
            live.recv()
            other = {"type": "session.update", "session": {"type": "realtime"}}
            half = append(b"x")
            for wrong in ("x", "{}", b"x", {"type": "response.create"}, other, half, commit):
                live.send(json.dumps(wrong) if isinstance(wrong, dict) else wrong)
                assert json.loads(live.recv())["error"]["type"] == "invalid_request_error"
            live.send(json.dumps(append(b"")))
            live.send(json.dumps(append(bytes(1 << 21))))
            live.send(json.dumps(append(bytes(2))))
            assert "more than 20 seconds" in live.recv()
            live.send(json.dumps(append(sound("numbers.wav"))))
        server.until("texts_running", 0)  # the client has gone
        for host, origin, status in (("elsewhere", None, 400), ("localhost", "http://a.org", 403)):
            line = socket.create_connection(("127.0.0.1", server.port))
            with pytest.raises(client_of.InvalidStatus) as refused:
                client_of.connect(f"ws://{host}/v1/realtime", sock=line, origin=origin)
            assert refused.value.response.status_code == status
