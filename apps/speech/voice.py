"""Finds where somebody speaks: Silero VAD 6 (https://github.com/snakers4/silero-vad, MIT), its 16 kHz network in NumPy."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import mlx.core as mx
import numpy as np

from apps.speech.features import HOP

_WEIGHTS = Path(__file__).with_name("silero_vad.safetensors")
_CHUNK, _CONTEXT = 512, 64  # samples that have one probability, and those seen before them
_BLOCK = 1_000 * _CHUNK  # samples of a whole sound to hear at a time
SPEECH_CHANCE = 0.5  # a part begins above this chance
PAUSE_CHANCE = 0.35  # and ends below this one


@functools.cache
def _weights() -> dict[str, np.ndarray]:
    weights = cast(dict[str, mx.array], mx.load(str(_WEIGHTS)))
    return {name: np.array(weight.astype(mx.float32)) for name, weight in weights.items()}


def _convolved(x: np.ndarray, name: str, stride: int) -> np.ndarray:
    """A convolution of width 3 and ReLU: [B, T, in] to [B, T / stride, out]."""
    weight = _weights()[f"{name}.weight"]
    bias = _weights()[f"{name}.bias"]
    near = np.lib.stride_tricks.sliding_window_view(np.pad(x, [(0, 0), (1, 1), (0, 0)]), 3, axis=1)
    near = near[:, ::stride].reshape(len(x), -1, weight[0].size)
    return np.maximum(near @ weight.reshape(len(weight), -1).T + bias, 0)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


class Detector:
    """Hears a sound piece by piece. What it finds does not depend on their sizes."""

    def __init__(self):
        self._rest = np.zeros(_CONTEXT, np.float32)  # and samples that do not fill a chunk yet
        self._chunks = 0
        self._state = np.zeros((2, 128), np.float32)

    def hear(self, samples: np.ndarray, is_end: bool = False) -> np.ndarray:
        """The probability of speech in each further frame: [frames]. samples: mono, in [-1, 1], at RATE; is_end: silence follows"""
        samples = np.append(self._rest, samples)
        if is_end:
            samples = np.pad(samples, (0, -(len(samples) - _CONTEXT) % _CHUNK))
        chunks = (len(samples) - _CONTEXT) // _CHUNK
        self._rest = samples[chunks * _CHUNK :]
        if not chunks:
            return np.zeros(0, np.float32)
        seen = np.lib.stride_tricks.sliding_window_view(samples, _CONTEXT + _CHUNK)[::_CHUNK]
        first, after = (-(n * _CHUNK // -HOP) for n in (self._chunks, self._chunks + chunks))
        chances = self._chances(seen)[np.arange(first, after) * HOP // _CHUNK - self._chunks]
        self._chunks += chunks
        return chances

    def _chances(self, seen: np.ndarray) -> np.ndarray:
        """The probability of speech in each chunk: [chunks]. seen: with its context, [chunks, 576]"""
        w = _weights()
        padded = np.pad(seen, [(0, 0), (0, _CONTEXT)], "reflect")
        basis = w["stft.weight"][:, 0].T
        spectra = np.lib.stride_tricks.sliding_window_view(padded, 256, axis=1)[:, ::128] @ basis
        x = np.hypot(spectra[..., :129], spectra[..., 129:])  # [chunks, 4, 129]
        for name, stride in (("conv1", 1), ("conv2", 2), ("conv3", 2), ("conv4", 1)):
            x = _convolved(x, name, stride)
        gates = x[:, 0] @ w["lstm.weight_ih"].T + w["lstm.bias_ih"] + w["lstm.bias_hh"]
        h, c = self._state
        hidden = np.empty((len(seen), 128), np.float32)
        for t, given in enumerate(gates):
            gate = given + w["lstm.weight_hh"] @ h
            entry, forget, _, out = _sigmoid(gate).reshape(4, 128)
            c = forget * c + entry * np.tanh(gate[256:384])
            hidden[t] = h = out * np.tanh(c)
        self._state = np.stack([h, c])
        return _sigmoid(np.maximum(hidden, 0) @ w["final.weight"][0, :, 0] + w["final.bias"])


def _blocks(samples: np.ndarray) -> Iterator[np.ndarray]:
    """The probability of speech in the frames of a whole sound, block by block."""
    detector = Detector()
    for start in range(0, len(samples), _BLOCK):
        end = start + _BLOCK
        yield detector.hear(samples[start:end], is_end=end >= len(samples))


def probabilities(samples: np.ndarray) -> np.ndarray:
    """The probability of speech in each frame: [frames]. samples: mono, in [-1, 1], at RATE."""
    chances = np.concatenate([np.zeros(0, np.float32), *_blocks(samples)])
    return chances[: len(samples) // HOP]


def first_speech(samples: np.ndarray) -> int:
    """The first frame in which somebody speaks; 0 if nobody does."""
    frames = enumerate(chance for chances in _blocks(samples) for chance in chances)
    return next((frame for frame, chance in frames if chance >= SPEECH_CHANCE), 0)


def last_pause(chances: np.ndarray) -> int:
    """The frame of the last pause; without one, the frame where speech is least probable."""
    loudest = np.lib.stride_tricks.sliding_window_view(np.pad(chances, 8, "edge"), 17).max(axis=1)
    pauses = np.flatnonzero(loudest < PAUSE_CHANCE)
    return int(pauses[-1] if pauses.size else loudest.argmin())
