"""Words' times beside transformers' attentions and OpenAI's rules, subtitles made of them, and the voice detector."""

import json
from dataclasses import replace
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers import whisper_models as wm
from helpers.programs import DEMO, call
from transformers.models.whisper import generation_whisper as theirs

import apps.speech.pipeline
import apps.speech.transcriber
from apps.speech.audio import RATE, read
from apps.speech.call import joined
from apps.speech.captions import captions
from apps.speech.features import HOP, log_mel
from apps.speech.formats import FORMATS
from apps.speech.options import Layout, TranscribeOptions
from apps.speech.segments import Segment, Transcript, Word
from apps.speech.timeline import with_speech
from apps.speech.transcriber import Transcriber
from apps.speech.voice import first_speech, last_pause, probabilities
from apps.speech.words import (
    _median_filtered,
    _whole_words,
    first_columns,
    place_words,
    split,
    timed_words,
)
from speculative.models.conversion import convert
from speculative.text.lines import columns, wrap

NEVER = dict(
    compression_ratio_threshold=None, logprob_threshold=None, no_speech_threshold=None
)  # is a text decoded twice


def their_columns(gain):
    rows, columns = theirs._dynamic_time_warping(-gain)
    return columns[np.diff(rows, prepend=-1) > 0]


def test_paths_are_openais_where_sums_are_equal():
    rng = np.random.default_rng(0)
    for _ in range(500):
        gain = rng.integers(-2, 3, rng.integers(1, 8, 2)).astype(float)
        assert first_columns(gain).tolist() == their_columns(gain).tolist()


def test_medians_are_of_seven_mirrored():
    for size in (1, 3, 4, 5, 30):
        x = np.random.default_rng(size).normal(size=(2, 3, size)).astype(np.float32)
        near = np.pad(x, [(0, 0), (0, 0), (3, 3)], "reflect") if size > 3 else x
        width = 7 if size > 3 else 1
        expected = np.median(np.lib.stride_tricks.sliding_window_view(near, width, -1), -1)
        assert np.array_equal(np.array(_median_filtered(mx.array(x))), expected)


@pytest.mark.parametrize(
    "text, spaces, words",
    [
        (" Hello, it's  fünf", True, [" Hello", ",", " it", "'s", " ", " fünf"]),
        ("你好。ab", True, ["你好。ab"]),  # no mark of ASCII
        ("你好 a🙂", False, ["你", "好", " ", "a", "🙂"]),
        ("", True, []),
    ],
)
def test_words_are_whole_characters(text, spaces, words):
    tokenizer = wm.tokenizer()  # one token a byte
    pieces = list(split(tokenizer.encode(text).ids, tokenizer.decode, spaces))
    assert pieces == [(word, len(word.encode())) for word in words]


def test_bytes_that_are_no_character_are_a_word_of_their_own():
    tokenizer = wm.tokenizer()
    a, half, b = (tokenizer.encode(text).ids for text in (" a", "ü", "b"))
    pieces = list(split([*a, half[0], *b], tokenizer.decode, False))
    assert pieces == [(" ", 1), ("a", 1), ("\ufffd", 1), ("b", 1)]
    unfinished = tokenizer.encode("🙂").ids[:3]
    assert sum(count for _, count in split([*a, *unfinished], tokenizer.decode, False)) == 5


def words(*given, probability=0.9):
    """Of (text, start, end), with a token for each."""
    return [Word(text, start, end, probability, 1) for text, start, end in given]


def times(words):
    return [(word.word, word.start, word.end) for word in words]


def segment(start, end, own=None, count=0, seek=0, text=""):
    fields = dict(temperature=0.0, avg_logprob=-0.1, compression_ratio=1.0)
    own = None if own is None else tuple(own)
    return Segment(0, seek, start, end, text, [7] * count, words=own, **fields)


