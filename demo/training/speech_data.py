"""Spoken numbers and sentences: what the embedded speech pair is trained on.

espeak-ng 1.51 (`apt-get install espeak-ng`) speaks them, English and German, in several voices, and
tells when each word begins. Windows are put together from the log-mel frames of single utterances,
so that each is spoken and transformed once and heard in many places. The same hash as in tasks.py
keeps 5 % of the texts out of training, but for numbers below 100.
"""

import ctypes
import random
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from transformers import WhisperFeatureExtractor

from demo.training import spelling, tasks

RATE, HOP, BINS = 16_000, 160, 80
SECONDS = 6
FRAMES = SECONDS * RATE // HOP  # of a window
MARGIN = 3  # frames before and behind an utterance that its sound reaches
FLOOR = -10.0  # log10 of the least power
LANGUAGES = {"en": "English", "de": "German"}
VOICES = {
    "en": ("en-us", "en-gb", "en-gb-x-rp", "en-us+f2", "en-gb+f3", "en-us+m3"),
    "de": ("de", "de+f2", "de+f3", "de+m3", "de+m7"),
}
EXTRACTOR = WhisperFeatureExtractor(chunk_length=SECONDS)
_FILTERS = EXTRACTOR.mel_filters.astype(np.float32)  # [201, 80]
_HANN = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)).astype(np.float32)
_GERMAN_NUMBER = re.compile(
    "|".join(sorted({*spelling._GERMAN, *spelling._GERMAN_TENS[2:], "ein", "und", "hundert",
                     "tausend"}, key=len, reverse=True)), re.IGNORECASE)  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Texts


def draw(rng: random.Random, language: str, kind: str, held_out: bool = False) -> str:
    """A number below 10,000 or a short sentence, written as a sentence, of one side of the split."""
    while True:
        if kind == "number":
            n = rng.randrange(10 ** rng.choice((1, 2, 3, 3, 4, 4, 4)))
            key = str(n)
            text = spelling.spell(n, LANGUAGES[language])
            text = text[0].upper() + text[1:] + "."
        else:
            sentence = tasks._sentence(rng)
            key, text = sentence.text("English"), sentence.text(LANGUAGES[language])
            if sentence.auxiliary or len(text.split()) > 8:
                continue
        few = kind == "number" and n < 100  # there are too few of these to miss one
        if (tasks._is_held_out(key) and not few) == held_out:
            return text


def words_of(text: str) -> list[str]:
    """The parts of a text that are spoken, with the space or hyphen before them: German numbers,
    written in one word, come in several."""
    parts = re.findall(r"[ -]?[^ -]+", " " + text)
    if len(parts) > 1 or not re.fullmatch(rf" ({_GERMAN_NUMBER.pattern})+\.", parts[0], re.I):
        return parts
    numerals = _GERMAN_NUMBER.findall(parts[0])
    return [" " + numerals[0], *numerals[1:-1], numerals[-1] + "."] if numerals[1:] else parts


# ---------------------------------------------------------------------------------------------
# Sound


class _Event(ctypes.Structure):
    """espeak_EVENT of speak_lib.h."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    ]


_SYNCHRONOUS, _UTF8, _WORD = 2, 1, 1
_SPEED, _PITCH = 1, 3
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class Speaker:
    """espeak-ng through its library; one in a process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libespeak-ng.so.1")
        self._rate = self._library.espeak_Initialize(_SYNCHRONOUS, 0, None, 0)
        self._callback = _CALLBACK(self._hear)  # has to outlive the calls
        self._library.espeak_SetSynthCallback(self._callback)

    def _hear(self, sound: Any, count: int, events: Any) -> int:
        if sound and count:
            self._sound.append(np.ctypeslib.as_array(sound, (count,)).copy())
        index = 0
        while events[index].type:
            if events[index].type == _WORD:
                self._words.append((events[index].text_position, events[index].audio_position))
            index += 1
        return 0

    def speak(
        self, words: list[str], voice: str, speed: int, pitch: int
    ) -> tuple[np.ndarray, list[float]]:
        """Samples at 16 kHz in [-1, 1], and the second at which each word begins."""
        self._sound: list[np.ndarray] = []
        self._words: list[tuple[int, int]] = []
        text = " ".join(words)
        encoded = text.encode()
        self._library.espeak_SetVoiceByName(voice.encode())
        self._library.espeak_SetParameter(_SPEED, speed, 0)
        self._library.espeak_SetParameter(_PITCH, pitch, 0)
        self._library.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, _UTF8, None, None)
        positions = np.cumsum([1, *(len(word) + 1 for word in words[:-1])])
        heard = dict(self._words)
        known = [i for i, position in enumerate(positions) if int(position) in heard]
        times = [heard[int(positions[i])] / 1000 for i in known]
        starts = np.interp(np.arange(len(words)), known, times).tolist()
        return resample(np.concatenate(self._sound) / np.float32(32768), self._rate), starts


