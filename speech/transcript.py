"""Transcribes a whole sound, window by window.

`Sound.steps` yields the rows to decode next. So one batch can decode many sounds together, each in its own order.
"""

from collections.abc import Callable, Sequence

import numpy as np

from speculative.row import Stats
from speculative.tasks import Task
from speech.features import HOP, RATE, log_mel
from speech.pipeline import Pipeline
from speech.reference import Reference
from speech.segments import Segment
from speech.timeline import Timeline
from speech.voice import first_speech, last_pause, probabilities
from speech.window import Window

_TOGETHER = 32  # windows of a sound, if batched: their features stay in memory

OnWindow = Callable[[Sequence[Segment], float, Stats], object]


class Sound:
    """A sound that is being transcribed."""

    def __init__(
        self, pipeline: Pipeline, samples: np.ndarray, on_window: OnWindow = lambda *_: None
    ):
        """samples: mono, in [-1, 1], 16,000 a second
        on_window: called after each window with its segments, the seconds of sound done, and the stats so far
        """
        options = pipeline.options
        self._pipeline, self._on_window = pipeline, on_window
        self._duration = len(samples) / RATE
        self._features = log_mel(samples, pipeline.config.num_mel_bins)
        self._speech = probabilities(samples) if options.vad else None  # of each frame
        self._timeline = Timeline(self._features, self._speech)
        if self._speech is not None:
            self._features = self._features[self._timeline.frames]
            self._speech = self._speech[self._timeline.frames]
        self._clips = self._timeline.clips(options.clip_timestamps)
        self._first_speech = 0  # a frame
        if pipeline.language is None and not options.vad:
            begin = self._clips[0][0]
            self._first_speech = begin + (first_speech(samples[begin * HOP :]) or 0)
        longest = pipeline.config.max_positions // 2
        self._reference = Reference(options.reference, pipeline.tokens, pipeline.special, longest)

    def steps(self) -> Task:
        """Transcribe the sound."""
        pipeline = self._pipeline
        rest: list[int] = []  # the unfinished text at the end of the last window
        for seek, end in self._clips:
            while seek < end:
                windows = self._next_windows(seek, end, rest)
                if pipeline.language is None:
                    spoken = self._language_window(windows[0])
                    pipeline.language = yield from pipeline.detect(spoken)
                windows = yield from pipeline.decode(windows, pipeline.language)
                windows = yield from pipeline.cut(windows, self._timeline)
                for window in windows:
                    segments = pipeline.append(window, self._timeline)
                    rest = window.rest or []
                    self._reference.follow([token for s in segments for token in s.tokens])
                    seek += window.advance
                    self._on_window(segments, self._timeline.seconds(seek), pipeline.stats)
        return pipeline.transcript(self._duration)

    def _next_windows(self, seek: int, end: int, rest: list[int]) -> list[Window]:
        """The next window; or with `batched` some that end in pauses, each in its second half. rest: how its text begins,
        if that is known"""
        longest = self._pipeline.config.frames
        windows = list[Window]()
        while seek < end and len(windows) < (_TOGETHER if self._pipeline.options.batched else 1):
            size = min(longest, end - seek)
            if self._pipeline.options.batched and self._speech is not None and end - seek > longest:
                half = longest // 2
                size = half + last_pause(self._speech[seek + half : seek + longest])
            draft = self._reference.draft(self._timeline.seconds(seek), rest)
            windows.append(self._pipeline.window(self._features[seek : seek + size], seek, draft))
            seek += size
        return windows

    def _language_window(self, window: Window) -> Window:
        """The window to detect the language in: this one, or a later one that begins where somebody speaks, if nobody does
        in the first half of this one."""
        longest = self._pipeline.config.frames
        if self._first_speech - window.seek <= longest // 2:
            return window
        first = self._first_speech
        return self._pipeline.window(self._features[first : first + longest], first)