def test_a_word_has_its_tokens_times_and_their_mean_probability():
    weights = np.repeat(2 * np.eye(4) - 1, [3, 2, 5, 1], axis=1)
    timed = timed_words([(" a", 2), (" b", 1)], weights, np.array([0.5, 1, 0.2]))
    assert timed == [Word(" a", 0, 0.1, 0.75, 2), Word(" b", 0.1, 0.2, 0.2, 1)]


def test_marks_join_words_and_have_no_time():
    separate = words(
        (" ¿", 0, 1),
        (" (", 1, 2),
        (" a", 2, 3),
        (")", 3, 4),
        (".", 4, 5),
        (" -", 5, 6),
        ("b", 6, 7),
    )
    joined = [*_whole_words(separate)]
    assert times(joined) == [(" ¿ ( a).", 2, 3), (" -b", 6, 7)]
    assert [word.tokens for word in joined] == [5, 2]


@pytest.mark.parametrize(
    "text, spaces",
    [
        (" forty-eight.| d'avoir| 3.5%| $1,000| 10:30| U.S.", True),
        (" Bonjour !| « Ça| va » ?| 3,5 %| ist –| gut.| - Ja.| - Nein", True),  # noqa: RUF001
        ("你|好，|「世|界」。|API| 3.5%| 的", False),  # noqa: RUF001
        ("แล้|ว|เมื่|อ", False),  # no vowel without its consonant
    ],
)
def test_no_word_begins_without_a_space_where_words_have_them(text, spaces):
    tokenizer = wm.tokenizer()
    pieces = split(tokenizer.encode(text.replace("|", "")).ids, tokenizer.decode, spaces)
    whole = _whole_words(words(*((piece, i, i + 1) for i, (piece, _) in enumerate(pieces))))
    assert [word.word for word in whole] == text.split("|")


USUAL = [(f" {i}", 10 + i / 5, 10.2 + i / 5) for i in range(9)]  # words of 0.2 s


@pytest.mark.parametrize(
    "spoken, bounds, last, expected, moved",
    [
        ([(" a", 1, 1.2), (" b", 1.2, 1.4)], (0.9, 1.5), 0, None, (1, 1.4)),
        # a pause is in a mark, or in the word after one
        ([(" a", 1, 1.2), (".", 1.2, 3), (" b", 3, 3.2)], (1, 3.2), 1, [(" a.", 1, 1.2), (" b", 3, 3.2)], (1, 3.2)),
        ([(" a", 1, 1.2), (".", 1.2, 1.3), (" b", 1.3, 3)], (1, 3), 1, [(" a.", 1, 1.2), (" b", 2.6, 3)], (1, 3)),
        # the first word after a pause, and the second
        ([(" a", 1, 3), (" b", 3, 3.2)], (1, 3.2), 0, [(" a", 2.6, 3), (" b", 3, 3.2)], (2.6, 3.2)),
        ([(" a", 1, 1.2), (" b", 1.2, 4)], (1, 4), 0.1, [(" a", 3.2, 3.6), (" b", 3.6, 4)], (3.2, 4)),
        ([(" a", 1, 3), (" b", 3, 3.2)], (1, 3.2), 2.5, None, (1, 3.2)),  # no pause before
        # the segment's own ends where a word goes far beyond them
        ([(" a", 1, 2), (" b", 2, 2.2)], (1.6, 2.2), 1.9, [(" a", 1.6, 2), (" b", 2, 2.2)], (1.6, 2.2)),
        ([(" a", 1, 1.2), (" b", 1.2, 2)], (1, 1.45), 1, [(" a", 1, 1.2), (" b", 1.2, 1.45)], (1, 1.45)),
    ],
)  # fmt: skip
def test_words_and_segments_are_moved_as_openais(spoken, bounds, last, expected, moved):
    given = [segment(*bounds, count=len(spoken)), segment(10, 12, count=len(USUAL))]
    first, rest = place_words(given, words(*spoken, *USUAL), (9).__gt__, last=last)
    assert times(first.words) == [(w, pytest.approx(a), pytest.approx(b)) for w, a, b in expected or spoken]  # fmt: skip
    assert (first.start, first.end) == pytest.approx(moved)
    assert [word.word for word in rest.words] == [word for word, *_ in USUAL]


