"""Where live sound comes from: a microphone, or standard input."""

import os
import re
import sys
import threading
import time
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Any

import numpy as np

from apps.speech.audio import RATE
from apps.speech.live.microphone import hear
from apps.speech.live.samples import resampler
from speculative.common.errors import InputError

_WAITING = 32  # pieces of standard input, of 2 s, that wait to be transcribed
_CONTAINER = re.compile(
    rb"RIFF....WAVE|OggS|fLaC|ID3|\xff[\xf2\xf3\xfa\xfb][\x10-\xe8]|....ftyp|\x1aE\xdf\xa3|FORM....AIF",
    re.S,
)

Piece = np.ndarray | InputError | None  # samples, why there are none, or the end


def listen(source: str, pieces: SimpleQueue[Piece], device: str | None = None) -> Any:
    """Begin to put samples into `pieces` as they arrive, and None at their end: from standard input ("-", raw PCM as in
    `pcm`) or, as `hear`, from a microphone. Keep what is returned. InputError without one."""
    if source != "-":
        return hear(pieces, device)
    threading.Thread(target=_read_stdin, args=[pieces], daemon=True).start()
    return None


def _read_stdin(pieces: SimpleQueue[Piece]) -> None:
    blocks = iter(partial(os.read, sys.stdin.fileno(), 1 << 16), b"")
    data = next(blocks, b"")
    if _CONTAINER.match(data):
        ffmpeg = "ffmpeg -i FILE -f s16le -ac 1 -ar 16000 - | transcribe.py --live -"
        pieces.put(InputError(f"standard input is an audio file, not raw PCM: use {ffmpeg}"))
        return
    samples = resampler(RATE)
    for block in chain([data], blocks):
        pieces.put(samples(block))
        while pieces.qsize() > _WAITING:
            time.sleep(0.05)
    pieces.put(None)
