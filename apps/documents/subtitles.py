"""Subtitles: SubRip (.srt), WebVTT (.vtt) and SubStation Alpha (.ass, .ssa). A sentence may run over cues."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice, pairwise, product

import regex

from apps.documents.document import (
    Document,
    Passage,
    Span,
    as_text,
    by_length,
    lines_of,
    passage,
)
from apps.documents.inline import Event, paragraphs_of
from apps.documents.language import in_head
from apps.documents.line_marks import LABEL, SPEAKER_MARKS, without
from apps.documents.markup import Markup, in_markup
from apps.documents.sentences import BEGINS_LOWER
from apps.documents.tags import ends_of
from speculative.common.errors import InputError
from speculative.text.cues import ASS_TAG, TAG, UNREADABLE, Cue, Report, cues, seconds
from speculative.text.scripts import SENTENCE_ENDED

_ASS_BREAK = re.compile(r"\\[Nn]")
_ASS_DRAWING = re.compile(r"\{[^{}]*\\p[1-9]")
_SPEAKER = regex.compile(rf"[-–—♪♫#]|>>|{LABEL.pattern}")  # begins a line of its own  # noqa: RUF001
_SOUND = re.compile(r"[\[(（【].*[\])）】]")  # [DOOR OPENS]  # noqa: RUF001
_RUBY = r"<ruby>(?P<ruby>(?:(?!</?ruby\b).)*)</ruby>"
_READING = re.compile(r"<rt>.*?(?:</rt>|$)|<[^<>]*>")
_COMMA = re.compile(r"""[,،、，､﹐፣՝]["'”’»]*$""")  # noqa: RUF001
_SOON = 2.0  # seconds between two cues of a sentence
_TRIED = 20  # ways to take tags from around a line
_MAX_CUES = 6  # that a sentence may run over
_PRIVATE = 0xF0000  # the first of Unicode's characters for private use


def _parse(
    read: Callable[[str, Report], Iterable[Cue]],
    tag: re.Pattern,
    line_break: str,
    data: bytes,
    cue_by_cue: bool = False,
    bilingual: bool = False,
) -> Document:
    """cue_by_cue: no sentence runs over cues"""
    source = as_text(data)
    notes = list[str]()
    found = [*read(source, lambda line, reason: notes.append(f"line {line}: {reason}"))]
    if not found:
        raise InputError(notes[0] if notes else "no cues with times")
    bare = (
        replace(cue, lines=[span for line in cue.lines for span in _bare(source, line, tag)])
        for cue in found
    )
    shown = [cue for cue in bare if cue.lines]
    passages = _passages(source, shown, 1 if cue_by_cue else _MAX_CUES)
    paragraphs = [
        replace(paragraph, spans=each.spans, cues=each.cues)
        for each in passages
        for paragraph in paragraphs_of(each.text, [*_parts(tag, each.text)], each.breaks, True)
    ]
    below = line_break if bilingual else ""
    markup = Markup(str, partial(_parts, tag), partial(_fit, tag), relabel=in_head)
    return in_markup(data, lambda _: paragraphs, markup, below=below, notes=notes)


def _parts(pattern: re.Pattern, text: str) -> Iterator[Event]:
    """The tags of a text, and the text between them. Of a word with its reading, the word."""
    at = 0
    for tag in re.compile(rf"{_RUBY}|{pattern.pattern}").finditer(text):
        start, stop = tag.span()
        yield Event("text", at, start, text[at:start])
        at = stop
        shown = _READING.sub("", tag["ruby"] or "") or (tag["space"] and "\u00a0")
        if shown:
            yield Event("text", start, stop, shown)
            continue
        name = tag["name"] or tag["style"] or ""
        kind = "close" if tag["close"] or tag["on"] == "0" else "open"
        yield Event(kind if name else "kept", start, stop, name=name, mark="look", raw=tag[0])
    yield Event("text", at, len(text), text[at:])


def _fit(pattern: re.Pattern, passage: Passage, text: str) -> list[str]:
    """The text spread over the lines. A tag around words in two cues is closed and opened again."""
    # While it is spread, each tag is a character of the word that it stands at.
    tags = [tag[0] for tag in pattern.finditer(text)]
    names = dict(enumerate(tags, _PRIVATE))
    shown = map(chr, names)
    lines = by_length(passage, pattern.sub(lambda _: next(shown), text))
    lines = [line.translate(names) for line in lines]
    opened = list[Event]()
    for i, (cue, following) in enumerate(pairwise(passage.cues)):
        for tag in _parts(pattern, lines[i]):
            if tag.kind == "open":
                opened.append(tag)
            elif opened and _closing(opened[-1]) == tag.raw:
                opened.pop()
        if cue != following:
            rest = "".join(lines[i + 1 :])
            crossing = [tag for tag in opened if _closing(tag) in rest]
            lines[i] += "".join(map(_closing, reversed(crossing)))
            lines[i + 1] = "".join(tag.raw for tag in crossing) + lines[i + 1]
            opened = []
    return _without_empty_cues(lines, passage.cues)