@pytest.mark.parametrize("end, ends", [(13, 12), (11.9, 11.9), (11, 11.8)])
def test_a_last_word_without_length_gets_a_usual_one_within_its_segment(end, ends):
    (timed,) = place_words(
        [segment(10, end, count=10)], words(*USUAL, (" b", 11.8, 11.8)), (9).__gt__, last=0
    )
    assert (timed.words[-1].end, timed.end) == (ends, ends)


def test_times_are_the_sounds_not_the_windows():
    given = [segment(30, 31, count=1, seek=3000), segment(31, 32, seek=3000)]
    with_words, empty = place_words(given, words((" a", 0.2, 0.4)), (9).__gt__, last=30)
    assert times(with_words.words) == [(" a", 30.2, 30.4)] and empty == replace(given[1], words=())


# ---------------------------------------------------------------------------------------------
# A model's words


def sound(frames, seed=0):
    noise = np.random.default_rng(seed).normal(0, 0.1, frames * HOP)
    return noise.astype(np.float32)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A target of transformers', ours, a draft with its encoder and one with its own."""
    folder = tmp_path_factory.mktemp("whisper")
    target = wm.reference_model(max_target_positions=64)
    ours = wm.converted(target, folder / "target")
    shared = wm.converted(wm.disturbed(target, 0.03, "model.decoder"), folder / "shared")
    return target, ours, shared, wm.converted(wm.disturbed(target, 0.03), folder / "own")


@pytest.fixture
def voice(monkeypatch):
    """A detector that hears a pause of 0.2 s in every 0.5 s."""

    def chances(samples):
        return np.where(np.arange(len(samples) // HOP) % 50 < 30, 0.9, 0.1)

    monkeypatch.setattr(apps.speech.transcriber, "probabilities", chances)


def their_times(reference, features, text, heads, positions):
    """When each token and the end begin, in seconds, and the probability of each."""
    prefix = [wm.IDS[name] for name in ("startoftranscript", "de", "transcribe", "notimestamps")]
    tokens = torch.tensor([[*prefix, *text, wm.END]])
    padded = np.zeros((2 * wm.POSITIONS, features.shape[1]), np.float32)
    padded[: len(features)] = features
    reference.set_attn_implementation("eager")
    with torch.no_grad():
        output = reference(
            torch.tensor(padded.T[None]), decoder_input_ids=tokens, output_attentions=True
        )
    weights = torch.stack([output.cross_attentions[i][0, head] for i, head in heads])
    weights = weights[..., :positions] / weights[..., :positions].sum(-1, keepdim=True)
    std, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    matrix = theirs._median_filter((weights - mean)[None] / std, 7)[0].mean(0)
    chances = output.logits[0, 3:-2, : wm.END].softmax(-1)[torch.arange(len(text)), text]
    return 0.02 * their_columns(matrix[3:-1].double().numpy()), chances.numpy()


@pytest.mark.parametrize("heads", [(), ((0, 1), (1, 0))], ids=["upper layers", "given heads"])
def test_times_are_those_of_transformers_attentions(models, monkeypatch, heads):
    reference, ours, *_ = models
    transcriber, windows = Transcriber(ours), []
    transcriber.special = replace(transcriber.special, alignment_heads=heads)

    def noted(segments, words, *about):
        windows.append((segments, [replace(word) for word in words]))
        return place_words(segments, words, *about)

    monkeypatch.setattr(apps.speech.pipeline, "place_words", noted)
    options = TranscribeOptions("de", word_timestamps=True, **NEVER)
    for frames in (45, 170):  # less than one window, and several
        transcriber.transcribe(sound(frames, frames), options)
        features = log_mel(sound(frames, frames), wm.SHAPE["num_mel_bins"])
        for segments, words in windows:
            seek = segments[0].seek
            text = [token for part in segments for token in part.tokens if token < wm.END]
            here = features[seek : seek + 60]
            given = reference, here, text, heads or ((1, 0), (1, 1)), len(here) // 2
            begins, chances = their_times(*given)
            at = np.cumsum([0, *(word.tokens for word in words)])
            assert at[-1] == len(text) > 0
            assert [word.start for word in words] == pytest.approx(begins[at[:-1]], abs=0.02)
            assert [word.end for word in words] == pytest.approx(begins[at[1:]], abs=0.02)
            means = [chances[a:b].mean() for a, b in pairwise(at)]
            assert [word.probability for word in words] == pytest.approx(means, rel=1e-3)
        assert len(windows) > (frames > 60)
        windows.clear()


def spoken(transcript):
    return [(s.tokens, s.start, s.end, times(s.words or ())) for s in transcript.segments]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, dict(vad=True, batched=True)],
    ids=["plain", "batched"],
)
def test_drafted_words_are_plain_ones(models, voice, cpu, changes):
    _, ours, shared, own = models
    options = TranscribeOptions("de", word_timestamps=True, num_draft=0, **NEVER | changes)
    plain = spoken(Transcriber(ours).transcribe(sound(110), options))
    assert sum(len(words) for *_, words in plain) > 0
    for draft, num_draft in ((None, 3), (shared, 5), (own, 3)):
        transcriber = Transcriber(ours, draft)
        transcript = transcriber.transcribe(sound(110), replace(options, num_draft=num_draft))
        assert spoken(transcript) == plain and (draft is None or transcript.stats.draft_tokens)


