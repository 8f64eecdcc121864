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
Check = Callable[[float], None]


def check_length(seconds: float, longest: float = 24 * 3600) -> None:
    """Raise InputError for a sound that is longer: weeks of silence fit into a few MB."""
    if round(seconds) > longest:
        raise InputError(f"more than {longest} seconds of audio; cut it")


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


def decoded(file: BinaryIO, report: Report, check: Check = check_length) -> np.ndarray:
    """As `read`, from an open file; errors do not name it. check: called with the seconds read so far, to raise if they
    are too many or nobody wants them any more."""
    if not file.seekable():
        file = io.BytesIO(file.read())  # many formats have their index at the end
    samples = _from_ffmpeg(file, report, check) if av else _from_wav(file)
    check(len(samples) / RATE)
    if not samples.size:
        raise InputError("holds no audio")
    return samples


def _from_ffmpeg(file: BinaryIO, report: Report, check: Check) -> np.ndarray:
    nothing_else = {"protocol_whitelist": "none"}  # open no file or address named in a playlist
    try:
        with av.open(
            file, "r", metadata_errors="replace", container_options=nothing_else
        ) as container:
            tracks = container.streams.audio
            track = next((each for each in tracks if each.codec_context), None)
            if not track:  # before PyAV 18.1, decoding an unknown codec ends the process
                raise InputError("holds no audio")
            sound = b"".join(_resampled(_frames(container.demux(track), report, check)))
    except av.error.FFmpegError as error:
        raise InputError(f"no audio file that FFmpeg reads ({error.strerror})") from None
    return np.divide(np.frombuffer(sound, np.int16), 32768, dtype=np.float32)


def _readable(packets: Iterator[Any], report: Report) -> Iterator[Any]:
    """The packets up to where the file becomes unreadable."""
    try:
        yield from packets
    except IndexError:  # PyAV 18, at the end of files whose tracks begin after the header
        pass
    except av.error.FFmpegError:
        report("damaged; what follows the damage is left out")


def _frames(packets: Iterator[Any], report: Report, check: Check) -> Iterator[Any]:
    """The frames of the packets that can be decoded."""
    count = 0
    damaged = 0
    seconds = 0.0
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
            seconds += frame.samples / frame.sample_rate
            check(seconds)
            yield frame
    if damaged and seconds:
        report(f"{damaged} of {count} packets are damaged and left out")


def _resampled(frames: Iterator[Any]) -> Iterator[bytes]:
    """16-bit samples, mono, RATE a second. Each change of format begins a new resampler."""
    form = operator.attrgetter("format.name", "layout.name", "sample_rate")
    for _, stretch in itertools.groupby(frames, form):
        resampler = av.AudioResampler("s16", "mono", RATE)
        for frame in itertools.chain(stretch, [None]):  # None: the end of the stretch
            for part in resampler.resample(frame):
                yield part.to_ndarray().tobytes()


def _from_wav(file: BinaryIO) -> np.ndarray:
    """PCM of 8 to 32 bits at RATE, channels averaged. Raises InputError for anything else."""
    try:
        with wave.open(file) as sound:
            channels, width, rate, *_ = sound.getparams()
            if rate != RATE or width > 4:
                raise wave.Error
            data = sound.readframes(sound.getnframes())
    except (wave.Error, EOFError, RuntimeError):
        needed = "pip install -r requirements-audio.txt"
        raise InputError(f"only {RATE} Hz PCM wav can be read without PyAV: {needed}") from None
    data = data[: len(data) // (channels * width) * channels * width]
    numbers = np.zeros([len(data) // width, 4], np.uint8)  # little-endian, in the highest bytes
    numbers[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
    if width == 1:
        numbers[:, 3] ^= 0x80  # 8 bits have no sign
    samples = np.divide(numbers.view("<i4"), 2**31, dtype=np.float32)
    return samples.reshape(-1, channels).mean(1)
