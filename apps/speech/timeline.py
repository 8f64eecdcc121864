"""The times of transcribed frames in a sound, and times that are true: in order, and none across silence that was left out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

import numpy as np

from apps.speech.features import FRAMES
from apps.speech.segments import Segment, Word
from apps.speech.voice import PAUSE_CHANCE, SPEECH_CHANCE

_QUIET = 1.0  # in features, 40 dB: what is so far below a span's loudest frame is not heard in it
_RISE = 0.25  # 10 dB: what is so much louder than before, for three runs, is no echo
_RUN = 5  # frames; what is heard for a shorter time at a segment's end belongs to its neighbour
_LEFT_OUT = 200  # frames of silence that are not transcribed; less is, as in faster-whisper
_MARGIN = 40  # frames around speech that are
_SHORTEST = 0.02  # seconds of a text or a word, where there is time for it

Span = tuple[float, float]  # start and end in seconds
Part = tuple[int, Segment]  # with the number of the piece of the sound that it is in
CutSegment = Callable[[Segment, list[list[Word]]], Iterator[Segment]]


class Timeline:
    """The frames of a sound that are transcribed, in which all times are but those of `place` and `seconds`."""

    def __init__(self, features: np.ndarray, chances: np.ndarray | None, first: int = 0):
        """features: of each frame; chances: how probable speech is in it, if only that is transcribed; first: its number"""
        numbers = np.arange(len(features))
        loudness = features.max(axis=1, initial=-np.inf)
        self._silence = loudness.min(initial=np.inf)
        if chances is not None:
            numbers = np.flatnonzero(with_speech(chances))
            loudness = np.where(chances >= PAUSE_CHANCE, loudness, -np.inf)
        self._loudness = loudness[numbers]
        self.frames = first + numbers  # each one's number in the sound
        self._cuts = np.flatnonzero(np.diff(self.frames) > 1) + 1  # behind silence that is left out
        self._last = 0.0  # the end of the last segment
        self._bounds = [0, *self._cuts.tolist(), len(self.frames)]  # of the pieces between

    def clips(self, times: Sequence[float]) -> list[tuple[int, int]]:
        """The frames to transcribe, first and end, of clips: start, end, start, ... in seconds of the sound."""
        points = np.searchsorted(self.frames, [round(t * FRAMES) for t in times] or [0]).tolist()
        if len(points) % 2:
            points.append(len(self.frames))
        return list(zip(points[::2], points[1::2], strict=True))

    def seconds(self, frame: int) -> float:
        """The time in the sound where this frame begins; behind the last one, where that ends."""
        before = self.frames[min(frame, len(self.frames) - 1)]
        return float(before + (frame >= len(self.frames))) / FRAMES

    def is_cut(self, segment: Segment) -> bool:
        return self._piece(segment.start) < self._piece(segment.end, True)

    def _piece(self, time: float, is_end: bool = False) -> int:
        """The number of cuts before what begins, or ends, at a time."""
        return int(np.searchsorted(self._cuts, round(time * FRAMES) + (not is_end)))

    def place(
        self, segments: Sequence[Segment], first: float, end: float, cut: CutSegment
    ) -> list[Segment]:
        """The segments with their times in the sound, none before the end of the last one. first, end: of the time that is
        theirs; cut: cuts a segment between groups of its words, which those across a cut need"""
        first = max(first, self._last)
        latest = max(first, end - _SHORTEST)  # what is behind the end is put before it
        parts = list[Part]()
        for segment in segments:
            inside = replace(segment, start=min(segment.start, latest), end=min(segment.end, end))
            least = parts[-1][0] if parts else 0
            parts += self._parts(inside, least, cut)
        placed = list[Segment]()
        for piece, group in groupby(parts, key=itemgetter(0)):
            begin = self._bounds[piece]
            offset = float(self.frames[begin] - begin) / FRAMES
            own = [segment for _, segment in group]
            limits = max(first, begin / FRAMES), min(end, self._bounds[piece + 1] / FRAMES)
            spans = share([self._trimmed(s.start, s.end) for s in own], *limits)
            self._last = spans[-1][1]
            placed += [self._moved(*pair, offset) for pair in zip(own, spans, strict=True)]
        return [segment for segment in placed if segment.end > segment.start]

    def _parts(self, segment: Segment, least: int, cut: CutSegment) -> Iterator[Part]:
        """The parts of a segment between cuts, each with its piece. A word is where most of it is heard."""
        start, end = self._trimmed(segment.start, segment.end)
        piece = max(least, self._piece(start))
        last = max(piece, self._piece(end, True))
        if piece == last or not segment.words:
            yield piece, segment
            return
        groups: dict[int, list[Word]] = {}
        for word in segment.words:
            first = round(word.start * FRAMES)
            heard = first + np.flatnonzero(self._heard(first, round(word.end * FRAMES)))
            middle = np.median(heard) / FRAMES if heard.size else (word.start + word.end) / 2
            piece = min(max(piece, self._piece(middle)), last)
            groups.setdefault(piece, []).append(word)
        for piece, part in zip(groups, cut(segment, list(groups.values())), strict=True):
            start = max(segment.start, self._bounds[piece] / FRAMES)
            end = min(segment.end, self._bounds[piece + 1] / FRAMES)
            yield piece, replace(part, start=start, end=end)

    def _heard(self, first: int, end: int) -> np.ndarray:
        """In which of these frames something is heard, beside the loudest of them: a quiet speaker's segment is his own."""
        loudness = self._loudness[first:end]
        return loudness > max(loudness.max(initial=-np.inf) - _QUIET, self._silence)

    def _trimmed(self, start: float, end: float) -> Span:
        """A span without the silence at its ends. A quieter sound in it, as another speaker's, is none."""
        first = round(start * FRAMES)
        last = round(end * FRAMES)
        runs = stretches(self._heard(first, last))
        long = [run for run in runs if run[1] - run[0] >= _RUN] or runs
        if not long:
            return start, end
        begin = first + long[0][0]
        stop = first + long[-1][1]
        begin -= _quieter(self._loudness[first:begin][::-1])
        stop += _quieter(self._loudness[stop:last])
        return begin / FRAMES, stop / FRAMES

    def _moved(self, segment: Segment, span: Span, offset: float) -> Segment:
        """The segment with this span, and its words within, both later by `offset`."""
        words = segment.words
        if words:
            spans = share([self._trimmed(word.start, word.end) for word in words], *span)
            words = tuple(
                replace(word, start=round(start + offset, 3), end=round(end + offset, 3))
                for word, (start, end) in zip(words, spans, strict=True)
            )
            span = spans[0][0], spans[-1][1]
        start, end = (round(bound + offset, 3) for bound in span)
        return replace(segment, start=start, end=end, words=words)


