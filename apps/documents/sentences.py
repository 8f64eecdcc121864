"""The sentences of a text."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, groupby, pairwise

import regex
import sentencex

from apps.documents.line_marks import LIST_MARKS
from speculative.text.lines import UNIT, columns
from speculative.text.scripts import SENTENCE_ENDED, UNSPACED_CHARACTERS

Fits = Callable[[str], bool]

_CLAUSE = regex.compile(r"[,;:–—]\s+|[،、，；：]\s*")  # noqa: RUF001
_SPACE = regex.compile(r"\s+")
# Between the cells of a table: a gap, or a line
_CELL = regex.compile(r"(?<=[^\s\p{STerm}:,;])(?: {3,}| *\t\s*)(?=\S)|(?P<line>(?<!\S)\|(?!\S)\s*)")
_MAY_BE_CELL = regex.compile(r" {3}|[\t|]")
_WORD = regex.compile(r"\w")
_BEFORE = 100  # characters in which an abbreviation and what stands before it are
_NARROWEST = 40  # columns; below that, lines are a list or verses

_LINE_ENDED = regex.compile(rf"{SENTENCE_ENDED.pattern}|[:：]\s*$")  # noqa: RUF001
_MARKED_ENDED = regex.compile(r"(?r)[\p{STerm}:]\W*$")  # whatever marks stand behind it
BEGINS_LOWER = regex.compile(r"""[\p{Ps}\p{Pi}"'.…\s]*\p{Ll}""")
_BEGINS_SENTENCE = regex.compile(r"""[\s\p{Ps}\p{Pi}"'*•\-–\d.)]*[\p{Lu}\p{Lt}\p{Lo}\p{N}]""")  # noqa: RUF001
# Of a list; other dashes may be within a sentence
_ITEM = regex.compile(rf"\s*(?![–—]\s+\p{{Ll}})(?:{LIST_MARKS.pattern}|\p{{N}}{{1,3}}\.\s)")  # noqa: RUF001
_GOES_ON = regex.compile(
    rf"{BEGINS_LOWER.pattern}|\s*[\p{{Pd}}」』]|(?<=[」』])\p{{Hiragana}}|\s*$"
)
_OPENING = regex.compile(r"""\s["”]$""")  # sentencex takes it for a closing one
# Before a number, besides what sentencex knows
_NUMBERED = regex.compile(
    r"(?<!\p{L})(?i:afb|approx|aprox|cca|chap|eqs?|kap|máx|mín|núms?|pagg?|págs?|poz|rozdz|rys|tel|ust|vols?"
    r"|прибл|прим|рис|табл|тел)\.$"
)
# What ends in a full stop within a sentence: initials; words without a vowel, such as Dr. and Hr.; other titles
_VOWELS = "aeiouyáàâäãåæéèêëíîïóòôöõøœúùûüýőűąęėįųūāēīōаеиоуыэюяєіїαεηιουω"  # noqa: RUF001
_ABBREVIATION = regex.compile(
    rf"(?<!\p{{L}}|\d\s)(?:\p{{L}}\p{{M}}*|(?!\p{{Lu}}+\.)(?i:(?![{_VOWELS}])\p{{L}}){{2,4}}"
    r"|MM|(?i:Mme|Mlle|Abb|Av|Dña|Doç|gen|hra|ifj|im|inż|mevr|özv|rva|tri|ген|им))\.$"
)
# Ordinals: before nouns, which German capitalises; of kings in all languages that write them with a full stop
_ORDINAL = regex.compile(r"(?<![\w.,]|\p{L}\.\s)\d{1,3}\.$")
_OF_KINGS = regex.compile(r"(?<![\w.,])[IVXLC]+\.$")
_NOUNS = ("de", "gsw", "lb", "nds")
_KINGS = "bs cs da et eu fi fo hr hu is lv nb nn no pl sk sl sr tr".split()


def is_unspaced(text: str) -> bool:
    """Whether this is of a script without spaces between words."""
    return regex.match(f"[{UNSPACED_CHARACTERS}]", text) is not None


def between(before: str, after: str) -> str:
    """The space between two lines of a sentence when they become one."""
    return "" if is_unspaced(before[-1:]) and is_unspaced(after) else " "


def runs_on(before: str, after: str) -> bool:
    """Whether a sentence goes on behind a line break that somebody set, in text with marks."""
    return after.lstrip()[:1].islower() and not _MARKED_ENDED.search(before)