def tokens(transcript):
    return [s.tokens for s in transcript.segments]


@pytest.mark.parametrize("options", [{}, dict(vad=True), dict(vad=True, batched=True)])
def test_words_change_no_text(models, voice, cpu, options):
    options = TranscribeOptions("de", **NEVER | options)
    plain = Transcriber(models[1]).transcribe(sound(170), options)
    timed = Transcriber(models[1]).transcribe(sound(170), replace(options, word_timestamps=True))
    assert timed.text == plain.text
    assert plain.segments[0].words is None and timed.segments[0].words


def test_batched_windows_end_at_pauses_and_know_nothing_of_each_other(models, voice, cpu):
    transcriber = Transcriber(models[1])
    options = TranscribeOptions("de", vad=True, batched=True, **NEVER)
    both = transcriber.transcribe(sound(170), options)
    assert sorted({s.seek for s in both.segments}) == [0, 41, 91, 141]
    alone = [
        transcriber.transcribe(sound(170), replace(options, clip_timestamps=clip))
        for clip in ((0, 0.41), (0.41, 0.91), (0.91, 1.41), (1.41,))
    ]
    assert tokens(both) == [text for one in alone for text in tokens(one)]


# ---------------------------------------------------------------------------------------------
# The voice detector

CLIPS = json.loads((DEMO / "speech" / "clips.json").read_text(encoding="utf-8"))


def test_nothing_is_read_of_silence(models):
    chances = probabilities(np.zeros(5 * RATE, np.float32))
    assert len(chances) == 500 and not with_speech(chances).any()
    silence = np.zeros(5 * RATE, np.float32)
    steps = Transcriber(models[1]).task(silence, TranscribeOptions(vad=True))
    with pytest.raises(StopIteration) as end:  # nothing is decoded
        next(steps)
    assert end.value.value.segments == ()
    assert len(probabilities(silence[:0])) == 0


@pytest.mark.parametrize("name", CLIPS)
def test_what_is_said_in_the_clips_is_speech(name):
    samples = np.pad(read(str(DEMO / "speech" / name)), 5 * RATE)
    transcribed = with_speech(probabilities(samples))
    for part in CLIPS[name]["segments"]:
        start, end = (round(100 * part[bound]) + 500 for bound in ("start", "end"))
        assert transcribed[start:end].all()
    assert not transcribed[:450].any() and not transcribed[-450:].any()


