"""A call, of which each channel has one speaker: what all say in the order of time, once if another channel hears it too."""

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

import numpy as np
from rapidfuzz import fuzz

from apps.speech.audio import RATE
from apps.speech.segments import Transcript
from speculative.step.row import Stats
from speculative.text.lines import UNIT

_SAME = 80  # percent of a text that another one has, if both say the same


def joined(
    transcripts: Sequence[Transcript], names: Sequence[str], channels: np.ndarray
) -> Transcript:
    """The transcript of a call, in the language of the channel with most words, without what a louder channel has at the
    same time. transcripts, names: of each channel; channels: their samples, [channels, N]"""
    said = [(s.start, i, s) for i, own in enumerate(transcripts) for s in own.segments]
    said.sort(key=itemgetter(0))
    for each in [*said]:
        start, channel, segment = each
        span = channels[:, round(start * RATE) : round(segment.end * RATE)]
        energy = np.square(span, dtype=np.float64).sum(axis=1)
        energy[:channel] *= 1 + 1e-9  # of two that are alike, the first
        beside = [other for other in said if other[0] < segment.end and start < other[2].end]
        louder = "".join(s.text for _, i, s in beside if energy[i] > energy[channel]).casefold()
        text = segment.text.casefold()
        if fuzz.partial_ratio(text, louder.ljust(len(text))) >= _SAME:
            said.remove(each)
    words = [i for _, i, segment in said for _ in UNIT.findall(segment.text)]
    segments = [replace(s, id=n, speaker=names[i]) for n, (_, i, s) in enumerate(said)]
    return replace(
        transcripts[int(np.bincount(words, minlength=1).argmax())],
        text="".join(segment.text for segment in segments),
        segments=tuple(segments),
        stats=sum((own.stats for own in transcripts), Stats()),
    )
