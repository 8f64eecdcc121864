"""Where somebody speaks: Silero VAD 6 (https://github.com/snakers4/silero-vad, MIT), its 16 kHz network in NumPy."""

import functools
from pathlib import Path
from typing import cast

import mlx.core as mx
import numpy as np

from speech.features import HOP, RATE

_WEIGHTS = Path(__file__).with_name("silero_vad.safetensors")
_CHUNK, _CONTEXT = 512, 64  # samples that have one probability, and those seen before them
_BLOCK = 4_000  # chunks to transform together
_PASSAGE = 30 * RATE  # samples to search for speech at a time
_SPEECH, _PAUSE = 0.5, 0.35  # a part begins above the first and ends below the second
_SHORTEST = 200  # frames of silence between two parts, as in faster-whisper
_MARGIN = 40  # frames around a part


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


def probabilities(samples: np.ndarray) -> np.ndarray:
    """How probable speech is in each frame: [frames]. samples: mono, in [-1, 1], at RATE."""
    w = _weights()
    chunks = max(1, -(-len(samples) // _CHUNK))
    padded = np.pad(samples, (_CONTEXT, chunks * _CHUNK - len(samples)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, _CONTEXT + _CHUNK)[::_CHUNK]
    basis = w["stft.weight"][:, 0].T
    gates = []
    for start in range(0, chunks, _BLOCK):
        block = np.pad(seen[start : start + _BLOCK], [(0, 0), (0, _CONTEXT)], "reflect")
        spectra = np.lib.stride_tricks.sliding_window_view(block, 256, axis=1)[:, ::128] @ basis
        x = np.hypot(spectra[..., :129], spectra[..., 129:])  # [B, 4, 129]
        for name, stride in (("conv1", 1), ("conv2", 2), ("conv3", 2), ("conv4", 1)):
            x = _convolved(x, name, stride)
        gates.append(x[:, 0] @ w["lstm.weight_ih"].T + w["lstm.bias_ih"])
    h, c = np.zeros((2, 128), np.float32)
    recurrent = w["lstm.weight_hh"]
    bias = w["lstm.bias_hh"]
    hidden = np.empty((chunks, 128), np.float32)
    for t, given in enumerate(np.concatenate(gates)):
        gate = given + recurrent @ h + bias
        entry, forget, _, out = _sigmoid(gate).reshape(4, 128)
        c = forget * c + entry * np.tanh(gate[256:384])
        hidden[t] = h = out * np.tanh(c)
    scores = np.maximum(hidden, 0) @ w["final.weight"][0, :, 0] + w["final.bias"]
    return _sigmoid(scores)[np.arange(len(samples) // HOP) * HOP // _CHUNK]


def speaking(chances: np.ndarray) -> np.ndarray:
    """In which frames somebody may speak, [frames] boolean."""
    return chances >= _PAUSE


def first_speech(samples: np.ndarray) -> int | None:
    """The first frame in which somebody speaks; None: nobody does."""
    for start in range(0, len(samples), _PASSAGE):
        speech = np.flatnonzero(probabilities(samples[start : start + _PASSAGE]) >= _SPEECH)
        if speech.size:
            return start // HOP + int(speech[0])
    return None


def with_speech(
    chances: np.ndarray, margin: int = _MARGIN, shortest: int = _SHORTEST
) -> np.ndarray:
    """Which frames to transcribe, [frames] boolean: speech, `margin` frames around it, and silence that is shorter than
    `shortest`."""
    transcribed = np.zeros(len(chances), bool)
    for start, end in stretches(speaking(chances)):
        if chances[start:end].max() >= _SPEECH:
            transcribed[max(0, start - margin) : end + margin] = True
    for start, end in stretches(~transcribed):
        if start and end < len(transcribed) and end - start < shortest:
            transcribed[start:end] = True
    return transcribed


def stretches(where: np.ndarray) -> list[list[int]]:
    """The beginnings and ends of what is true."""
    return np.flatnonzero(np.diff(np.pad(where, 1))).reshape(-1, 2).tolist()


def last_pause(chances: np.ndarray) -> int:
    """The frame of the last pause; without one, the frame where speech is least probable."""
    loudest = np.lib.stride_tricks.sliding_window_view(np.pad(chances, 8, "edge"), 17).max(axis=1)
    pauses = np.flatnonzero(loudest < _PAUSE)
    return int(pauses[-1] if pauses.size else loudest.argmin())