def _without_empty_cues(lines: Sequence[str], cues: Sequence[int]) -> list[str]:
    """The lines, the empty ones of each cue last. A cue for which no word is left shows the last line before it."""
    filled = list[str]()
    last = lines[0]
    for _, cue in groupby(range(len(lines)), cues.__getitem__):
        here = [lines[i] for i in cue]
        words = [*filter(None, here)] or [last]
        filled += [*words, *[""] * (len(here) - len(words))]
        last = words[-1]
    return filled


def _closing(tag: Event) -> str:
    return f"</{tag.name}>" if tag.raw.startswith("<") else f"{{\\{tag.name}0}}"


def _events(source: str, report: Report) -> Iterator[Cue]:
    """The cues of an .ass: its lines of dialogue, but not drawings."""
    fields = list[str]()
    for number, (at, stop) in enumerate(lines_of(source), 1):
        name, _, values = source[at:stop].partition(":")
        if name == "Format":
            fields = [field.strip() for field in values.split(",")]
        if name != "Dialogue":
            continue
        event = dict(zip(fields, values.split(",", len(fields) - 1), strict=False))
        start, end = (seconds(event.get(field, "")) for field in ("Start", "End"))
        if start is None or end is None or "Text" not in event:
            report(number, UNREADABLE)
            continue
        if _ASS_DRAWING.match(event["Text"]) or event.get("Effect", "").strip() == "fx":
            continue
        begin = stop - len(event["Text"])
        cuts = [match.span() for match in _ASS_BREAK.finditer(source, begin, stop)]
        spans = [(a, b) for (_, a), (b, _) in pairwise([(0, begin), *cuts, (stop, 0)])]
        yield Cue(start, end, spans, (event.get("Style", ""), event.get("Name", "")))


def _passages(source: str, shown: Sequence[Cue], max_cues: int) -> Iterator[Passage]:
    """Texts of cues, joined where a sentence runs on."""
    texts = list[dict[Span, int]]()  # spans, with the numbers of their cues
    for number, cue in enumerate(shown):
        for i, unit in enumerate(_units(source, cue.lines)):
            is_full = i > 0 or not texts or len({*texts[-1].values()}) >= max_cues
            if is_full or not _go_on(source, shown[number - 1], cue):
                texts.append({})
            lines = [without(SPEAKER_MARKS, source, unit[0]), *unit[1:]]
            texts[-1].update(dict.fromkeys(lines, number))
    for spans in texts:
        yield replace(passage(source, spans), cues=tuple(spans.values()))


def _go_on(source: str, cue: Cue, following: Cue) -> bool:
    """Whether a cue's last sentence goes on in the next cue."""
    line = ASS_TAG.sub("", source[slice(*cue.lines[-1])])
    first = ASS_TAG.sub("", source[slice(*following.lines[0])])
    return (
        cue.voice == following.voice
        and cue.start <= following.start <= cue.end + _SOON
        and not SENTENCE_ENDED.search(line)
        and not (_SOUND.fullmatch(line) or _SOUND.fullmatch(first) or _SPEAKER.match(first))
        and (BEGINS_LOWER.match(first) or _COMMA.search(line)) is not None
    )


def _units(source: str, lines: Iterable[Span]) -> Iterator[list[Span]]:
    """The lines of a cue, by speaker. A line without a speaker's dash goes on with the one above."""
    unit = list[Span]()
    sound = False
    for span in lines:
        line = ASS_TAG.sub("", source[slice(*span)])
        is_sound = _SOUND.fullmatch(line) is not None
        if unit and (sound or is_sound or _SPEAKER.match(line)):
            yield unit
            unit = []
        unit.append(span)
        sound = is_sound
    yield unit


def _bare(source: str, line: Span, tag: re.Pattern) -> list[Span]:
    """The line without tags around it, unless their partners are in it; nothing if nothing is left."""
    tags = [match.span() for match in tag.finditer(source, *line)]
    begins, ends = ([edge] for edge in line)
    for start, stop in tags:
        if start == begins[0]:
            begins.insert(0, stop)
    for start, stop in reversed(tags):
        if stop == ends[0]:
            ends.insert(0, start)
    for begin, end in islice(product(begins, ends), _TRIED):
        parts = [*_parts(tag, source[begin:end])]
        if 2 * len(ends_of(parts)) == sum(part.kind in ("open", "close") for part in parts):
            return [span for span in lines_of(source, begin, max(begin, end)) if span[0] < span[1]]
    return [*lines_of(source, *line)]


parse = partial(_parse, cues, TAG, "\n")  # SubRip or WebVTT
parse_ass = partial(_parse, _events, ASS_TAG, "\\N")