def with_speech(chances: np.ndarray) -> np.ndarray:
    """The frames to transcribe, [frames] boolean: speech, what is near it, and short silence."""
    transcribed = np.zeros(len(chances), bool)
    for start, end in stretches(chances >= PAUSE_CHANCE):
        if chances[start:end].max() >= SPEECH_CHANCE:
            transcribed[max(0, start - _MARGIN) : end + _MARGIN] = True
    for start, end in stretches(~transcribed):
        if start and end < len(transcribed) and end - start < _LEFT_OUT:
            transcribed[start:end] = True
    return transcribed


def stretches(where: np.ndarray) -> list[list[int]]:
    """The beginnings and ends of what is true."""
    return np.flatnonzero(np.diff(np.pad(where, 1))).reshape(-1, 2).tolist()


def _quieter(loudness: np.ndarray) -> int:
    """The frames up to the end of the last sound in what fades: it is louder than a frame before it."""
    rising = loudness > np.minimum.accumulate(loudness) + _RISE
    return max((end for start, end in stretches(rising) if end - start >= 3 * _RUN), default=0)


def share(spans: Sequence[Span], first: float, last: float) -> list[Span]:
    """The spans in order, between two times. Each has a length, if there is time: one without takes it from its neighbour."""
    least = max(0.0, min(_SHORTEST, (last - first) / len(spans)))
    shared = list[Span]()
    for start, end in spans:
        start = max(start, first)
        first = max(end, start + least)
        shared.append((start, first))
    for i in reversed(range(len(shared))):
        start, end = shared[i]
        shared[i] = min(start, last - least), min(end, last)
        last = shared[i][0]
    return shared
