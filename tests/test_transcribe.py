"""transcribe.py: what it prints and writes, what it refuses, and that a bad file does not end the others."""

import json

import pytest
from helpers import whisper_models as wm
from helpers.programs import call
from helpers.sounds import write_wav

MODELS = ("--model", "target", "--draft-model", "shared", "--temperature", "1", "--best-of", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models and sounds, as a user's folder has them."""
    folder = tmp_path_factory.mktemp("speech")
    wm.write_pair(folder)
    for i, name in enumerate(("one", "two")):
        write_wav(folder / f"{name}.wav", 1.2 + i, seed=i)
    (folder / "bad.wav").write_bytes(b"RIFF, but no sound")
    return folder


def rounded(text):
    """A transcript in JSON, its numbers as far as float32 has them whatever is beside them."""
    return json.loads(text, parse_float=lambda number: round(float(number), 4))


def transcribe(folder, *arguments):
    return call(*arguments, cwd=folder, script="transcribe.py")


def test_files_are_those_of_one_after_the_other_and_a_bad_one_is_named(folder):
    names = ("two.wav", "bad.wav", "one.wav")
    done = transcribe(folder, *names, *MODELS, "-f", "all", "-o", "out")
    assert done.returncode == 1 and not done.stdout
    assert "bad.wav" in done.stderr and done.stderr.endswith("1 of 3 files were not transcribed\n")
    assert len(list((folder / "out").iterdir())) == 10
    for name in ("one", "two"):
        alone = transcribe(folder, f"{name}.wav", *MODELS, "--num-draft", "0", "-f", "json")
        written = (folder / "out" / f"{name}.json").read_text()
        assert rounded(alone.stdout) == rounded(written) and alone.returncode == 0
        assert json.loads(written)["segments"][0]["no_speech_prob"] > 0
    printed = transcribe(folder, "one.wav", "two.wav", *MODELS, "--verbose")
    texts = [(folder / "out" / f"{name}.txt").read_text() for name in ("one", "two")]
    assert printed.stdout == "one.wav:\n{}two.wav:\n{}".format(*texts)
    assert (
        "1/2 files, " in printed.stderr
        and "3.4 s of audio" in printed.stderr
        and "tokens per target call" in printed.stderr
    )


def test_transcripts_that_are_printed_have_their_names(folder):
    both = transcribe(folder, "one.wav", "two.wav", *MODELS, "-f", "vtt").stdout
    assert both.count("WEBVTT") == 1 and "NOTE one.wav\n\n" in both.partition("NOTE two.wav\n\n")[0]
    both = transcribe(folder, "one.wav", "two.wav", *MODELS, "-f", "json").stdout
    assert [json.loads(line)["file"] for line in both.splitlines()] == ["one.wav", "two.wav"]


def test_an_interrupt_keeps_what_is_done(folder, monkeypatch):
    from speech.transcriber import Transcriber

    original = Transcriber.transcribe_all

    def interrupted(*arguments):
        yield next(original(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(Transcriber, "transcribe_all", interrupted)
    done = transcribe(folder, "one.wav", "two.wav", *MODELS, "--batch-size", "1", "-o", "kept")
    assert done.returncode == 130 and "interrupted" in done.stderr
    assert [file.name for file in (folder / "kept").iterdir()] == ["one.txt"]


@pytest.mark.parametrize(
    "arguments, error",
    [
        (["no.wav", *MODELS], "no.wav: No such file"),
        (["one.wav", "--model", "none"], "no model 'none'"),
        (["one.wav", *MODELS, "--language", "klingon"], "'klingon'; there are English (en), Ger"),
        (["one.wav", *MODELS, "--clip-timestamps", "5,1"], "each later than the one before"),
        (["one.wav", *MODELS, "--clip-timestamps", "a"], "invalid seconds value: 'a'"),
        (["one.wav", *MODELS, "--temperature", "2"], "temperature is 2.0, not from 0 to 1"),
        (["one.wav", *MODELS, "-f", "all"], "--output-format all needs --output-dir"),
        (["one.wav", "a/one.mp3", *MODELS, "-o", "x"], "2 files would be written as one"),
        (["one.wav", "--draft-model", "shared"], "--draft-model needs --model"),
        (["one.wav", *MODELS, "--output-name", "y", "two.wav"], "--output-name works for one file"),
    ],
)
def test_mistakes_are_one_line(folder, arguments, error):
    done = transcribe(folder, *arguments)
    assert done.returncode in (1, 2) and error in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--output-name", "x"], "--output-name has no effect without --output-dir\n"),
        (
            ["--clip-timestamps", "0.5,1,500,600"],
            "one.wav: --clip-timestamps has no effect from 500 s on: the audio ends at 1.2 s\n",
        ),
    ],
)
def test_a_flag_without_effect_is_told(folder, arguments, told):
    done = transcribe(folder, "one.wav", *MODELS, *arguments)
    assert (done.returncode, done.stderr) == (0, told)


def test_other_commands_say_where_speech_is(folder):
    done = call("--model", "target", "--prompt", "x", cwd=folder)
    assert done.returncode == 1 and "this model transcribes audio: use transcribe.py" in done.stderr
