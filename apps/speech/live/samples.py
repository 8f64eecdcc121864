"""Samples of live sound as Whisper reads them, made of other forms: G.711's mu-law, and other rates."""

from collections.abc import Callable

import numpy as np

from apps.speech import audio
from apps.speech.audio import RATE, pcm
from speculative.common.errors import InputError


def from_ulaw(data: bytes) -> bytes:
    """16-bit samples of 8-bit ones in G.711's mu-law."""
    codes = ~np.frombuffer(data, np.uint8).astype(np.int32) & 0xFF
    sizes = (((codes & 0x0F) << 3) + 132 << (codes >> 4 & 0x07)) - 132
    return np.where(codes & 0x80, -sizes, sizes).astype("<i2").tobytes()


def resampler(rate: int) -> Callable[[bytes], np.ndarray]:
    """Makes samples at RATE of 16-bit ones in pieces, which may end within one. InputError at another rate without PyAV."""
    if rate != RATE and audio.av is None:
        raise InputError(f"only {RATE} samples a second {audio.WITHOUT_AV}")
    made = audio.av and audio.av.AudioResampler("s16p", "mono", RATE)
    rest = bytearray()  # of a sample

    def resampled(data: bytes) -> np.ndarray:
        rest.extend(data)
        whole = bytes(rest[: len(rest) // 2 * 2])
        del rest[: len(whole)]
        if rate == RATE or not whole:  # an empty frame ends the process
            return pcm(whole)
        frame = audio.av.AudioFrame.from_ndarray(np.frombuffer(whole, "<i2")[None], "s16p", "mono")
        frame.sample_rate = rate
        return pcm(b"".join(audio.samples_of(made, frame)))

    return resampled
