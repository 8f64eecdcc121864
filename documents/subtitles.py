"""Subtitles: SubRip (.srt), WebVTT (.vtt) and SubStation Alpha (.ass, .ssa). Times, numbers, styles and comments stay.

A sentence may run over cues: its translation is spread over their lines again.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from common.errors import InputError
from documents.document import (
    Document,
    Passage,
    Span,
    by_length,
    line_number,
    lines_of,
    passage,
)
from documents.inline import Inline
from documents.markup import in_markup
from documents.paragraph import Paragraph
from documents.sentences import ENDED, begins_lower
from text.cues import TAG, UNREADABLE, Cue, Report, cues, seconds

_ASS_BREAK = re.compile(r"\\[Nn]")
_ASS_DRAWING = re.compile(r"\{[^{}]*\\p[1-9]")
_TAGS = re.compile(r"(?:<[^<>]*>|\{\\[^{}]*\})+")  # at the edges of a line
_SPEAKER = re.compile(r"[-–—♪♫#]|>>")  # begins a line of its own  # noqa: RUF001
_SOUND = re.compile(r"[\[(（【].*[\])）】]")  # [DOOR OPENS]  # noqa: RUF001
_COMMA = re.compile(r"""[,،、，､﹐፣՝]["'”’»]*$""")  # noqa: RUF001
_SOON = 2.0  # seconds between two cues of a sentence
_MOST = 6  # cues that a sentence may run over


def parse(data: bytes, kind: str, cue_by_cue: bool = False, bilingual: bool = False) -> Document:
    """kind: srt (also for WebVTT) or ass. cue_by_cue: no sentence runs over cues."""
    notes = list[str]()

    def report(line: int, reason: str) -> None:
        notes.append(f"line {line}: {reason}")

    def find(source: str) -> Iterator[Passage]:
        read = [*(_events if kind == "ass" else cues)(source, report)]
        if not read:
            raise InputError(notes[0] if notes else "no cues with times")
        bare = [replace(cue, lines=_bare_lines(source, cue)) for cue in read]
        return _passages(source, [cue for cue in bare if cue.lines], 1 if cue_by_cue else _MOST)

    def paragraphs(source: str) -> Iterator[Paragraph]:
        return (paragraph for each in find(source) for paragraph in _without_tags(each))

    below = "\\N" if kind == "ass" else "\n"
    about = {"places": {}, "plain": [], "notes": notes}
    below = below if bilingual else ""
    return in_markup(data, paragraphs, about=about, fit=_fit, below=below)


def _without_tags(passage: Passage) -> Iterator[Paragraph]:
    """The passage with its tags as marks, if it has words."""
    here = Inline(passage.text, drops=True)
    at = 0
    for tag in TAG.finditer(passage.text):
        here.add_lines((at, tag.start()), passage.text[at : tag.start()], passage.breaks)
        at = tag.end()
        name = tag["name"] or tag["style"]
        ends = tag["close"] or tag["on"] == "0"
        kind = ("close" if ends else "open") if name else "anchor"
        here.add(kind, tag.span(), name or "", "look")
    here.add_lines((at, len(passage.text)), passage.text[at:], passage.breaks)
    here.finish()
    yield from (replace(e, spans=passage.spans, cues=passage.cues) for e in here.paragraphs)


def _fit(passage: Passage, text: str) -> list[str]:
    """The text spread over the lines. A tag around words in two cues is closed and opened again."""
    lines = by_length(passage, text)
    opened = list[re.Match]()
    for i, (cue, following) in enumerate(pairwise(passage.cues)):
        for tag in TAG.finditer(lines[i]):
            if tag["on"] == "1" or (tag["name"] and not tag["close"]):
                opened.append(tag)
            elif opened and _closing(opened[-1]) == tag[0]:
                opened.pop()
        rest = "".join(lines[i + 1 :])
        if cue != following:
            crossing = [tag for tag in opened if _closing(tag) in rest]
            lines[i] += "".join(map(_closing, reversed(crossing)))
            lines[i + 1] = "".join(tag[0] for tag in crossing) + lines[i + 1]
            opened = []
    return lines


