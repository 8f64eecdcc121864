"""A window's text as segments, cut at its timestamps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from speech.features import FRAMES
from speech.formats import Segment
from speech.options import Attempt
from speech.rules import SECONDS_PER_TIMESTAMP

_PER_TIMESTAMP = round(SECONDS_PER_TIMESTAMP * FRAMES)  # frames


@dataclass
class Cut:
    """The segments of a window's text."""

    segments: list[Segment]
    advance: int  # frames that they cover
    rest: list[int] | None = None  # tokens after the last segment; None: the text is complete


def cut(
    attempt: Attempt,
    seek: int,
    size: int,
    first_timestamp: int,
    decode: Callable[[Sequence[int]], str],
    complete: bool,
) -> Cut:
    """Cut a window's text. Two timestamps in a row end one segment and begin the next. Text after the last pair
    is left for the next window, unless one timestamp ends it.

    seek, size: the window's first frame and how many it has; decode: the text of tokens, without timestamps;
    complete: leave no text for a next window
    """
    tokens = attempt.tokens
    stamps = [token >= first_timestamp for token in tokens]

    def frame(index: int) -> int:
        """Of a timestamp, in the window."""
        return (tokens[index] - first_timestamp) * _PER_TIMESTAMP

    def segment(begin: int, end: int, first: int, last: int) -> Segment:
        """Of tokens begin to end, from one frame of the window to another."""
        return Segment(
            id=0,
            seek=seek,
            start=(seek + first) / FRAMES,
            end=(seek + last) / FRAMES,
            text=decode(tokens[begin:end]),
            tokens=tokens[begin:end],
            origins=tuple(attempt.origins[begin:end]),
            temperature=attempt.temperature,
            avg_logprob=attempt.avg_logprob,
            compression_ratio=attempt.compression_ratio,
            no_speech_prob=attempt.no_speech_prob,
        )

    complete = complete or stamps[-2:] == [False, True]
    cuts = [i + 1 for i, pair in enumerate(pairwise(stamps)) if all(pair)]
    if not cuts:
        later = [i for i, token in enumerate(tokens) if token > first_timestamp]
        last = max(map(frame, later), default=size)
        whole = segment(0, len(tokens), 0, last)
        return Cut([whole], size, None if complete else [])
    bounds = [0, *cuts]
    if complete:
        bounds.append(len(tokens))
    segments = []
    for begin, end in pairwise(bounds):
        last = frame(end - 1) if stamps[end - 1] else size
        segments.append(segment(begin, end, frame(begin), last))
    if complete:
        return Cut(segments, size)
    rest = [first_timestamp, *tokens[cuts[-1] + 1 :]]
    return Cut(segments, max(1, frame(cuts[-1] - 1)), rest)
