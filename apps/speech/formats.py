"""Transcripts' formats, which are OpenAI whisper's."""

import json
from collections.abc import Callable, Iterator, Sequence

from apps.speech.captions import Caption, captions
from apps.speech.options import Layout
from apps.speech.segments import Segment, Transcript
from speculative.text.cues import stamp
from speculative.text.lines import wrap


def _captions(transcript: Transcript, layout: Layout) -> Iterator[Caption]:
    segments = [s for s in transcript.segments if s.words != ()]  # a mark is with the word before
    if layout.makes_cues:
        yield from captions(segments, layout, transcript.duration)
        return
    for segment in segments:
        text = segment.line
        if layout.max_line_width:
            text = "\n".join(wrap(text, layout.max_line_width))
        yield segment.start, segment.end, text


def _cue(caption: Caption, hours: bool, point: str) -> str:
    """Times and text, without arrows that a player would take for another cue."""
    start, end, text = caption
    times = f"{stamp(start, hours, point)} --> {stamp(end, hours, point)}"
    return f"{times}\n{text.replace('-->', '->')}\n\n"


def lines(segments: Sequence[Segment], layout: Layout) -> str:
    text = ""
    for each in segments:
        if layout.times:
            text += f"[{stamp(each.start, False, '.')} --> {stamp(each.end, False, '.')}] "
        text += f"{each.line}\n"
    return text


def _vtt(transcript: Transcript, layout: Layout) -> str:
    shown = "".join(_cue(cue, False, ".") for cue in _captions(transcript, layout))
    return "WEBVTT\n\n" + shown.replace("&", "&amp;").replace("<", "&lt;")


def _srt(transcript: Transcript, layout: Layout) -> str:
    cues = enumerate(_captions(transcript, layout), 1)
    return "".join(f"{number}\n{_cue(cue, True, ',')}" for number, cue in cues)


def _tsv(transcript: Transcript, layout: Layout) -> str:
    lines = ["start\tend\ttext\n"]
    for segment in transcript.segments:
        text = segment.line.replace("\t", " ")
        lines.append(f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t{text}\n")
    return "".join(lines)


def _json(transcript: Transcript, layout: Layout) -> str:
    segments = [segment.to_dict() for segment in transcript.segments]
    about = {"text": transcript.text, "segments": segments, "language": transcript.language}
    return json.dumps(about, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Transcript, Layout], str]] = {
    "txt": lambda transcript, layout: lines(transcript.segments, layout),
    "vtt": _vtt,
    "srt": _srt,
    "tsv": _tsv,
    "json": _json,
}
