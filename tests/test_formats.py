"""Transcripts as files, whole, as OpenAI's writers make them."""

import json

from speech.formats import FORMATS, Layout, Segment, Transcript


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
