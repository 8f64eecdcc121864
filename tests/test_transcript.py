"""Transcripts: the long form beside transformers', with drafts and without, and what a window is tried for."""

from collections import Counter

import numpy as np
import pytest
import torch
from helpers import whisper_models as wm

import speech.transcript
from families.whisper import Encoder
from speculative.row import Stats
from speech.features import HOP
from speech.rules import Special
from speech.transcriber import Transcriber
from speech.transcript import Asked

BINS = wm.SHAPE["num_mel_bins"]
MOST = 40  # tokens of a window's text
NEVER = dict(
    compression_ratio_threshold=None, logprob_threshold=None, no_speech_threshold=None
)  # is a text tried again


def sound(frames, seed):
    """Samples, whose features are the noise that `noise` makes of their number."""
    return np.full(frames * HOP, seed, np.float32)


@pytest.fixture(autouse=True)
def noise(monkeypatch):
    def log_mel(samples, bins):
        rng = np.random.default_rng(int(samples[0]))
        return rng.normal(0, 1, (len(samples) // HOP, bins)).astype(np.float32)

    monkeypatch.setattr(speech.transcript, "log_mel", log_mel)
    options = Special.options

    def short(self, **asked):
        return options(self, **asked | ({"max_tokens": MOST} if "temp" in asked else {}))

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
        found = reference.generate(
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
    return found["segments"][0]


@pytest.mark.parametrize("condition", [False, True])
def test_the_long_form_is_transformers_own(models, noise, condition):
    reference, ours, *_ = models
    transcriber = Transcriber(ours)
    asked = Asked("de", condition_on_previous_text=condition, **NEVER)
    for seed in range(4):
        samples = sound(60 + 77 * seed, seed)
        found = transcriber.transcribe(samples, asked).segments
        expected = their_segments(reference, samples, noise, condition)
        assert len(found) == len(expected) > 0
        for mine, theirs in zip(found, expected, strict=True):
            tokens = theirs["tokens"].tolist()
            print(seed, mine.tokens, tokens, mine.start, mine.end, theirs["start"], theirs["end"])
            assert mine.tokens == tokens[: len(mine.tokens)] and len(tokens) - len(mine.tokens) < 2
            assert mine.start == pytest.approx(float(theirs["start"]))
            assert mine.end == pytest.approx(float(theirs["end"]))


def transcribed(transcriber, asked, batch_size=1, count=3):
    """The transcripts of some sounds, as far as texts go, and what they took."""
    sounds = [lambda i=i: (sound(60 + 50 * i, i), lambda *_: None) for i in range(count)]
    found = dict(transcriber.transcribe_all(sounds, asked, batch_size))
    texts = [[(s.tokens, s.start, s.temperature) for s in found[i].segments] for i in range(count)]
    return texts, sum((found[i].stats for i in range(count)), Stats())


@pytest.mark.parametrize(
    "how", [NEVER, dict(best_of=2, temperature=0.6)], ids=["greedy", "tried again"]
)
def test_drafted_transcripts_are_plain_ones(models, how):
    _, ours, shared, own = models
    plain, _ = transcribed(Transcriber(ours), Asked(num_draft=0, **how))
    partial = cut = 0
    for draft in (None, shared, own):
        transcriber = Transcriber(ours, draft)
        for num_draft, batch_size in ((3, 1), (7, 3)):
            texts, stats = transcribed(transcriber, Asked(num_draft=num_draft, **how), batch_size)
            assert texts == plain
            steps = stats.accepted_lengths
            partial += sum(n for length, n in steps.items() if 0 < length < 3)
            cut += draft is None and stats.drafted > 0
    assert partial > 30 and cut  # the last window's tail has been drafted
    temperatures = {temperature for text in plain for *_, temperature in text}
    assert temperatures == ({0.0} if how is NEVER else temperatures - {0.0})


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
        asked = Asked(best_of=3, num_draft=3, no_speech_probs=True)
        transcriber.transcribe(sound(130, 3), asked, lambda *heard: windows.append(heard))  # noqa: B023
        counts = Counter()
        for each, count in encoded:
            counts[id(each)] += count
        assert list(counts.values()) == [len(windows)] * encoders and len(windows) > 1
