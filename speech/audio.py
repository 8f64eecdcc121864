"""Sound files as samples: mono, 16 kHz. PyAV, which is FFmpeg, reads them; without it `wave` reads 16 kHz wav."""

import io
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from errors import InputError

LONGEST = 24 * 3600  # seconds: of silence, a few MB hold weeks
INSTALL = "pip install -r requirements-audio.txt"


def read(
    source: str, stdin: BinaryIO | None = None, report: Callable[[str], None] = lambda line: None
) -> np.ndarray:
    """The samples of a file's first sound track [samples], float32 in [-1, 1], RATE a second.

    source: a path, or "-" for `stdin` (default: standard input); report: is given one line if damaged
    parts were left out. InputError, with the file's name, for what cannot be opened or holds no sound.
    """
    if source == "-":
        return decoded(stdin or sys.stdin.buffer, "standard input", report)
    try:
        with open(source, "rb") as file:
            return decoded(file, source, report)
    except OSError as error:
        raise InputError(f"{source}: {error.strerror or error}") from None


def decoded(file: BinaryIO, name: str, report: Callable[[str], None]) -> np.ndarray:
    """As `read`, of an open file that messages call `name`."""
    if not file.seekable():  # many formats have their index at the end
        file = io.BytesIO(file.read())
    try:
        import av
    except ImportError:
        samples = _wave_samples(file, name)
    else:
        samples = _av_samples(av, file, name, report)
    if not len(samples):
        raise InputError(f"{name} holds no sound")
    return samples


def _av_samples(av: Any, file: BinaryIO, name: str, report: Callable[[str], None]) -> np.ndarray:
    """FFmpeg's 16-bit samples. Packets that cannot be decoded are left out."""
    packets = damaged = 0
    sound = bytearray()
    resampler = _Resampler(av)
    try:
        with av.open(file, metadata_errors="replace", io_open=_nothing_else) as container:
            track = next(iter(container.streams.audio), None)
            if track is None:
                raise InputError(f"{name} holds no sound")
            for packet in container.demux(track):
                packets += 1
                try:
                    frames = packet.decode()
                except av.error.FFmpegError:
                    damaged += 1
                    continue
                for frame in frames:
                    sound += resampler(frame)
            sound += resampler(None)
    except av.error.FFmpegError as error:
        raise InputError(f"{name} is no sound that FFmpeg reads: {error.strerror}") from None
    if damaged:
        report(f"{name}: {damaged} of {packets} packets are damaged and left out")
    return np.frombuffer(sound, np.int16).astype(np.float32) / 32768
