"""Times in the sound: in order, within it, where something is heard, and none across silence that was left out."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from apps.speech import timeline as constants
from apps.speech.options import TranscribeOptions
from apps.speech.segments import Segment, Word
from apps.speech.timeline import Timeline, share, with_speech
from apps.speech.words import cut_segment

END = 9  # the first token that is no text


def timeline(*speech, frames=1000):
    """Of a sound where somebody speaks between these frames, in pairs, so that silence between them is left out."""
    chances = np.zeros(frames)
    for start, end in zip(speech[::2], speech[1::2], strict=True):
        chances[start:end] = 0.9
    return Timeline(np.zeros((frames, 2), np.float32) + 2 * chances[:, None], chances)


def segment(start, end, *words, text="", tokens=()):
    fields = dict(temperature=0.0, avg_logprob=-0.1, compression_ratio=1.0)
    own = tuple(Word(word, *span, 0.9, 1) for word, *span in words) or None
    return Segment(0, 0, start, end, text, list(tokens), words=own, **fields)


def place(line, *segments, first=0.0, end=100.0):
    end = min(end, len(line.frames) / 100)
    cut = partial(cut_segment, is_text=END.__gt__, decode=lambda tokens: "".join(map(str, tokens)))
    return line.place(segments, first, end, cut)


def spans(segments):
    return [(segment.start, segment.end) for segment in segments]


@pytest.mark.parametrize(
    "given, shared",
    [
        ([(1, 2), (3, 4)], [(1, 2), (3, 4)]),
        ([(1, 2), (2, 2), (2, 3)], [(1, 2), (2, 2.02), (2.02, 3)]),  # the time of the one after
        ([(1, 1), (1, 2)], [(1, 1.02), (1.02, 2)]),
        ([(1, 1), (3, 4)], [(1, 1.02), (3, 4)]),  # free time
        ([(1, 2), (5, 5)], [(1, 2), (4.98, 5)]),
        ([(0, 9), (9, 9)], [(0.5, 4.98), (4.98, 5)]),  # the time of the one before
        ([(1, 3), (2, 9)], [(1, 3), (3, 5)]),  # in order, and not beyond the last
        ([(7, 8), (8, 9)], [(4.96, 4.98), (4.98, 5)]),
    ],
)
def test_each_has_some_time(given, shared):
    for span, expected in zip(share(given, 0.5, 5), shared, strict=True):
        assert span == pytest.approx(expected)


# Frames 60-240 and 560-740 of the sound are transcribed as 0-180 and 180-360.
CUT = 100, 200, 600, 700


def test_a_start_at_a_cut_is_the_next_speechs_and_an_end_the_last_ones():
    first, second = place(timeline(*CUT), segment(0, 1.8), segment(1.8, 3.6))
    assert spans([first, second]) == [(1, 2), (6, 7)]


def test_a_text_across_left_out_silence_is_cut_there():
    words = (" a", 0.3, 1.2), (" b", 1.2, 2.9), (" c", 2.9, 3.2)
    whole = segment(0.2, 3.4, *words, tokens=[9, 1, 2, 3, 9])
    first, second = place(timeline(*CUT), replace(whole, origins=("target",) * 5))
    assert (first.tokens, second.tokens) == ([9, 1], [2, 3, 9])
    assert (first.text, len(second.origins)) == ("91", 3)
    assert spans([first, second]) == [(1, 1.8), (6, 7)]
    assert [w.word for w in second.words] == [" b", " c"] and spans(second.words)[0] == (6, 6.7)


def test_the_end_of_what_was_said_before_the_silence_is_no_part_of_a_text():
    words = (" a", 1.38, 1.42), (" b", 1.42, 3.2)
    (whole,) = place(timeline(*CUT), segment(1.38, 3.4, *words, tokens=[1, 2]))
    assert spans([whole]) == [(6, 7)] and [word.word for word in whole.words] == [" a", " b"]


def test_an_end_is_at_most_the_sounds_and_later_segments_go_before_it():
    line = Timeline(np.zeros((200, 2), np.float32), None)
    assert spans(place(line, segment(0.5, 1.5), segment(1.98, 9), segment(9, 10))) == [
        (0.5, 1.5),
        (1.96, 1.98),
        (1.98, 2),
    ]


def test_silence_at_the_ends_is_not_a_segments():
    loud = np.zeros((400, 2), np.float32)
    loud[100:102] = loud[150:250] = 2  # the first is the end of what was said before
    line = Timeline(loud, None)
    assert spans(place(line, segment(1.01, 3))) == [(1.5, 2.5)]
    assert spans(place(line, segment(2.8, 3.5))) == [(2.8, 3.5)]  # nothing is heard at all


@pytest.mark.parametrize("is_more", [False, True])
@pytest.mark.parametrize(
    "name, amount, after",
    [
        ("_QUIET", -0.01, lambda quiet: [(2 - quiet, 20)]),  # so far below the loudest
        ("_RUN", 1, lambda run: [(0, 20), (2, run - 1)]),  # so long
        ("_RISE", 0.01, lambda rise: [(0, 20), (rise, 3 * constants._RUN)]),  # so much louder
    ],
)
def test_a_little_more_than_a_constant_is_heard_at_an_end(name, amount, after, is_more):
    constant = getattr(constants, name)
    parts = [(2, 50), *after(constant + amount * is_more)]
    length = sum(frames for _, frames in parts)
    sound = np.repeat([level for level, _ in [*parts, (0, 0)]], [*(n for _, n in parts), 30])
    line = Timeline(np.stack([sound, sound], axis=1).astype(np.float32), None)
    end = length / 100 if is_more else 0.5
    assert spans(place(line, segment(0, len(sound) / 100))) == [(0, end)]


@pytest.mark.parametrize("is_less", [False, True])
def test_silence_is_left_out_if_it_is_as_long_as_a_constant_says(is_less):
    margin = constants._MARGIN
    silence = constants._LEFT_OUT + 2 * margin - is_less
    chances = np.repeat([0, 1, 0, 1, 0], [99, 50, silence, 50, 99])
    (begin, *cut, end) = np.flatnonzero(np.diff(with_speech(chances))) + 1
    assert (begin, len(chances) - end) == (99 - margin, 99 - margin)
    assert cut == ([] if is_less else [149 + margin, 149 + margin + constants._LEFT_OUT])


def test_what_has_no_time_gets_as_much_as_a_constant_says():
    (start, end), _ = share([(1, 1), (2, 3)], 0, 5)
    (late,) = place(Timeline(np.zeros((200, 2), np.float32), None), segment(8, 9))
    assert end - start == pytest.approx(constants._SHORTEST) == 2 - late.start


@pytest.mark.parametrize("decibels", [30, 45])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_quiet_speaker_in_a_loud_ones_segment_is_not_cut(decibels, noise):
    sound = np.full((600, 2), noise, np.float32)
    sound[250:300] = np.linspace(2, noise, 50)[:, None]  # an echo, which no speaker is
    sound[50:250] = 2
    assert spans(place(Timeline(sound, None), segment(0, 6))) == [(0.5, pytest.approx(2.8, 0.1))]
    sound[350:550] = 2
    assert spans(place(Timeline(sound, None), segment(2.88, 6))) == [(3.5, 5.5)]  # not the echo
    sound[350:550] = 2 - decibels / 40
    sound = np.concatenate([sound, sound[::-1]])
    given = segment(0, 6), segment(6, 12)
    assert spans(place(Timeline(sound, None), *given)) == [(0.5, 5.5), (6.5, 11.5)]


def test_random_segments_have_times_in_order_and_none_across_left_out_silence():
    for seed in range(200):
        random = Random(seed)
        line = timeline(*sorted(random.sample(range(1000), random.choice([2, 4, 6]))))
        left_out = ~np.isin(np.arange(1000), line.frames)
        last = now = 0.0
        for _ in range(4):  # windows
            end = now + random.choice([0.3, 2, 9])
            times = [(now + random.uniform(0, 4), random.uniform(0, 4)) for _ in range(5)]
            given = []
            for start, length in sorted(times):
                words = sorted(random.uniform(start - 1, start + length + 1) for _ in range(4))
                pairs = pairwise(words)
                words = [("x", max(0, a), max(0, random.choice([a, b]))) for a, b in pairs]
                given.append(segment(start, start + length, *words, tokens=[1, 2, 3]))
            if now * 100 + 1 < len(line.frames):
                for each in place(line, *given, first=now, end=end):
                    assert each.start < each.end <= 10
                    short = each.end - each.start < 0.02  # three words may share a few ms
                    for a, b in spans(each.words):
                        assert each.start <= a <= b <= each.end and (a < b or short)
                        assert not left_out[int(a * 100 + 0.1) : int(b * 100)].any()
                    assert each.start >= last
                    last = each.end
            now = end


def test_adjacent_clips_are_several():
    line = Timeline(np.zeros((900, 2), np.float32), None)
    assert line.clips((0, 4, 4, 8)) == [(0, 400), (400, 800)] and line.clips(()) == [(0, 900)]
    assert timeline(*CUT).clips((0, 6.2)) == [(0, 240)]
    assert TranscribeOptions(clip_timestamps=(0, 4, 4, 8)).clip_timestamps
