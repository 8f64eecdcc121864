"""transcribe.py: what it prints and writes, what it refuses, and that a bad file does not end the others."""

import errno
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import whisper_models as wm
from helpers.programs import ROOT, call
from helpers.sounds import sound_file, write_wav

import apps.cli.transcripts
import transcribe as command
from apps.cli.transcripts import Output
from apps.speech.formats import FORMATS
from apps.speech.options import TranscribeOptions
from apps.speech.transcriber import Transcriber

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
    assert "bad.wav" in done.stderr and done.stderr.endswith("1 of 3 files failed\n")
    assert len(list((folder / "out").iterdir())) == 10
    for name in ("one", "two"):
        alone = transcribe(folder, f"{name}.wav", *MODELS, "--num-draft", "0", "-f", "json")
        written = (folder / "out" / f"{name}.json").read_text()
        assert rounded(alone.stdout) == rounded(written) and alone.returncode == 0
        assert json.loads(written)["segments"][0]["no_speech_prob"] > 0
    printed = transcribe(folder, "one.wav", "two.wav", *MODELS, "--verbose")
    texts = [(folder / "out" / f"{name}.txt").read_text() for name in ("one", "two")]
    assert printed.stdout == "one.wav:\n{}two.wav:\n{}".format(*texts)
    assert "3.4 s of audio" in printed.stderr and "tokens per target call" in printed.stderr


def test_channels_are_transcribed_apart(folder):
    noise = np.random.default_rng(2).normal(0, 3000, (20_000, 2)).astype(np.int16)
    for name, sound in (("call", noise), ("left", noise[:, :1].copy())):
        (folder / f"{name}.wav").write_bytes(sound_file("wav", "pcm_s16le", sound))
    arguments = ("call.wav", *MODELS, "--channels", "right=Ben, 1 = Anna", "-f")
    both = json.loads(transcribe(folder, *arguments, "json").stdout)["segments"]
    assert [s["start"] for s in both] == sorted(s["start"] for s in both)
    assert {s["speaker"] for s in both} == {"Anna", "Ben"}
    texts = "".join(f"{s['speaker']}: {s['text'].strip()}\n" for s in both)
    assert transcribe(folder, *arguments, "txt").stdout == texts
    alone = json.loads(transcribe(folder, "left.wav", *MODELS, "-f", "json").stdout)["segments"]
    assert [s["text"] for s in both if s["speaker"] == "Anna"] == [s["text"] for s in alone]


def test_transcripts_that_are_printed_have_their_names(folder):
    both = transcribe(folder, "one.wav", "two.wav", *MODELS, "-f", "vtt").stdout
    assert both.count("WEBVTT") == 1 and "NOTE one.wav\n\n" in both.partition("NOTE two.wav\n\n")[0]
    both = transcribe(folder, "one.wav", "two.wav", *MODELS, "-f", "json").stdout
    assert [json.loads(line)["file"] for line in both.splitlines()] == ["one.wav", "two.wav"]


def test_an_interrupted_sound_goes_on_where_it_stopped(folder, monkeypatch):
    arguments = ("one.wav", "two.wav", *MODELS, "--word-timestamps", "-f", "all", "-o")
    whole = transcribe(folder, *arguments, "whole", "--verbose")
    heard = []

    def interrupted(self, index, *window):
        heard.append(index)
        if heard.count(1) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(apps.cli.transcripts.AudioFiles, "show", interrupted)
        stopped = transcribe(folder, *arguments, "halved", "--batch-size", "1")
    assert stopped.returncode == 130 and "interrupted" in stopped.stderr
    (part,) = (folder / "halved").glob(".*.journal")
    part.write_bytes(part.read_bytes()[:-5])  # as if the process had been killed
    assert {path.stem for path in (folder / "halved").glob("*.*")} == {"one", part.stem}
    done = transcribe(folder, *arguments, "halved", "--resume", "--verbose")
    assert done.returncode == 0 and "1 of 2 files were transcribed before" in done.stderr
    for path in (folder / "whole").iterdir():
        text = (folder / "halved" / path.name).read_text()
        written = path.read_text()
        assert rounded(text) == rounded(written) if path.suffix == ".json" else text == written
    assert len(list((folder / "halved").iterdir())) == 2 * len(FORMATS)
    tokens = [int(re.search(r"(\d+) tokens in", run.stderr)[1]) for run in (whole, done)]
    assert tokens[1] < tokens[0]


