"""Transcripts as files, whole, as OpenAI's writers make them."""

import json
import random
from dataclasses import replace
from itertools import pairwise

from apps.speech.captions import captions
from apps.speech.formats import FORMATS
from apps.speech.options import Layout
from apps.speech.segments import Segment, Transcript, Word


def segment(number: int, start: float, end: float, text: str, **fields) -> Segment:
    values = {"seek": 3000 * number, "tokens": [50364, 440, 50614], "temperature": 0.2}
    values |= {"avg_logprob": -0.25, "compression_ratio": 1.5, "no_speech_prob": 0.125}
    return Segment(id=number, start=start, end=end, text=text, **values | fields)


SEGMENTS = [
    segment(0, 0.0, 5.0, " Hello, world."),
    segment(1, 5.0, 61.9996, " From a --> b\tand back.\nA second line. "),
    segment(2, 3599.5, 3661.007, " Grüße, 你好! 🙂", no_speech_prob=None),
]
TRANSCRIPT = Transcript("".join(each.text for each in SEGMENTS), tuple(SEGMENTS), "en", 3700.0)
NOTHING = Transcript("", (), "en", 30.0)

TXT = """\
Hello, world.
From a --> b\tand back.
A second line.
Grüße, 你好! 🙂
"""
VTT = """\
WEBVTT

00:00.000 --> 00:05.000
Hello, world.

00:05.000 --> 01:02.000
From a -> b\tand back.
A second line.

59:59.500 --> 01:01:01.007
Grüße, 你好! 🙂

"""
SRT = """\
1
00:00:00,000 --> 00:00:05,000
Hello, world.

2
00:00:05,000 --> 00:01:02,000
From a -> b\tand back.
A second line.

3
00:59:59,500 --> 01:01:01,007
Grüße, 你好! 🙂

"""
TSV = """\
start\tend\ttext
0\t5000\tHello, world.
5000\t62000\tFrom a --> b and back.
A second line.
3599500\t3661007\tGrüße, 你好! 🙂
"""
FIELDS = "id seek start end text tokens temperature avg_logprob compression_ratio no_speech_prob"
JSON = dict(
    text=TRANSCRIPT.text,
    segments=[{name: getattr(s, name) for name in FIELDS.split()} for s in SEGMENTS],
    language="en",
)
FILES = {
    "txt": TXT,
    "vtt": VTT,
    "srt": SRT,
    "tsv": TSV,
    "json": json.dumps(JSON, ensure_ascii=False) + "\n",
}
EMPTY = {"txt": "", "vtt": "WEBVTT\n\n", "srt": "", "tsv": "start\tend\ttext\n"}
EMPTY["json"] = '{"text": "", "segments": [], "language": "en"}\n'


def test_files_are_those_of_openais_writers():
    assert {name: write(TRANSCRIPT, Layout()) for name, write in FORMATS.items()} == FILES
    assert {name: write(NOTHING, Layout()) for name, write in FORMATS.items()} == EMPTY


def timed(words: str, *times: float) -> Transcript:
    """A transcript of words, each from one time to the next."""
    texts = [f" {word}" for word in words.split()]
    spans = zip(texts, pairwise(times), strict=True)
    made = [Word(text, *span, 1.0, 1) for text, span in spans]
    part = segment(0, times[0], times[-1], "".join(texts), words=tuple(made))
    return Transcript(part.text, (part,), "en", times[-1])


def test_times_and_names_of_speakers_are_told():
    said = [("Anna", "Hi.", 0.0, 1.0), ("Ben", "Hello.", 0.5, 2.0), ("Anna", "Yes.", 3.0, 4.0)]
    spoken = [replace(timed(text, *span).segments[0], speaker=name) for name, text, *span in said]
    both = Transcript("", tuple(spoken), "en", 4.0)
    lines = ["Anna: Hi.", "Ben: Hello.", "Anna: Yes."]
    for layout in (Layout(), Layout(subtitles=True)):
        assert FORMATS["srt"](both, layout).splitlines()[2::4] == lines
    timed_lines = FORMATS["txt"](both, Layout(times=True)).splitlines()
    assert timed_lines[1] == "[00:00.500 --> 00:02.000] Ben: Hello."
    segments = json.loads(FORMATS["json"](both, Layout()))["segments"]
    assert (segments[1]["speaker"], segments[1]["text"]) == ("Ben", " Hello.")


def test_no_word_is_broken():
    transcript = timed("my extraordinary pet", 0.0, 1.0, 2.0, 3.0)
    written = FORMATS["srt"](transcript, Layout(max_line_width=5, subtitles=True)).splitlines()
    lines = [line for line in written if line[:1].isalpha()]
    assert lines == ["my", "extraordinary", "pet"]
    two = timed("paint my", 0.0, 0.5, 1.0)
    assert "\npaint\nmy\n" in FORMATS["srt"](two, Layout(max_line_width=5, subtitles=True))


def test_vtt_escapes_what_would_be_a_tag():
    transcript = timed("R&D <i> so", 0.0, 1.0, 2.0, 3.0)
    assert "\nR&amp;D &lt;i> so\n" in FORMATS["vtt"](transcript, Layout())
    assert "R&D <i> so" in FORMATS["srt"](transcript, Layout())


def test_cues_for_reading_break_at_sentences_and_stay_long_enough():
    text = (
        "It is half past ninety. Eight of them waited, and nobody said a single word to them. No."
    )
    times = [0.4 * i for i in range(len(text.split()) + 1)]
    transcript = timed(text, *times)
    written = FORMATS["srt"](transcript, Layout(subtitles=True)).split("\n\n")
    assert [cue.splitlines()[1:] for cue in written[:-1]] == [
        ["00:00:00,000 --> 00:00:01,920", "It is half past ninety."],
        [
            "00:00:02,000 --> 00:00:07,200",
            "Eight of them waited, and nobody",
            "said a single word to them. No.",
        ],
    ]


def test_a_mark_that_the_word_before_has_taken_is_not_shown_again():
    (part,) = timed("so!", 0.0, 1.0).segments
    both = Transcript(" so!", (part, replace(part, start=1, end=2, text="!", words=())), "en", 2.0)
    assert FORMATS["srt"](both, Layout(subtitles=True)).count("!") == 1


def test_cues_for_reading_hold_all_words_in_order_whatever_their_times():
    chance = random.Random(0)
    for rules in (
        Layout(),
        Layout(20, 1, None, True, 2.0, 3.0, 9.0, 0.0),
        Layout(4, 3, None, True, 0.1, 0.2, 99.0, 2.0),
    ):
        times = [0.0]
        for _ in range(300):
            times.append(round(times[-1] + chance.choice((0.02, 0.3, 0.5, 4)), 2))
        words = "".join(chance.choice(("a ", "well, ", "so. ", "extraordinarily? ")) for _ in times)
        transcript = timed(words.rsplit(maxsplit=1)[0], *times)
        made = list(captions(transcript.segments, rules, times[-1]))
        assert "".join("".join(text for *_, text in made).split()) == transcript.text.replace(
            " ", ""
        )
        assert all(start < end <= start + rules.max_cue_seconds + 4 for start, end, _ in made)
        assert all(before[1] <= after[0] for before, after in pairwise(made))
        assert made[-1][1] <= times[-1]


def test_a_cue_without_a_letter_ends_nothing():
    words = (Word(" ", 0.0, 1.0, 0.5, 1),)
    segments = [segment(0, 0.0, 1.0, " ", words=words)]
    assert [*captions(segments, Layout(), 2.0)] == [(0.0, 1.0, "")]