def test_parts_have_margins_and_short_pauses_are_read():
    chances = np.full(1000, 0.1)
    chances[100:150] = chances[300:310] = chances[700:720] = 0.6
    chances[720:730] = chances[900:] = 0.4  # goes on, but does not begin
    transcribed = np.flatnonzero(np.diff(with_speech(chances))) + 1
    assert transcribed.tolist() == [60, 350, 660, 770]
    assert last_pause(chances[:315]) == 291 and last_pause(np.linspace(1, 0.5, 50)) == 49


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "target"
    convert(str(DEMO / "speech" / "target"), folder, dtype="float32")
    return Transcriber(folder)


def with_gaps(*plan):
    """The sound of clips and seconds of silence between them, and when each clip's segments begin and end."""
    sounds = []
    spans = []
    for part in plan:
        before = sum(map(len, sounds)) / RATE
        if isinstance(part, str):
            sounds.append(read(str(DEMO / "speech" / part)))
            spans += [(before + s["start"], before + s["end"]) for s in CLIPS[part]["segments"]]
        else:
            sounds.append(np.zeros(round(part * RATE), np.float32))
    return np.concatenate(sounds), spans


LATE = 20, "story.wav", 6, "sentence.wav"
GAPS = "sentence.wav", 10, "sentence.wav", 9, "sentence.wav"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "options", "timed"),
    [
        (GAPS, {}, True),
        (GAPS, dict(vad=True), False),
        (GAPS, dict(vad=True, batched=True), True),
        (LATE, {}, False),
        (LATE, dict(vad=True), True),
        (LATE, dict(vad=True, batched=True), False),
    ],
)
def test_times_are_the_sounds_whatever_silence_is_in_it(demo, plan, options, timed):
    samples, spans = with_gaps(*plan)
    transcript = demo.transcribe(samples, TranscribeOptions(word_timestamps=timed, **options))
    assert len(transcript.segments) == len(spans)
    for segment, span in zip(transcript.segments, spans, strict=True):
        assert (segment.start, segment.end) == pytest.approx(span, abs=0.3)
        assert bool(segment.words) == timed
        if timed:
            assert segment.start == segment.words[0].start < segment.words[-1].end == segment.end


@pytest.mark.slow
def test_the_language_is_that_of_the_first_speech(demo):
    samples, _ = with_gaps(12, "german.wav")
    assert demo.transcribe(samples, TranscribeOptions()).language == "de"
    silent = np.zeros(30 * RATE, np.float32)
    silent[20 * RATE :] = 0.1
    assert first_speech(silent) == 0 and first_speech(samples) // 100 == 12


# ---------------------------------------------------------------------------------------------
# Subtitles

SEGMENTS = (
    segment(1, 3, words((" One", 1, 1.5), (" two,", 1.5, 2), (" three", 2.5, 3)), text=" One two, three"),
    segment(8, 9, words((" four", 8, 8.5), (" five.", 8.5, 9)), text=" four five."),
)  # fmt: skip
SAID = Transcript(" One two, three four five.", SEGMENTS, "en", 10.0)


WHOLE = "1.0-3.0 One two, three", "8.0-9.0 four five."
NARROW = "1.0-3.0 One two,|three", "8.0-9.0 four|five."
PAIRS = "1.0-2.0 One two,", "2.5-3.5 three", "8.0-9.0 four five."


@pytest.mark.parametrize(
    "layout, expected",
    [
        ({}, WHOLE),
        (dict(max_line_width=9), NARROW),
        (dict(max_line_width=7), ("1.0-3.0 One|two,|three", NARROW[1])),
        (dict(max_words_per_line=2), PAIRS),
    ],
)
def test_cues_are_segments_or_made_of_words(layout, expected):
    vtt, srt = "WEBVTT\n\n", ""
    for i, cue in enumerate(expected, 1):
        bounds, _, text = cue.replace("|", "\n").partition(" ")
        start, end = (f"00:0{bound}00" for bound in bounds.split("-"))
        vtt += f"{start} --> {end}\n{text}\n\n"
        srt += f"{i}\n00:{start} --> 00:{end}".replace(".", ",") + f"\n{text}\n\n"
    assert FORMATS["vtt"](SAID, Layout(**layout)) == vtt
    assert FORMATS["srt"](SAID, Layout(**layout)) == srt