def test_no_transcript_is_replaced_unless_the_user_says_so(folder):
    arguments = ("one.wav", *MODELS, "-o", "there", "-f")
    assert transcribe(folder, *arguments, "srt").returncode == 0
    kept = folder / "there" / "one.srt"
    kept.write_text("corrected")
    refused = transcribe(folder, *arguments, "all")
    assert refused.returncode == 1 and "one.srt already exists; --force repl" in refused.stderr
    for formats, count in (("all", len(FORMATS)), ("txt", len(FORMATS))):
        done = transcribe(folder, *arguments, formats, "--resume")
        assert done.returncode == 0 and kept.read_text() == "corrected"
        assert len(list((folder / "there").iterdir())) == count
    assert done.stderr == "1 of 1 files were transcribed before\n"
    transcribe(folder, *arguments, "srt", "--force")
    assert "-->" in kept.read_text()


def test_files_that_cannot_be_written_show_before_any_is_transcribed(folder):
    long = "x" * 251 + ".wav"
    write_wav(folder / long, 0.5)
    (folder / "out.srt" / "n.srt").mkdir(parents=True)
    for arguments in ((long, "-f", "json", "-o", "late"), ("one.wav", "-o", "one.wav")):
        refused = transcribe(folder, "two.wav", *arguments, "--model", "none that is loaded")
        assert refused.returncode == 1 and refused.stderr.count("\n") == 1
        assert re.search("File name too long|File exists", refused.stderr)
    assert not list((folder / "late").iterdir())


def test_subtitles_lie_beside_their_films_with_their_languages(folder):
    films = [folder / "films" / name for name in ("A [1].wav", "b/B.wav")]
    for film in films:
        film.parent.mkdir(exist_ok=True)
        film.write_bytes((folder / "one.wav").read_bytes())
    arguments = *films, *MODELS, "-f", "srt", "-o", "{folder}", "--output-name"
    transcribe(folder, *arguments, "{name}.{language}.srt")  # an ending that is the format's
    code = json.loads(transcribe(folder, films[0], *MODELS, "-f", "json").stdout)["language"]
    assert all("-->" in film.with_suffix(f".{code}.srt").read_text() for film in films)
    again = *arguments, "{name}.{language}"
    refused = transcribe(folder, *again, "--model", "none that is loaded").stderr
    assert f"A [1].{code}.srt already exists" in refused
    films[1].with_suffix(f".{code}.srt").unlink()
    assert "1 of 2 files were transcribed before" in transcribe(folder, *again, "--resume").stderr
    for flags, language in ((("--language", "German"), "de"), (("--task", "translate"), "en")):
        transcribe(folder, *again, "--resume", *flags)
        assert all(film.with_suffix(f".{language}.srt").exists() for film in films)


def test_what_cannot_be_written_is_printed_and_the_others_go_on(folder, monkeypatch):
    move = Path.replace

    def failing(path, target):
        if target.name == "one.srt":
            raise OSError(errno.ENOSPC, "No space left on device")
        return move(path, target)

    monkeypatch.setattr(Path, "replace", failing)
    arguments = ("one.wav", "two.wav", *MODELS, "-f", "srt", "-o", "full")
    done = transcribe(folder, *arguments)
    assert done.returncode == 1 and [p.name for p in (folder / "full").iterdir()] == ["two.srt"]
    assert "full/one.srt: No space left on device; the transcript is printed instead" in done.stderr
    assert done.stdout == transcribe(folder, "one.wav", *MODELS, "-f", "srt").stdout


def test_an_output_that_has_come_into_being_or_is_a_folder_is_one_files_trouble(
    folder, monkeypatch
):
    write = Output.write

    def later(self, transcript, name):
        if Path(name).name == "one":
            (self.folder / "one.srt").write_text("somebody's")
        return write(self, transcript, name)

    monkeypatch.setattr(Output, "write", later)
    (folder / "meanwhile" / "two.srt").mkdir(parents=True)
    (folder / "three.wav").write_bytes((folder / "one.wav").read_bytes())
    done = transcribe(
        folder, "one.wav", "two.wav", "three.wav", *MODELS, "-f", "srt", "-o", "meanwhile"
    )
    assert done.returncode == 1 and done.stderr.count("the transcript is printed instead") == 2
    assert (
        "meanwhile/one.srt already exists" in done.stderr and "two.srt is not a file" in done.stderr
    )
    assert sorted(path.name for path in (folder / "meanwhile").iterdir()) == [
        *("one.srt", "three.srt", "two.srt")
    ]
    assert (folder / "meanwhile" / "one.srt").read_text() == "somebody's"
    assert done.stdout.startswith(transcribe(folder, "one.wav", *MODELS, "-f", "srt").stdout)


