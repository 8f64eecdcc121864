"""Reads sound files: with PyAV, which brings FFmpeg, nearly all of them; without it 16 kHz wav."""

import io
import itertools
import operator
import sys
import wave
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from errors import InputError
from speech.features import RATE

try:
    import av
except ImportError:
    av = None  # type: ignore[assignment]

Report = Callable[[str], None]
LONGEST = 24 * 3600  # seconds, because weeks of silence fit into a few MB


def read(
    source: str, stdin: BinaryIO | None = None, report: Report = lambda line: None
) -> np.ndarray:
    """The first sound track of a file, mono: [samples], float32 in [-1, 1], RATE a second.

    source: a path, or "-" for `stdin` (None: standard input); report: called with a line if damaged parts
    are left out. Raises InputError if it cannot be opened or holds no sound. Both name the source.
    """
    name = "standard input" if source == "-" else source
    try:
        if source == "-":
            return decoded(stdin or sys.stdin.buffer, lambda line: report(f"{name}: {line}"))
        with open(source, "rb") as file:
            return decoded(file, lambda line: report(f"{name}: {line}"))
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from None
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def decoded(
    file: BinaryIO,
    report: Report,
    max_seconds: int = LONGEST,
    go_on: Callable[[], object] = lambda: None,
) -> np.ndarray:
    """As `read`, from an open file; errors do not name it. go_on: called after each part, to raise if the rest is not
    wanted."""
    if not file.seekable():
        file = io.BytesIO(file.read())  # many formats have their index at the end
    sound = bytearray()
    for part in _from_ffmpeg(file, report) if av else _from_wav(file):
        sound += part
        if len(sound) > 2 * RATE * max_seconds:
            raise InputError(f"more than {max_seconds} seconds of sound; cut it")
        go_on()
    if not sound:
        raise InputError("holds no sound")
    return np.divide(np.frombuffer(sound, np.int16), 32768, dtype=np.float32)


def _from_ffmpeg(file: BinaryIO, report: Report) -> Iterator[bytes]:
    """16-bit samples, mono, RATE a second."""
    nothing_else = {"protocol_whitelist": "none"}  # open no file or address named in a playlist
    try:
        with av.open(
            file, "r", metadata_errors="replace", container_options=nothing_else
        ) as container:
            tracks = container.streams.audio
            track = next((each for each in tracks if each.codec_context), None)
            if not track:  # before PyAV 18.1, decoding an unknown codec ends the process
                raise InputError("holds no sound")
            yield from _resampled(_frames(container.demux(track), report))
    except av.error.FFmpegError as error:
        raise InputError(f"no sound file that FFmpeg reads ({error.strerror})") from None


def _readable(packets: Iterator[Any], report: Report) -> Iterator[Any]:
    """The packets up to where the file becomes unreadable."""
    try:
        yield from packets
    except IndexError:  # PyAV 18, at the end of files whose tracks begin after the header
        pass
    except av.error.FFmpegError:
        report("damaged; what follows the damage is left out")


def _frames(packets: Iterator[Any], report: Report) -> Iterator[Any]:
    """The frames of the packets that can be decoded."""
    count, damaged, found = 0, 0, False
    for packet in _readable(packets, report):
        count += 1
        try:
            frames = packet.decode()
        except av.error.FFmpegError:
            damaged += 1
            continue
        for frame in frames:
            if not 1000 <= frame.sample_rate <= 1_000_000:
                raise InputError(f"damaged: {frame.sample_rate} samples a second")
            found = True
            yield frame
    if damaged and found:
        report(f"{damaged} of {count} packets are damaged and left out")


def _resampled(frames: Iterator[Any]) -> Iterator[bytes]:
    """The samples of the frames. Each change of format begins a new resampler."""
    form = operator.attrgetter("format.name", "layout.name", "sample_rate")
    for _, stretch in itertools.groupby(frames, form):
        resampler = av.AudioResampler("s16", "mono", RATE)
        for frame in itertools.chain(stretch, [None]):  # None: the end of the stretch
            for part in resampler.resample(frame):
                yield part.to_ndarray().tobytes()


def _from_wav(file: BinaryIO) -> Iterator[bytes]:
    """The same, from PCM of 8 to 32 bits at RATE, channels averaged. Raises InputError for anything else."""
    try:
        with wave.open(file) as sound:
            channels, width, rate, *_ = sound.getparams()
            if rate != RATE or width > 4:
                raise wave.Error
            while data := sound.readframes(RATE):
                data = data[: len(data) // (channels * width) * channels * width]
                numbers = np.zeros([len(data) // width, 4], np.uint8)  # in the highest bytes
                numbers[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
                if width == 1:
                    numbers[:, 3] ^= 0x80  # 8 bits have no sign
                samples = numbers.view("<i4").reshape(-1, channels).mean(1) // 65536
                yield samples.astype(np.int16).tobytes()
    except (wave.Error, EOFError, RuntimeError):
        needed = "pip install -r requirements-audio.txt"
        raise InputError(f"only {RATE} Hz PCM wav can be read without PyAV: {needed}") from None
