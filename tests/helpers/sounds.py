"""Sounds for tests."""

import io
import wave
from pathlib import Path

import numpy as np

RATE = 16_000


def write_wav(path: Path, seconds: float, seed: int = 0, rate: int = RATE) -> None:
    """Noise, mono, 16 bits."""
    noise = np.random.default_rng(seed).normal(0, 3000, int(seconds * rate)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(noise.tobytes())


def tone(seconds: float = 1, rate: int = RATE, hertz: float = 440) -> np.ndarray:
    """[samples, 1], int16, at 0.4 of the greatest value."""
    times = np.arange(round(seconds * rate)) / rate
    return (0.4 * 32767 * np.sin(2 * np.pi * hertz * times)).astype(np.int16)[:, None]


def sound_file(
    container: str, codec: str, sound: np.ndarray, rate: int = RATE, video: bool = False, **options
) -> bytes:
    """A file of FFmpeg's format `container`, by PyAV. sound: [samples, channels]; video: a picture track before it; options:
    FFmpeg's, for the container."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=container, options=options) as output:
        streams = []
        if video:
            picture = av.VideoFrame.from_ndarray(np.zeros([64, 64, 3], np.uint8))
            streams.append((output.add_stream("mpeg4", rate=5), [picture] * 3))
            streams[0][0].width = streams[0][0].height = 64
        if sound.size:
            layout = {1: "mono", 2: "stereo"}[sound.shape[1]]
            frame = av.AudioFrame.from_ndarray(sound.reshape(1, -1), "s16", layout)
            frame.sample_rate = rate
            streams.append((output.add_stream(codec, rate=rate, layout=layout), [frame]))
        for stream, frames in streams:
            for part in [*frames, None]:
                output.mux(stream.encode(part))
    return file.getvalue()