def test_flags_take_values_as_whisper_takes_them():
    given = "a.wav --no-condition-on-previous-text --word-timestamps --no-verbose --vad "
    given += "--logprob-threshold None --no-speech-threshold none b.wav --suppress-tokens -1 -- -c.wav --vad -"
    parsed = command.parse_args(given.split())
    assert parsed.audio == ["a.wav", "b.wav", "./-c.wav", "./--vad", "-"]
    assert not parsed.condition_on_previous_text and parsed.word_timestamps and parsed.vad
    assert parsed.suppress_tokens == (-1,)
    assert not parsed.verbose and parsed.logprob_threshold is parsed.no_speech_threshold is None
    parsed = command.parse_args(["a.wav", "--clip-timestamps", "2, 0:03.5,1:00,1:02:03"])
    assert parsed.clip_timestamps == (2, 3.5, 60, 3723)


@pytest.mark.parametrize(
    "name, code",
    [("zh-TW", "zh"), ("en_US", "en"), ("nb", "no"), ("Français", "fr"), ("sr-Latn", "sr")],
)
def test_languages_go_by_codes_of_locales_and_by_names(name, code):
    special = wm.special()
    codes = dict.fromkeys(("en", "fr", "no", "sr", "zh"), 0)
    assert replace(special, languages=codes).language_code(name) == code


@pytest.mark.parametrize(
    "arguments, error",
    [
        (["no.wav", *MODELS], "no.wav: No such file"),
        (["one.wav", "--model", "none"], "no model 'none'"),
        (["one.wav", *MODELS, "--language", "klingon"], "'klingon'; there are English (en), Ger"),
        (["one.wav", *MODELS, "--clip-timestamps", "5,1"], "each later than the one before"),
        (["one.wav", *MODELS, "--clip-timestamps", "a"], "clip_timestamps is 'a', not seconds"),
        (
            ["one.wav", "--output_dir", "o", "--fp16", "False", "--word_timestamps", "True"],
            "(did you mean --output-dir --word-timestamps?)",
        ),
        (
            ["one.wav", *MODELS, "--temperature", "2"],
            "temperature is 2.0, not a number from 0 to 1",
        ),
        (["one.wav", *MODELS, "-f", "all"], "--output-format all needs --output-dir"),
        (["one.wav", "a/one.mp3", *MODELS, "-o", "x"], "one.mp3 would both be x/one.txt"),
        (["one.wav", *MODELS, "--logprob-threshold", "nan"], "logprob_threshold is nan, not a"),
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
        (
            ["--output-name", "x", "--cue-gap", "0"],
            "--cue-gap has no effect with --output-format txt\n"
            "--output-name has no effect without --output-dir\n",
        ),
        (
            ["--cue-gap", "0", "-f", "srt", "-o", "gapless"],
            "--cue-gap has no effect without --subtitles\n",
        ),
        (["--max-line-width", "9"], "--max-line-width has no effect with --output-format txt\n"),
    ],
)
def test_a_flag_without_effect_is_told(folder, arguments, told):
    done = transcribe(folder, "one.wav", *MODELS, *arguments)
    assert (done.returncode, done.stderr) == (0, told)


def test_other_commands_say_where_speech_is(folder):
    done = call("--model", "target", "--prompt", "x", cwd=folder)
    assert done.returncode == 1 and "this model transcribes audio: use transcribe.py" in done.stderr


@pytest.mark.slow
def test_commands_start_without_standard_input():
    program = """
import sys; from contextlib import suppress; from runpy import run_path
assert sys.stdin is None
for name in "main translate transcribe distill convert serve benchmark".split():
    sys.argv = [name, "--help"]
    with suppress(SystemExit): run_path(f"{name}.py", run_name="__main__")"""
    line = ["sh", "-c", '"$@" 0<&-', "sh", sys.executable, "-c", program]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, check=True)
    assert b"Traceback" not in done.stderr and done.stdout.count(b"usage: ") == 7


def test_python_may_give_samples_of_any_type(folder):
    transcriber = Transcriber(folder / "target")
    noise = np.random.default_rng(5).normal(0, 3000, 20_000).astype(np.int16) // 256 * 256
    kinds = (
        noise / 32768,
        noise,
        noise.astype(np.int32) << 16,
        (noise // 256 + 128).astype(np.uint8),
    )
    options = TranscribeOptions(temperature=1.0, best_of=1)
    texts = [transcriber.transcribe(sound, options).text for sound in kinds]
    assert len(set(texts)) == 1 and texts[0]
