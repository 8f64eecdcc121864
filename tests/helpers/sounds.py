"""Sounds for tests."""

import wave
from pathlib import Path

import numpy as np


def write_wav(path: Path, seconds: float, seed: int = 0, rate: int = 16000) -> None:
    """Noise, mono, 16 bits."""
    noise = np.random.default_rng(seed).normal(0, 3000, int(seconds * rate)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(noise.tobytes())
