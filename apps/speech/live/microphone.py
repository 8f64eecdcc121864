"""A microphone as a source of live sound."""

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from apps.speech import audio
from apps.speech.live.samples import resampler
from speculative.common.errors import InputError
from speculative.common.reporting import reporter

_PATIENCE = 5.0  # seconds of zeros that are told; twice as long without anything ends the sound
_ZEROS = "only zeros from the microphone: muted, closed, or not allowed in System Settings > Privacy & Security > Microphone"


def hear(pieces: SimpleQueue[Any], device: str | None) -> Any:
    """Begin to put samples into `pieces` as they arrive, and None if no more do. device: the microphone's name, a part of that,
    or its number; None: the system's. Keep what is returned. InputError without one."""
    try:
        import sounddevice  # type: ignore[import-untyped]
    except (ImportError, OSError) as error:
        raise InputError(f"a microphone needs: pip install sounddevice ({error})") from None
    blocks = SimpleQueue[Any]()  # 16-bit samples, each block with PortAudio's flags
    try:
        number = int(device) if device and device.isdecimal() else device
        rate = audio.RATE
        if audio.av:
            rate = round(sounddevice.query_devices(number, "input")["default_samplerate"])
        samples = resampler(rate)
        form = dict(channels=1, dtype="int16", device=number)
        take = lambda data, frames, time, flags: blocks.put((bytes(data), flags))  # noqa: E731
        stream = sounddevice.RawInputStream(rate, callback=take, **form)
        stream.start()
    except (sounddevice.PortAudioError, ValueError) as error:
        raise InputError(f"no microphone: {error}") from None
    Thread(target=_pass_on, args=[blocks, samples, pieces], daemon=True).start()
    return stream


def _pass_on(blocks: SimpleQueue[Any], resampled: Callable, pieces: SimpleQueue[Any]) -> None:
    """Pass on what arrives, and say what is wrong with it."""
    zeros = overflows = 0  # samples since one that is none; how often sound was lost
    is_told = False
    with suppress(Empty):
        while True:
            block, flags = _next(blocks)
            samples = resampled(block)  # of another rate: small ones may become zeros
            pieces.put(samples)
            if flags and flags.input_overflow:
                overflows += 1
                reporter.note(f"overflow {overflows} of the microphone: some sound is lost")
            zeros = 0 if any(block) else zeros + len(samples)
            if zeros >= _PATIENCE * audio.RATE and not is_told:
                reporter.note(_ZEROS)
                is_told = True
    reporter.note("the microphone stopped; the words so far are final")
    pieces.put(None)


def _next(blocks: SimpleQueue[Any]) -> Any:
    """The next block. Empty if none comes in twice the time: a computer may have slept during the first."""
    with suppress(Empty):
        return blocks.get(timeout=_PATIENCE)
    return blocks.get(timeout=_PATIENCE)
