"""Transcripts: the long form beside transformers', with drafts and without, and at which temperatures a window is decoded."""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import whisper_models as wm

import apps.speech.timeline
import apps.speech.transcriber
from apps.speech.audio import RATE
from apps.speech.features import HOP
from apps.speech.options import TranscribeOptions
from apps.speech.pipeline import Pipeline
from apps.speech.rules import Special
from apps.speech.transcriber import Sound, Transcriber
from speculative.models.whisper import Encoder
from speculative.step.driver import result_of
from speculative.step.row import Stats

BINS = wm.SHAPE["num_mel_bins"]
MOST = 40  # tokens of a window's text
NEVER = dict(
    compression_ratio_threshold=None, logprob_threshold=None, no_speech_threshold=None
)  # is a text decoded twice


def sound(frames, seed):
    """Samples, whose features are the noise that `noise` makes of their number."""
    return np.full(frames * HOP, seed, np.float32)


@pytest.fixture(autouse=True)
def noise(monkeypatch):
    def log_mel(samples, bins):
        rng = np.random.default_rng(int(samples[0]))
        return rng.normal(0, 1, (len(samples) // HOP, bins)).astype(np.float32)

    monkeypatch.setattr(apps.speech.transcriber, "log_mel", log_mel)
    monkeypatch.setattr(apps.speech.timeline, "_QUIET", np.inf)  # all of it is heard
    options = Special.options

    def short(self, **given):
        return options(self, **given | ({"max_tokens": MOST} if "temp" in given else {}))

    monkeypatch.setattr(Special, "options", short)
    return log_mel


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A target of transformers', ours, a draft with its encoder and one with its own."""
    folder = tmp_path_factory.mktemp("whisper")
    shape = dict(max_target_positions=128)
    target = wm.reference_model(**shape)
    ours = wm.converted(target, folder / "target")
    shared = wm.converted(wm.disturbed(target, 0.03, "model.decoder"), folder / "shared")
    own = wm.converted(wm.disturbed(target, 0.03), folder / "own")
    return target, ours, shared, own


def their_segments(reference, samples, noise, condition):
    features = torch.tensor(noise(samples, BINS).T[None])
    with torch.no_grad():
        output = reference.generate(
            features,
            attention_mask=torch.ones(1, features.shape[-1]),
            language="de",
            task="transcribe",
            return_timestamps=True,
            return_segments=True,
            condition_on_prev_tokens=condition,
            max_new_tokens=MOST,
            temperature=0.0,
        )
    return output["segments"][0]


@pytest.mark.parametrize("condition", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_long_form_is_transformers_own(models, noise, condition):
    reference, ours, *_ = models
    transcriber = Transcriber(ours)
    options = TranscribeOptions("de", condition_on_previous_text=condition, **NEVER)
    for seed in (0, 2):
        samples = sound(60 + 77 * seed, seed)
        segments = transcriber.transcribe(samples, options).segments
        expected = their_segments(reference, samples, noise, condition)
        assert len(segments) == len(expected) > 0
        for mine, theirs in zip(segments, expected, strict=True):
            tokens = theirs["tokens"].tolist()
            assert mine.tokens == tokens[: len(mine.tokens)] and len(tokens) - len(mine.tokens) < 2
            end = len(samples) / RATE  # transformers' segments go on behind it
            assert mine.end == pytest.approx(min(float(theirs["end"]), end))
            assert mine.start == pytest.approx(min(float(theirs["start"]), end), abs=0.1)


def transcribed(transcriber, options, batch_size=1, count=2):
    """The transcripts of some sounds, as far as texts go, and what they took."""
    sounds = [transcriber.task(sound(60 + 50 * i, i), options) for i in range(count)]
    transcripts = dict(transcriber.transcribe_all(sounds, options, batch_size))
    texts = [
        [(s.tokens, s.start, s.temperature) for s in transcripts[i].segments] for i in range(count)
    ]
    return texts, sum((transcripts[i].stats for i in range(count)), Stats())


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [NEVER, dict(best_of=2, temperature=0.8)], ids=["greedy", "several temperatures"]
)
def test_drafted_transcripts_are_plain_ones(models, changes):
    _, ours, shared, own = models
    plain, _ = transcribed(Transcriber(ours), TranscribeOptions(num_draft=0, **changes))
    partial = cut = 0
    for draft, num_draft, batch_size in ((None, 7, 3), (shared, 3, 1), (own, 7, 3)):
        options = TranscribeOptions(num_draft=num_draft, **changes)
        texts, stats = transcribed(Transcriber(ours, draft), options, batch_size)
        assert texts == plain
        steps = stats.accepted_lengths
        partial += sum(n for length, n in steps.items() if 0 < length < 3)
        cut += draft is None and stats.draft_tokens > 0
    assert partial > 12 and cut  # the last window's tail has been drafted
    temperatures = {temperature for text in plain for *_, temperature in text}
    assert temperatures == ({0.0} if changes is NEVER else temperatures - {0.0})


def test_a_window_is_encoded_once(models, monkeypatch):
    _, ours, shared, own = models
    encoded, call = [], Encoder.__call__
    monkeypatch.setattr(
        Encoder, "__call__", lambda self, x: encoded.append((self, len(x))) or call(self, x)
    )
    for draft, encoders in ((shared, 1), (own, 2)):
        transcriber = Transcriber(ours, draft)
        encoded.clear()
        windows = []
        options = TranscribeOptions(temperature=0.6, best_of=2, num_draft=3, no_speech_probs=True)
        task = transcriber.task(sound(80, 3), options, lambda *heard: windows.append(heard))  # noqa: B023
        result_of(transcriber.transcribe_all([task], options, 1))
        counts = Counter()
        for each, count in encoded:
            counts[id(each)] += count
        assert list(counts.values()) == [len(windows)] * encoders and len(windows) > 1


def test_rows_can_be_decoded_when_nobody_waits_for_their_transcript(models):
    """A server's client may go away before the draft model has read its window."""
    _, ours, _, own = models
    transcriber = Transcriber(ours, own)
    steps = transcriber.task(sound(60, 1), TranscribeOptions("de"))
    (row,) = next(steps)
    with transcriber.decoder.running(transcriber.special.options(num_draft=3)) as driver:
        driver.admit([row])
        steps.close()
        while not row.finish_reason:
            driver.advance()
    assert row.stats.draft_tokens


# ---------------------------------------------------------------------------------------------
# What a window is tried for: a scripted model


class Script:
    """Answers rows in a model's place: a window's text and the log-probability of its tokens, by temperature; and how
    probable silence is."""

    def __init__(self, texts, silence=0.0, frames=60, **options):
        self.texts, self.silence, self.rows = texts, silence, []
        model = SimpleNamespace(config=CONFIG)
        options = TranscribeOptions("en", **options)
        pipeline = Pipeline(model, wm.tokenizer(), wm.special(), options, leaves_rest=True)
        self.made = Sound(pipeline, sound(frames, 1))

    def play(self):
        steps = self.made.steps()
        try:
            while True:
                for row in next(steps):
                    self.answer(row)
        except StopIteration as end:
            return end.value

    def answer(self, row):
        if row.options.max_tokens == 1:
            tokens, logprob = [wm.IDS["nospeech"]], math.log(self.silence or 1e-9)
        else:
            self.rows.append(row)
            text, logprob = self.texts[min(round(5 * row.options.temp), len(self.texts) - 1)]
            tokens = [*wm.tokenizer().encode(text).ids, wm.END]
        row.tokens += tokens
        row.origins += ["target"] * len(tokens)
        row.logprobs += [logprob] * len(tokens)
        row.finish_reason = "stop"


def test_what_is_carried_begins_the_prompt_of_every_window():
    given = dict(initial_prompt="names", hotwords="hot", condition_on_previous_text=False)
    text = "<|0.00|> said <|0.20|><|0.20|> x"
    for carry, later in ((False, " hot"), (True, " hot names")):
        script = Script([(text, -0.1)], carry_initial_prompt=carry, **given)
        script.play()
        first, *others = (row.tokens[1 : row.prefix_size - 3] for row in script.rows)
        assert wm.tokenizer().decode(first) == " hot names"
        assert {wm.tokenizer().decode(prompt) for prompt in others} == {later}


@pytest.mark.parametrize(
    "given, suppressed", [((-1,), {7, 8, 9}), ((), set()), ((5,), {5}), ((-1, 5), {5, 7, 8, 9})]
)
def test_tokens_are_suppressed_beside_the_special_ones(given, suppressed):
    script = Script([(FINE, -0.1)], suppress_tokens=given)
    script.play()
    assert {id for id in script.rows[0].options.suppress_tokens if id < wm.END} == suppressed
    assert script.rows[0].options.suppress_tokens[-1] > wm.END


CONFIG = SimpleNamespace(
    num_mel_bins=BINS, frames=60, max_positions=128, vocab_size=wm.VOCAB, eos_token_ids=(wm.END,)
)
FINE, LOOP = "<|0.00|> said well.<|0.40|>", f"<|0.00|>{' ha' * 30}<|0.40|>"


@pytest.mark.parametrize(
    "texts, silence, options, tried, temperature",
    [
        ([(FINE, -0.5)], 0.9, {}, [0], 0),  # sure: nobody asks whether it is silence
        ([(FINE, -1.0)], 0.5, {}, [0], 0),  # the threshold itself is no failure
        ([(FINE, -1.01), (FINE, -0.1)], 0.5, {}, [0, 0.2, 0.2], 0.2),
        ([(LOOP, -0.5), (LOOP, -0.5), (FINE, -0.2)], 0.5, {}, [0, 0.2, 0.2, 0.4, 0.4], 0.4),
        ([(LOOP, -0.5)], 0.5, {"compression_ratio_threshold": None}, [0], 0),
        ([(FINE, -3.0)], 0.5, {"logprob_threshold": None}, [0], 0),
        ([(FINE, -3.0)], 0.5, {}, [0, *[0.2, 0.4, 0.6, 0.8, 1] * 2], 1),
        ([(FINE, -3.0)], 0.7, {}, [0], None),  # silence
        ([(FINE, -1.0)], 0.7, {}, [0], None),
        ([(FINE, -3.0)], 0.6, {}, [0, *[0.2, 0.4, 0.6, 0.8, 1] * 2], 1),
        (
            [(FINE, -3.0)],
            0.7,
            {"no_speech_threshold": None, "temperature": 0.8},
            [0.8, 0.8, 1, 1],
            1,
        ),
    ],
)
def test_a_text_that_fails_is_tried_again(texts, silence, options, tried, temperature):
    script = Script(texts, silence, best_of=2, **options)
    transcript = script.play()
    segments = transcript.segments
    assert transcript.stats.prompt_tokens == 1  # a window, however often it is tried
    assert sorted(row.options.temp for row in script.rows) == pytest.approx(sorted(tried))
    assert [s.temperature for s in segments] == (
        [] if temperature is None else [pytest.approx(temperature)]
    )
    if len(tried) > 1:  # the text before drafts the next
        assert script.rows[-1].reference and not script.rows[0].reference


def test_what_a_window_goes_on_from():
    script = Script([(FINE, -0.5)], initial_prompt="Names: Zoë", frames=180)  # three windows
    assert len(script.play().segments) == 3
    before = [row.tokens[: row.prefix_size] for row in script.rows]
    prompt, earlier = (wm.tokenizer().encode(text).ids for text in (" Names: Zoë", FINE))
    steering = [wm.IDS[name] for name in ("startoftranscript", "en", "transcribe")]
    for i, prefix in enumerate(before):
        assert prefix == [wm.IDS["startofprev"], *[*prompt, *earlier * i][-63:], *steering]
    for options in ({"condition_on_previous_text": False}, {"temperature": 0.6, "best_of": 1}):
        script = Script([(FINE, -0.5)], frames=180, **options)
        script.play()
        assert [row.tokens[: row.prefix_size] for row in script.rows] == [steering] * 3


@pytest.mark.parametrize(
    "clips, seeks",
    [((), [0, 60, 120]), ((0.5,), [50, 110, 170]), ((0.1, 0.5, 1.7, 9.0), [10, 170]), ((9.0,), [])],
)
def test_clips_are_the_frames_between_them(clips, seeks):
    script = Script([(FINE, -0.5)], clip_timestamps=clips, frames=180)
    assert [segment.seek for segment in script.play().segments] == seeks


def test_segments_are_cut_where_timestamps_meet():
    text = "<|0.00|> one<|0.10|><|0.12|> two<|0.30|><|0.30|> thr"
    script = Script([(text, -0.5)], frames=90)
    segments = script.play().segments
    spans = [(s.seek, s.start, s.end, s.text) for s in segments[:2]]
    assert spans == [(0, 0.0, 0.1, " one"), (0, 0.12, 0.3, " two")]
    assert [s.seek for s in segments[2:4]] == [30, 30]  # what no timestamp ended is read again
    assert script.rows[1].reference == wm.tokenizer().encode("<|0.00|> thr").ids
