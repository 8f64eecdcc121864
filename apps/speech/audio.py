"""Reads sound files: with PyAV, which brings FFmpeg, nearly all of them; without it 16 kHz wav."""

import io
import math
import sys
import wave
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, BinaryIO

import numpy as np

from speculative.common.errors import InputError
from speculative.text.languages import Languages

try:
    import av
    from av.format import Flags
    from av.stream import Disposition
except ImportError:
    av = None  # type: ignore[assignment]

RATE = 16_000  # samples a second
_HOLE = 0.1  # seconds without sound that silence stands in for; less is rounding
_JUMP = 10  # seconds that are no hole where clocks may be set anew, as in broadcasts
_EARLY = 1.0  # seconds by which a sound may be shorter than its file says

WITHOUT_AV = "can be read without PyAV: pip install -r requirements-apps.txt"

Report = Callable[[str], None]
Check = Callable[[float], None]


def pcm(data: bytes) -> np.ndarray:
    """The samples of 16 bits each, little-endian."""
    return np.divide(np.frombuffer(data, "<i2"), 32768, dtype=np.float32)


def floats(samples: np.ndarray) -> np.ndarray:
    """Samples in [-1, 1], float32, of those that other libraries read, which may be integers of any size."""
    if np.issubdtype(samples.dtype, np.integer):
        limits = np.iinfo(samples.dtype)
        half = (limits.max - limits.min + 1) / 2
        samples = np.subtract(samples, limits.min + half, dtype=np.float32) / half
    return samples.astype(np.float32, copy=False)


def check_length(seconds: float, longest: float = 24 * 3600) -> None:
    """Raise InputError for a sound that is longer: weeks of silence fit into a few MB."""
    if round(seconds) > longest:
        raise InputError(f"more than {longest} seconds of audio; cut it")


def read(source: str, report: Report = lambda line: None, **wanted: Any) -> np.ndarray:
    """As `decoded`, from a path, or "-" for standard input. Lines to `report` and errors name it."""
    is_stdin = source == "-"
    name = "standard input" if is_stdin else source
    try:
        with open(sys.stdin.fileno() if is_stdin else source, "rb", closefd=not is_stdin) as file:
            return decoded(file, lambda line: report(f"{name}: {line}"), **wanted)
    except OSError as error:
        reason = error.strerror or error
        if "://" in source:
            reason = "an address, not a file; download it first"
        raise InputError(f"{name}: {reason}") from None
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def decoded(
    file: BinaryIO,
    report: Report,
    check: Check = check_length,
    track: str | None = None,
    channels: Sequence[int] = (),
) -> np.ndarray:
    """A sound track, mono: [samples], float32 in [-1, 1], RATE a second; or some channels of it: [channels, samples]. Silence
    stands where the file has no sound, so times are the file's.

    report: gets a line about what is left out; check: may raise after so many seconds; track: its number or its language (None:
    the default one); channels: their numbers. Both count from 1. Raises InputError for what is not there.
    """
    if not file.seekable():
        file = io.BytesIO(file.read())  # many formats have their index at the end
    if not file.read(1):  # FFmpeg's seeks in it would end in a traceback
        raise InputError("is empty")
    file.seek(0)
    sound = _from_ffmpeg(file, report, check, track, not channels) if av else _from_wav(file)
    check(sound.shape[1] / RATE)
    if not sound.size:
        raise InputError("holds no audio")
    for number in channels:
        if not 1 <= number <= len(sound):
            raise InputError(f"no channel {number}; there are {len(sound)}")
    if channels:
        return sound[[number - 1 for number in channels]]
    return sound.mean(0)


def _from_ffmpeg(
    file: BinaryIO, report: Report, check: Check, wanted: str | None, mixed: bool
) -> np.ndarray:
    alone = {"protocol_whitelist": "none"}  # open no file or address named in a playlist
    try:
        with av.open(file, "r", metadata_errors="replace", container_options=alone) as container:
            track = _track(container.streams.audio, wanted)
            layout = track.layout
            if mixed:
                layout = av.AudioLayout("mono")
            start = (container.start_time or 0) / av.time_base  # where players begin
            frames = _frames(container.demux(track), report, _is_bare(container))
            sound = b"".join(_resampled(_after_holes(frames, container, start, check), layout))
            length = len(sound) / (2 * layout.nb_channels * RATE)
            said = _said(container, track)
            if start + length + _EARLY < said:
                report(f"ends at {length:.1f} s, though it says {said:.1f} s")
    except av.error.FFmpegError as error:
        raise InputError(f"no audio file that FFmpeg reads ({error.strerror})") from None
    return pcm(sound).reshape(-1, layout.nb_channels).T