def paragraphs(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """Lines by paragraph: one of a table; an item of a list; an evenly wrapped block; or a sentence's first line and those, in
    lower case, not more indented."""
    parts = [*_parts(lines)]
    if len(parts) > 1:
        for part, is_row in parts:
            yield from [part] if is_row else paragraphs(part)
        return
    begins = items(lines)
    if len(begins) > 1:
        for first, after in pairwise([*begins, len(lines)]):
            yield from paragraphs(lines[first:after])
        return
    is_wrapped = _wrapped(lines)
    first = 0
    for i in range(1, len(lines)):
        if not (is_wrapped or _goes_on(lines[first], lines[i - 1], lines[i])):
            yield lines[first:i]
            first = i
    yield lines[first:]


def _parts(lines: Sequence[str]) -> Iterator[tuple[Sequence[str], bool]]:
    """The lines of a table, each with the ones that go on in its last column; lines of signs; and those between. With each
    part, whether it is a table's."""
    cells = [{cell.end() for cell in _CELL.finditer(line.rstrip())} for line in lines]
    indents = [{len(line) - len(line.lstrip())} for line in lines]
    first = 0
    column: int | None = None  # in which lines go on with a table's
    for i, line in enumerate(lines):
        beside = cells[max(i - 1, 0) : i] + cells[i + 1 : i + 2] + indents[i + 1 : i + 2]
        is_row = "\t" in line.strip() or not cells[i].isdisjoint(chain(*beside))
        is_apart = is_row or not _WORD.search(line)
        if i > first and (is_apart or column not in (None, *indents[i])):
            yield lines[first:i], bool(column)
            first = i
            column = None
        if is_apart:
            column = max(cells[i], default=0)
    yield lines[first:], bool(column)


def items(lines: Sequence[str]) -> list[int]:
    """The lines with which items of a list begin, if that is what the first one does."""
    found = [i for i, line in enumerate(lines) if _ITEM.match(line)]
    if len(found) < len(lines):  # some may begin with what stands within a sentence
        found = [i for i in found if _BEGINS_SENTENCE.match(lines[i])]
    return found if found[:1] == [0] else []


def _goes_on(first: str, before: str, line: str) -> bool:
    if not BEGINS_LOWER.match(line) or _LINE_ENDED.search(before):
        return False
    begins = _BEGINS_SENTENCE.match(first)
    return begins is not None and len(line) - len(line.lstrip()) < begins.end()


def _wrapped(lines: Sequence[str]) -> bool:
    """Whether no line had room for the next one's first word, and some do not end a sentence."""
    widths = [columns(line.rstrip()) for line in lines]
    first_words = [columns(UNIT.findall(line.lstrip())[0].rstrip()) for line in lines[1:]]
    widest = max(widths)
    full = all(width + 1 + first > widest for width, first in zip(widths, first_words))  # noqa: B905
    return widest >= _NARROWEST and full and not all(map(_LINE_ENDED.search, lines[:-1]))


def sentences(
    text: str, language: str, pattern: regex.Pattern, fits: Fits, whole: bool = False
) -> Iterator[str]:
    """The sentences of a text, with the space after them, cut at clauses if they do not fit. A sentence may run over lines.
    language: a tag. pattern: what is not cut apart. whole: leave a paragraph whole if it fits."""
    language = language.partition("-")[0]
    for has_text, lines in groupby(text.splitlines(keepends=True), lambda line: bool(line.strip())):
        for paragraph in map("".join, paragraphs([*lines]) if has_text else lines):
            cells = sorted({0, *_cells(paragraph, pattern), len(paragraph)})
            for cell in (paragraph[start:end] for start, end in pairwise(cells)):
                if whole and fits(cell):
                    yield cell
                    continue
                ends = [0, *_ends(cell, language, pattern), len(cell)]
                for start, end in pairwise(ends):
                    yield from _clauses(cell[start:end], fits)


def _cells(text: str, pattern: regex.Pattern) -> Iterator[int]:
    """Where a table's next cells begin, and the lines between them. pattern: what is not cut apart"""
    if not _MAY_BE_CELL.search(text):  # looking for what is not cut apart takes longer
        return
    held = pattern.sub(lambda match: regex.sub(r"[^\t]", "x", match[0]), text)
    for cell in _CELL.finditer(held):
        if cell["line"]:
            yield cell.start()
        yield cell.end()


def gap(cell: str, text: str, behind: str) -> str:
    """The space behind a text in place of a table's cell, before what stands behind it: that stays in its column, if there is
    room. "" behind other texts"""
    words = cell.rstrip()
    space = cell[len(words) :]
    if not (space and _CELL.match(cell + behind, len(words) + ("|" in behind[:1]) * len(space))):
        return ""
    return space if "\t" in space else " " * max(1, columns(cell.lstrip()) - columns(text))


def _ends(text: str, language: str, pattern: regex.Pattern) -> Iterator[int]:
    """The ends of sentences, besides the last one."""
    spans = [match.span() for match in pattern.finditer(text)]
    inside = {i for start, stop in spans for i in range(start + 1, stop)}
    behind = {start: stop for start, stop in spans if text[start - 1 : start].strip()}
    for end in accumulate(map(len, sentencex.segment(language, text.replace("\n", " ")))):
        start = max(0, end - _BEFORE)
        end -= _OPENING.search(text, start, end) is not None
        if end in behind:  # a mark that belongs to the sentence
            end = behind[end]
            while text[end : end + 1].isspace():
                end += 1
        before = text[start:end].rstrip()
        goes_on = (
            _GOES_ON.match(text, end)
            or (text[end : end + 1].isdecimal() and _NUMBERED.search(before))
            or _ABBREVIATION.search(before)
            or (language in _NOUNS and _ORDINAL.search(before))
            or (language in (*_NOUNS, *_KINGS) and _OF_KINGS.search(before))
        )
        if end not in inside and not goes_on:
            yield end


def _clauses(text: str, fits: Fits) -> Iterator[str]:
    if len(text) < 2 or fits(text):
        yield text
        return
    middle = len(text) // 2
    for cut in (_CLAUSE, _SPACE, UNIT):
        ends = [match.end() for match in cut.finditer(text) if 0 < match.end() < len(text)]
        if ends:
            middle = min(ends, key=lambda end: abs(end - middle))
            break
    yield from _clauses(text[:middle], fits)
    yield from _clauses(text[middle:], fits)
