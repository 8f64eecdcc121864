"""Sound files as samples. PyAV, which brings FFmpeg, reads them; without it `wave` reads 16 kHz wav."""

import io
import itertools
import sys
import wave
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from errors import InputError
from speech.features import RATE

LONGEST = 24 * 3600  # seconds; a few MB can hold weeks of silence
INSTALL = "pip install -r requirements-audio.txt"


def read(
    source: str, stdin: BinaryIO | None = None, report: Callable[[str], None] = lambda line: None
) -> np.ndarray:
    """The first sound track of a file, mono: [samples], float32 in [-1, 1], RATE a second.

    source: a path, or "-" for `stdin` (None: standard input); report: is given one line if damaged
    parts are left out. InputError, which names the source, for what cannot be opened or has no sound.
    """
    name = "standard input" if source == "-" else source
    try:
        if source == "-":
            return decoded(stdin or sys.stdin.buffer, name, report)
        with open(source, "rb") as file:
            return decoded(file, name, report)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from None


def decoded(file: BinaryIO, name: str, report: Callable[[str], None]) -> np.ndarray:
    """As `read`, of an open file that messages call `name`."""
    if not file.seekable():  # while many formats have their index at the end
        file = io.BytesIO(file.read())
    try:
        import av
    except ImportError:
        samples = _from_wav(file, name)
    else:
        samples = _from_ffmpeg(av, file, name, report)
    if not samples.size:
        raise InputError(f"{name} holds no sound")
    return samples


def _from_ffmpeg(av: Any, file: BinaryIO, name: str, report: Callable[[str], None]) -> np.ndarray:
    nothing_else = {"protocol_whitelist": "none"}  # no file or address that a playlist names
    try:
        with av.open(file, metadata_errors="replace", container_options=nothing_else) as container:
            if not container.streams.audio:
                raise InputError(f"{name} holds no sound")
            frames = _frames(av, container, name, report)
            sound = bytearray().join(_resampled(av, frames))
    except av.error.FFmpegError as error:
        raise InputError(f"{name} is no sound that FFmpeg reads: {error.strerror}") from None
    return np.divide(np.frombuffer(sound, np.int16), 32768, dtype=np.float32)


def _packets(av: Any, container: Any, name: str, report: Callable[[str], None]) -> Iterator[Any]:
    """The first track's packets, as far as the file can be read."""
    try:
        yield from container.demux(container.streams.audio[0])
    except IndexError:  # PyAV 18, at the end: of tracks that begin after the header
        pass
    except av.error.FFmpegError:
        report(f"{name} is damaged: its end is left out")


def _frames(av: Any, container: Any, name: str, report: Callable[[str], None]) -> Iterator[Any]:
    """The first track's frames. Packets that cannot be decoded are left out."""
    packets, damaged, seconds = 0, 0, 0.0
    for packet in _packets(av, container, name, report):
        packets += 1
        try:
            frames = packet.decode()
        except av.error.FFmpegError:
            damaged += 1
            continue
        for frame in frames:
            if not 1000 <= frame.sample_rate <= 1_000_000:
                raise InputError(f"{name} is damaged: {frame.sample_rate} samples a second")
            seconds += frame.samples / frame.sample_rate
            if seconds > LONGEST:
                raise InputError(f"{name} holds more than {LONGEST // 3600} hours of sound: cut it")
            yield frame
    if damaged and seconds:
        report(f"{name}: left out {damaged} of {packets} packets, which are damaged")


def _resampled(av: Any, frames: Iterable[Any]) -> Iterator[bytes]:
    """16-bit samples, mono, RATE a second. Each stretch of one format has a resampler of its own."""
    form = lambda frame: (frame.format.name, frame.layout.name, frame.sample_rate)
    for _, stretch in itertools.groupby(frames, form):
        resampler = av.AudioResampler("s16", "mono", RATE)
        for frame in itertools.chain(stretch, [None]):  # None: the end of the stretch
            for part in resampler.resample(frame):
                yield part.to_ndarray().tobytes()


def _from_wav(file: BinaryIO, name: str) -> np.ndarray:
    """Whole numbers of 8 to 32 bits at RATE, channels averaged."""
    try:
        with wave.open(file) as sound:
            channels, width, rate, *_ = sound.getparams()
            if rate != RATE or width > 4:
                found = f"{rate} samples a second of {8 * width} bits"
                raise InputError(f"{name} has {found}, not {RATE} of 8 to 32: {INSTALL}")
            data = sound.readframes(sound.getnframes())
    except (wave.Error, EOFError) as error:
        raise InputError(f"{name} is no PCM wav ({error}); for other sound: {INSTALL}") from None
    data = data[: len(data) // (channels * width) * channels * width]
    numbers = np.zeros([len(data) // width, 4], np.uint8)  # little-endian, at the top of 32 bits
    numbers[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
    if width == 1:
        numbers[:, 3] ^= 0x80  # 8 bits have no sign
    samples = np.divide(numbers.view("<i4"), 2**31, dtype=np.float32)
    return samples.reshape(-1, channels).mean(1)