def _track(tracks: Sequence[Any], wanted: str | None) -> Any:
    """The track of this number or language; without one, the file's default."""
    # Before PyAV 18.1, decoding an unknown codec ends the process.
    numbered = {str(i): track for i, track in enumerate(tracks, 1) if track.codec_context}
    if not numbered:
        raise InputError("holds no audio")
    if wanted is None:
        tracks = numbered.values()
        return max(tracks, key=lambda track: bool(track.disposition & Disposition.default))
    if wanted.isdecimal():
        if wanted not in numbered:
            raise InputError(f"no audio track {wanted}; there are {', '.join(numbered)}")
        return numbered[wanted]
    languages = {track.language or "und": track for track in reversed(numbered.values())}
    return languages[Languages(dict.fromkeys(languages, "")).find("audio_track", wanted)]


def _is_bare(container: Any) -> bool:
    """Whether it is nothing but frames, as .mp3 and .aac, between which there may be anything. FFmpeg counts their samples."""
    flags = container.format.flags
    return bool(flags & Flags.generic_index.value) and not flags & Flags.ts_discont.value


def _said(container: Any, track: Any) -> float:
    """The seconds that a file says a track lasts; 0 if FFmpeg only knows the last packet's time, or guesses from its size."""
    said = float((track.duration or 0) * (track.time_base or 0))
    guess = 8 * container.size / (track.bit_rate or math.inf)
    is_guessed = _is_bare(container) and said < guess + _EARLY
    return 0.0 if is_guessed or container.format.flags & Flags.ts_discont.value else said


def _after_holes(
    frames: Iterator[tuple[float, Any]], container: Any, start: float, check: Check
) -> Iterator[tuple[float, Any]]:
    """Each frame with the seconds of silence before it, from frames with the seconds of damage before each."""
    latest = start + container.duration / av.time_base if container.duration else math.inf
    resets = bool(container.format.flags & Flags.ts_discont.value)  # its clock, as in broadcasts
    timed = not _is_bare(container)
    end = 0.0
    for silence, frame in frames:
        if timed:
            ahead = -1.0 if frame.time is None else frame.time - start - end
            is_hole = ahead > _HOLE and frame.time <= latest and not (resets and ahead > _JUMP)
            silence = ahead if is_hole else 0.0
        end += silence + frame.samples / frame.sample_rate
        check(end)
        yield silence, frame


def _readable(packets: Iterator[Any], report: Report) -> Iterator[Any]:
    """The packets up to where the file becomes unreadable."""
    try:
        yield from packets
    except IndexError:  # PyAV 18, at the end of files whose tracks begin after the header
        pass
    except av.error.FFmpegError:
        report("damaged; what follows the damage is left out")


def _frames(packets: Iterator[Any], report: Report, is_bare: bool) -> Iterator[tuple[float, Any]]:
    """The frames of the packets that can be decoded, each with the seconds of damaged ones before it."""
    lost = 0.0
    damaged = 0
    head = b""  # of every frame, if they are bare; what begins otherwise is no sound, but a tag, for example
    for packet in _readable(packets, report):
        try:
            frames = packet.decode()
        except av.error.FFmpegError:
            if packet.has_sidedata("encryption_info"):
                raise InputError("is encrypted") from None
            if not is_bare or bytes(packet)[:1] == head:
                damaged += 1
                lost += float((packet.duration or 0) * packet.time_base)
            continue
        head = head or bytes(packet)[:1]
        for frame in frames:
            if not 1000 <= frame.sample_rate <= 1_000_000:
                raise InputError(f"damaged: {frame.sample_rate} samples a second")
            yield lost, frame
            lost = 0.0
    if damaged and not head:
        raise InputError("is encrypted, or damaged all over")
    if damaged:
        report(f"damaged packets: {damaged}; silence stands in for them")


def _resampled(frames: Iterator[tuple[float, Any]], layout: Any) -> Iterator[bytes]:
    """16-bit samples of this layout, at RATE, of frames and the silence before each. Their format may change."""
    form = attrgetter("format.name", "layout.name", "sample_rate")
    for _, alike in groupby(frames, lambda pair: form(pair[1])):
        resampler = av.AudioResampler("s16p", layout, RATE)
        for silence, frame in alike:
            yield bytes(2 * layout.nb_channels * round(silence * RATE))
            yield from samples_of(resampler, frame)
        yield from samples_of(resampler, None)


def samples_of(resampler: Any, frame: Any) -> Iterator[bytes]:
    """The samples that come of a frame; None: of the end."""
    for part in resampler.resample(frame):
        yield part.to_ndarray().T.tobytes()


def _from_wav(file: BinaryIO) -> np.ndarray:
    """PCM of 16 bits at RATE: [channels, samples]. Raises InputError for anything else."""
    try:
        with wave.open(file) as sound:
            channels, width, rate, *_ = sound.getparams()
            if (width, rate) != (2, RATE):
                raise wave.Error
            data = sound.readframes(sound.getnframes())
    except (wave.Error, EOFError, RuntimeError):
        raise InputError(f"only {RATE} Hz wav of 16 bits {WITHOUT_AV}") from None
    whole = len(data) // (2 * channels) * 2 * channels
    return pcm(data[:whole]).reshape(-1, channels).T
