"""Whisper's features of a sound: log-mel spectrograms (Radford et al. 2022, arXiv 2212.04356, section 2.2), in NumPy."""

from functools import cache

import numpy as np

from apps.speech.audio import RATE

HOP = 160  # samples from one frame to the next
FRAMES = RATE // HOP  # per second
_WIDTH = 400  # samples of a frame
_BLOCK = 6_000  # frames to transform together


@cache
def _filters(bins: int) -> np.ndarray:
    """Slaney's mel filters from 0 to 8,000 Hz, each of the same area: [201, bins]."""
    pitches = np.linspace(0, 1, bins + 2) * (15 + 27 * np.log(8) / np.log(6.4))  # in mel
    edges = np.where(pitches < 15, pitches * 200 / 3, 1000 * 6.4 ** ((pitches - 15) / 27))  # in Hz
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    tones = np.linspace(0, RATE / 2, _WIDTH // 2 + 1)[:, None]
    rising, falling = (tones - low) / (middle - low), (high - tones) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)


def log_mel(samples: np.ndarray, bins: int) -> np.ndarray:
    """The features of a whole sound, [frames, bins] float32, a frame for every HOP samples.

    samples: mono, in [-1, 1], at RATE. They are mirrored at the beginning and padded with silence at the end. Values
    80 dB below the loudest are clipped, so a part of a sound has other features than the whole.
    """
    frames = len(samples) // HOP
    silence = np.zeros(_WIDTH, np.float32)
    before = np.append(samples[:_WIDTH], silence)[_WIDTH // 2 : 0 : -1]
    padded = np.concatenate([before, samples, silence])
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WIDTH) / _WIDTH)
    framed = np.lib.stride_tricks.sliding_window_view(padded, _WIDTH)[::HOP]
    features = np.empty((frames, bins), np.float32)
    for start in range(0, frames, _BLOCK):
        block = slice(start, min(start + _BLOCK, frames))
        energy = np.abs(np.fft.rfft(framed[block] * window)) ** 2  # [F, 201]
        features[block] = np.log10(np.maximum(energy @ _filters(bins), 1e-10))
    np.maximum(features, features.max(initial=-10.0) - 8, out=features)
    features += 4
    return np.divide(features, 4, out=features)