def _closing(tag: re.Match) -> str:
    return f"</{tag['name']}>" if tag["name"] else f"{{\\{tag['style']}0}}"


def _events(source: str, report: Report) -> Iterator[Cue]:
    """The cues of an .ass: its lines of dialogue, but not drawings."""
    fields = list[str]()
    for at, stop in lines_of(source, 0, len(source)):
        name, _, values = source[at:stop].partition(":")
        if name == "Format":
            fields = [field.strip() for field in values.split(",")]
        if name != "Dialogue":
            continue
        event = dict(zip(fields, values.split(",", len(fields) - 1), strict=False))
        start, end = (seconds(event.get(field, "")) for field in ("Start", "End"))
        if start is None or end is None or "Text" not in event:
            report(line_number(source, at), UNREADABLE)
            continue
        if _ASS_DRAWING.match(event["Text"]):
            continue
        begin = stop - len(event["Text"])
        cuts = [match.span() for match in _ASS_BREAK.finditer(source, begin, stop)]
        spans = [(a, b) for (_, a), (b, _) in pairwise([(0, begin), *cuts, (stop, 0)])]
        yield Cue(start, end, spans, (event.get("Style", ""), event.get("Name", "")))


def _passages(source: str, shown: Sequence[Cue], most: int) -> Iterator[Passage]:
    """Texts of cues, joined where a sentence runs on."""
    spans = list[Span]()
    numbers = list[int]()  # of each span's cue
    for number, cue in enumerate(shown):
        for i, unit in enumerate(_units(source, cue.lines)):
            goes_on = (
                i == 0
                and number > 0
                and len({*numbers}) < most
                and _go_on(source, shown[number - 1], cue)
            )
            if spans and not goes_on:
                yield replace(passage(source, spans), cues=tuple(numbers))
                spans, numbers = list[Span](), list[int]()
            spans += unit
            numbers += [number] * len(unit)
    if spans:
        yield replace(passage(source, spans), cues=tuple(numbers))


def _go_on(source: str, cue: Cue, following: Cue) -> bool:
    """Whether a cue's last sentence goes on in the next cue."""
    line = _TAGS.sub("", source[slice(*cue.lines[-1])])
    first = _TAGS.sub("", source[slice(*following.lines[0])])
    return (
        cue.voice == following.voice
        and cue.start <= following.start <= cue.end + _SOON
        and not ENDED.search(line)
        and not (_SOUND.fullmatch(line) or _SOUND.fullmatch(first) or _SPEAKER.match(first))
        and (begins_lower(first) or _COMMA.search(line) is not None)
    )


def _units(source: str, lines: Iterable[Span]) -> Iterator[list[Span]]:
    """The lines of a cue, by speaker. A line without a speaker's dash goes on with the one above."""
    unit = list[Span]()
    sound = False
    for span in lines:
        line = _TAGS.sub("", source[slice(*span)])
        is_sound = _SOUND.fullmatch(line) is not None
        if unit and (sound or is_sound or _SPEAKER.match(line)):
            yield unit
            unit = []
        unit.append(span)
        sound = is_sound
    yield unit


def _bare_lines(source: str, cue: Cue) -> list[Span]:
    return [*filter(None, (_bare(source, *span) for span in cue.lines))]


def _bare(source: str, start: int, stop: int) -> Span | None:
    """The line without tags around it; None if nothing is left."""
    begin, end = start, stop
    tags = _TAGS.match(source, start, stop)
    if tags:
        begin = tags.end()
    for tags in _TAGS.finditer(source, begin, stop):
        if tags.end() == stop:
            end = tags.start()
    depth = sum(
        -1 if tag["close"] else 1 for tag in TAG.finditer(source, begin, end) if tag["name"]
    )
    bare = next(lines_of(source, begin, end), None)
    return next(lines_of(source, start, stop), None) if bare and depth else bare