def test_a_width_needs_no_words():
    bare = replace(SAID, segments=tuple(replace(each, words=None) for each in SEGMENTS))
    assert FORMATS["vtt"](bare, Layout(max_line_width=9)) == (
        "WEBVTT\n\n00:01.000 --> 00:03.000\nOne two,\nthree\n\n"
        "00:08.000 --> 00:09.000\nfour\nfive.\n\n"
    )


def test_lines_are_of_columns():
    text = "今天我们来讨论人工智能的发展历史，「机器学习」。"  # noqa: RUF001
    said = words(*((character, i, i + 1) for i, character in enumerate(text)))
    spoken = Transcript(text, (segment(0, 24, said, text=text),), "zh", 24.0)
    cues = FORMATS["srt"](spoken, Layout(max_line_width=12, subtitles=True)).split("\n\n")
    lines = [line for cue in cues for line in cue.split("\n")[2:] if line]
    assert "".join(lines) == text and max(map(columns, lines)) <= 12
    assert not any(line[0] in "，」。" or line[-1] == "「" for line in lines)  # noqa: RUF001
    assert columns("नमस्ते") == 4 and wrap("Ça va ? Oui !", 7) == ["Ça va ?", "Oui !"]


# ---------------------------------------------------------------------------------------------
# Calls


def test_captions_of_all_speakers_are_in_order_with_names_where_speakers_change():
    a, b = words((" a", 0, 1), (" b", 2, 3), (" c.", 4, 5)), words((" d", 1, 2), (" e", 3, 6))
    spoken = [replace(segment(0, 5, a, text=" a b c."), speaker="A")]
    spoken += [replace(segment(1, 6, b, text=" d e"), speaker="B")]
    cues = [(start, text) for start, _, text in captions(spoken, Layout(max_words_per_line=1), 6)]
    assert cues == [(0, "A: a"), (1, "B: d"), (2, "A: b"), (3, "B: e"), (4, "A: c.")]


@pytest.mark.parametrize("gain", [1, 0.7, 0.12])
def test_what_a_channel_hears_of_another_is_written_once(gain):
    one, other = (np.repeat(each, RATE) for each in ([1.0, 0, 0], [0, 0, 0.5]))
    channels = np.stack([one + gain * other, other + gain * one])
    texts = (" How are you?", 0, 1), (" Fine, thanks.", 2, 3)
    heard = tuple(segment(start, end, text=text) for text, start, end in texts)
    first, second = (replace(SAID, segments=heard, language=code) for code in ("en", "de"))
    call = joined([first, second], ["A", "B"], channels)
    assert [(s.speaker, s.id) for s in call.segments] == [("A", 0), ("B" if gain < 1 else "A", 1)]
    mute = joined([replace(first, segments=()), second], ["A", "B"], channels)
    assert mute.language == "de" and len(mute.segments) == 2
    assert joined([replace(first, segments=())], ["A"], channels).text == ""


def test_languages_are_detected_with_silence_behind_the_sound(models):
    pipeline = Transcriber(models[1])._pipeline(TranscribeOptions(), False)
    bins = wm.SHAPE["num_mel_bins"]
    (row,) = next(pipeline.detect(pipeline.window(log_mel(sound(20), bins))))
    whole = log_mel(np.pad(sound(20), (0, 40 * HOP)), bins)
    assert row.prompt.features[22:] == pytest.approx(whole[22:], abs=1e-5)


def test_batched_windows_need_pauses(tmp_path):
    done = call("x.wav", "--batched", cwd=tmp_path, script="transcribe.py")
    assert done.returncode in (1, 2) and "batched needs vad" in done.stderr