def resample(samples: np.ndarray, rate: int) -> np.ndarray:
    """To 16 kHz, band-limited."""
    block = rate // 50
    samples = np.pad(samples, (0, -len(samples) % block))
    spectrum = np.fft.rfft(samples)
    count = len(samples) // block * (RATE // 50)
    return (np.fft.irfft(spectrum[: count // 2 + 1], count) * (count / len(samples))).astype(
        np.float32
    )


def log_power(samples: np.ndarray) -> np.ndarray:
    """log10 of the mel power, [len(samples) // HOP, 80], of sound with silence around it."""
    padded = np.pad(samples, 200)
    frames = np.lib.stride_tricks.sliding_window_view(padded, 400)[::HOP][: len(samples) // HOP]
    power = np.abs(np.fft.rfft(frames * _HANN)).astype(np.float32) ** 2
    return np.log10(np.maximum(power @ _FILTERS, 1e-10))


@dataclass(frozen=True)
class Utterance:
    """One spoken text; frames are counted from its first sound."""

    language: str
    text: str
    samples: np.ndarray  # int16, from the first sound to the last, in whole frames
    mel: np.ndarray  # float16 [MARGIN + frames + MARGIN, 80], log10 of the power
    starts: list[int]  # the frame at which each of words_of(text) begins

    @property
    def frames(self) -> int:
        return len(self.samples) // HOP


def utterance(
    rng: random.Random, speaker: Speaker, language: str, text: str, voice: str | None = None
) -> Utterance:
    spoken = [part.strip(" -") for part in words_of(text)]
    voice = voice or rng.choice(VOICES[language])
    samples, starts = speaker.speak(spoken, voice, rng.randint(165, 230), rng.randint(30, 70))
    loud = np.flatnonzero(np.abs(samples) > 0.02 * np.abs(samples).max())
    samples = samples[loud[0] : loud[-1] + 1]
    samples = np.pad(samples, (0, -len(samples) % HOP))
    mel = log_power(np.pad(samples, MARGIN * HOP))
    frames = [max(0, round((start * RATE - loud[0]) / HOP)) for start in starts]
    whole = (samples * 32767).round().astype(np.int16)
    return Utterance(language, text, whole, mel.astype(np.float16), frames)


Pool = dict[str, list[Utterance]]  # by language


def pool(rng: random.Random, speaker: Speaker, count: int, held_out: bool = False) -> Pool:
    """`count` utterances of each language, half of them numbers, that fit a window."""
    spoken: Pool = {language: [] for language in LANGUAGES}
    for language, utterances in spoken.items():
        while len(utterances) < count:
            kind = ("number", "sentence")[len(utterances) % 2]
            new = utterance(rng, speaker, language, draw(rng, language, kind, held_out))
            if new.frames < FRAMES - 130:
                utterances.append(new)
    return spoken


@cache
def units() -> dict[str, int]:
    """A number for each spoken word, from 1; 0 is silence. A German and an English word that are
    written alike share one."""
    rng = random.Random(0)
    kinds = [(language, kind) for language in LANGUAGES for kind in ("number", "sentence")]
    texts = [draw(rng, *kind) for kind in kinds for _ in range(8000)]
    found = sorted({_bare(word) for text in texts for word in words_of(text)})
    return {word: number for number, word in enumerate(found, start=1)}


def unit_of(word: str) -> int:
    return units()[_bare(word)]


def _bare(word: str) -> str:
    return word.strip(" -.").lower()


# ---------------------------------------------------------------------------------------------
# Windows


@dataclass
class Segment:
    """The part of an utterance in a window; frames are the window's."""

    utterance: Utterance
    begin: int  # may lie before the window
    end: int  # may lie behind it

    def spans(self) -> list[tuple[str, int, int]]:
        """(word, first frame, end) of each of its words."""
        starts = [self.begin + start for start in self.utterance.starts]
        return list(
            zip(words_of(self.utterance.text), starts, [*starts[1:], self.end], strict=True)
        )

    def words(self) -> list[tuple[str, int, int]]:
        """Those that are heard whole."""
        return [span for span in self.spans() if span[1] >= -2 and span[2] <= FRAMES]


@dataclass
class Window:
    language: str
    features: np.ndarray  # float32 [600, 80]
    segments: list[Segment]
    sound_end: int  # the frame behind the file's last


def arrange(rng: random.Random, utterances: list[Utterance]) -> tuple[list[Segment], int]:
    """Segments that follow each other with silence between them, and where the file ends: often
    behind the window, in which case the last segment may be cut off by its end."""
    if rng.random() < 0.04:  # nothing is said
        return [], rng.choice((rng.randrange(FRAMES), FRAMES))
    endless = rng.random() < 0.55
    most = FRAMES if endless else rng.choice((1, 1, 2, 2, 3))
    start = rng.choice((rng.randint(0, 10), rng.randint(0, 100), rng.randint(0, 100)))
    if rng.random() < 0.08:
        start = rng.randint(100, 300)
    segments: list[Segment] = []
    if rng.random() < 0.06:  # the window begins within an utterance
        first = rng.choice(utterances)
        start = -rng.randint(1, max(1, first.frames - 30))
        segments, start = [Segment(first, start, start + first.frames)], start + first.frames
        start += rng.randint(15, 100)
    while start < FRAMES - 3 and len(segments) < most:
        chosen = rng.choice(utterances)
        if not endless and start + chosen.frames > FRAMES:
            break
        segments.append(Segment(chosen, start, start + chosen.frames))
        start += chosen.frames + rng.choice(
            (rng.randint(12, 40), rng.randint(30, 100), rng.randint(30, 160))
        )
    if endless:
        return segments, FRAMES
    return segments, min(FRAMES, (segments[-1].end if segments else 0) + rng.randint(1, 60))


def log_mel(rng: random.Random, segments: list[Segment], sound_end: int) -> np.ndarray:
    """[600, 80] as WhisperFeatureExtractor has it, up to what is behind the sound's end: 0.0, as when
    a long file is read, or silence, as when samples are padded."""
    noise = np.random.default_rng(rng.randrange(1 << 32))
    mel = np.full((FRAMES + 2 * MARGIN, BINS), FLOOR, np.float32)
    gain = rng.uniform(-1.2, 0.3)
    for segment in segments:
        first, last = max(0, segment.begin), min(FRAMES, segment.end)
        if first < last:
            heard = segment.utterance.mel[first - segment.begin : last - segment.begin + 2 * MARGIN]
            mel[first : last + 2 * MARGIN] = np.maximum(
                mel[first : last + 2 * MARGIN], heard + gain
            )
    mel = mel[MARGIN:-MARGIN]
    if rng.random() < 0.25:
        hiss = noise.normal(rng.uniform(-7, -3.5), 0.25, mel.shape)
        mel = np.log10(10.0**mel + 10.0**hiss).astype(np.float32)
    greatest = max(mel.max(), FLOOR + 0.01) + rng.choice((0, 0, rng.uniform(0, 0.8)))
    if not segments:  # the file's greatest value is in another window
        greatest = rng.choice((greatest, rng.uniform(0, 2)))
    if rng.random() < 0.65:
        mel[sound_end:] = np.nan
    else:
        mel[sound_end:] = FLOOR
    return np.nan_to_num((np.maximum(mel, greatest - 8) + 4) / 4, nan=0.0)


def window(rng: random.Random, spoken: Pool, cut: bool = True) -> Window:
    """`cut`: a last segment may be cut off; else the sound ends before it."""
    language = rng.choice(list(spoken))
    segments, sound_end = arrange(rng, spoken[language])
    if not cut and segments and segments[-1].end > FRAMES:
        sound_end = max(0, segments.pop().begin - MARGIN)
    return Window(language, log_mel(rng, segments, sound_end), segments, sound_end)


# ---------------------------------------------------------------------------------------------
# Files


def file_of(
    rng: random.Random, utterances: list[Utterance]
) -> tuple[np.ndarray, list[tuple[float, float, str]]]:
    """int16 samples of the utterances with silence around them, and each one's (begin, end, text),
    in seconds."""
    parts, spans, end = [], [], 0
    for one in utterances:
        silence = RATE * rng.randint(20, 90) // 100
        begin = end + silence
        end = begin + len(one.samples)
        parts += [np.zeros(silence, np.int16), one.samples]
        spans.append((round(begin / RATE, 2), round(end / RATE, 2), one.text))
    parts.append(np.zeros(RATE * rng.randint(5, 50) // 100, np.int16))
    return np.concatenate(parts), spans


def file_features(samples: np.ndarray) -> np.ndarray:
    """[80, frames] of a whole file of int16 samples, with nothing behind its end."""
    made = EXTRACTOR(
        samples / np.float32(32768),
        sampling_rate=RATE,
        truncation=False,
        padding="longest",
        return_tensors="np",
    )
    return made.input_features[0][:, : len(samples) // HOP]
