"""Markdown: CommonMark with GitHub's tables and alerts, and the dialects of front matter, containers, admonitions,
footnotes, definitions and math. Code, HTML, links' targets and tables stay."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any
from urllib.parse import unquote

import regex

from apps.documents import dialects
from apps.documents.document import Document, Passage, Span, as_text, by_length, passage, units
from apps.documents.inline import STAND_IN, Event, paragraphs_of
from apps.documents.language import in_head
from apps.documents.line_marks import LIST_MARKS
from apps.documents.markup import Markup, in_markup
from apps.documents.paragraph import Paragraph
from apps.documents.prose import is_syntax, translatable
from apps.documents.sentences import items, runs_on
from apps.documents.tags import MARKS, VOID

# What stays, and what it shows; the kinds of marks
_SHOWN = dict.fromkeys(("html_inline", "image", "footnote_ref", "raised"), "")
_SHOWN |= dict.fromkeys(("code_inline", "kept", "math_inline", "math_inline_double"), STAND_IN)
_KINDS = {"link": "link", "span": "link"}
_TITLE = re.compile(r'\s"([^"\\\n]+)"\s*\)?\s*\Z')  # of a link, or what its name leads to
_HIDES = re.compile(r"\^\[|!\[|\][(:]")  # what a document with inline notes, pictures or titles has
# A tag around words
_TAG = re.compile(rf"<(/?)(?!(?i:{'|'.join(VOID)})\b)(\w+)[^>]*(?<!/)>")
# The places of the document itself that its links lead to
_LINKED = re.compile(r"""(?:\]\(<?|\]:[ \t]*<?|href=["']?)#([^\s)<>"']+)""")
Inline = Callable[[str], Sequence[Any]]  # the tokens of a text
_Text = tuple[Passage, str]  # with the type of the token that it is in, or its anchor
_Line = tuple[str, Span, bool]  # its words, their place, and whether a hard break is behind them
_PARAGRAPH = ["paragraph_open", "inline", "paragraph_close"]
_AFTER = "\n"  # a text: dollarmath takes its last character for the one before the first
# Two spaces or a backslash that is not escaped, which make a line's end a break
_BREAK = regex.compile(r"(?<! ) {2,}$|(?<!\\)(?:\\\\)*\K\\$")


def parse(data: bytes, bilingual: bool = False, anchors: Collection[str] = ()) -> Document:
    """anchors: of headings, that other files lead to"""
    parser = dialects.parser()
    source = as_text(data)
    names = dict[str, Any]()  # what links and notes refer to
    begins = [0, *(match.end() for match in re.finditer(r"\r\n?|\n", source)), len(source)]

    def inline(text: str) -> Sequence[Any]:
        return parser.parseInline(text + _AFTER, names)[0].children

    def passages(source: str) -> list[_Text]:
        return [*_passages(source, begins, parser.parse(dialects.shown(source), names), inline)]

    targets = filter(None, (*_LINKED.findall(source), *anchors))
    linked = {_slug(target): f'<a id="{target}"></a>' for target in targets}

    def find(source: str) -> Iterator[Paragraph]:
        for each, anchor in _anchored(passages(source), linked):
            for paragraph in _paragraphs(each, inline):
                yield replace(paragraph, raw=anchor + paragraph.raw, ends=(anchor, ""))

    hidden = list[Passage]()
    for whole, _ in passages(source) if _HIDES.search(source) else ():
        for token, (start, stop) in _located(whole.text, inline):
            for low, high in _words_in(token, whole.text[start:stop]):
                part = _part(source, whole, start + low, start + high)
                is_title = whole.text[start + low - 1] == '"'
                hidden += [part] if is_title else _paragraphs(part, inline)
    for target in names.get("references", {}).values():
        first, after = target["map"]
        title = _TITLE.search(source, begins[first], begins[after])
        if title:
            hidden.append(passage(source, [title.span(1)]))
    below = "<br/>{}".format if bilingual else None
    lines = partial(_fit, parser)
    markup = Markup(_escaped, partial(_events, inline), lines, below=below, relabel=in_head)
    return in_markup(data, find, markup, hidden=hidden)


def _words_in(token: Any, raw: str) -> Iterator[Span]:
    """The places in a token of an inline note, an alternative text that is not its picture's label, and a title."""
    if token.type == "footnote_ref" and raw.startswith("^"):
        yield 2, len(raw) - 1
    end = 2 + len(token.content)
    if token.type == "image" and raw[end + 1 :] not in ("", "[]"):
        yield 2, end
    title = _TITLE.search(raw) if token.type in ("image", "link_close") else None
    if title:
        yield title.span(1)


def _anchored(texts: Iterable[_Text], linked: Mapping[str, str]) -> Iterator[_Text]:
    """Texts, each with the anchor before it, if it is a heading that links lead to. linked: anchors by slug"""
    seen = Counter[str]()
    for each, parent in texts:
        anchor = ""
        if parent == "heading_open":
            slug = _slug(each.text)
            anchor = linked.get(f"{slug}{seen[slug] or ''}", "")  # the second one's ends in 1
            seen[slug] += 1
        yield each, anchor


def _slug(words: str) -> str:
    """What the ids that renderers make of a heading have in common."""
    return re.sub(r"\W|_", "", unquote(words)).casefold()


def _part(source: str, whole: Passage, start: int, stop: int) -> Passage:
    lines = zip([0, *whole.breaks], whole.spans, strict=True)
    spans = ((low + max(start - at, 0), min(low + stop - at, high)) for at, (low, high) in lines)
    return passage(source, [span for span in spans if span[0] < span[1]])


def _events(inline: Inline, raw: str) -> Iterator[Event]:
    """The targets of links and the like, however they are written, and the words."""
    for token in inline(raw):
        words = "\n" if token.type.endswith("break") else token.content
        event = _event(token, 0, 0, words)
        leads_to = (*token.attrs.values(), token.content, token.meta.get("label", ""))
        yield event._replace(raw=" ".join(map(str, (event.name or token.type, *leads_to))))


def _escaped(text: str) -> str:
    text = re.sub(r"\\?`", "&#96;", text)  # in code no backslash escapes
    return re.sub(r"(?<!\\)([*_~$\[\]<]|==(?=\S))", r"\\\1", text)


def _located(text: str, inline: Inline) -> list[tuple[Any, Span]]:
    """The tokens of a text with their places; none if some are not understood."""
    found = list[tuple[Any, Span]]()
    at = 0
    for token in inline(text):
        raw = token.markup if token.nesting or token.type == "text_special" else token.content
        if token.type == "link_open":
            raw = "["
        elif token.type in (*_SHOWN, "softbreak", "link_close"):
            raw = text[at : token.meta["end"]]
        if not text.startswith(raw, at):
            return []  # all of it stays in the text
        if raw:  # what is left of a mark has none
            found.append((token, (at, at + len(raw))))
        at += len(raw)
    return found


def _paragraphs(passage: Passage, inline: Inline) -> Iterator[Paragraph]:
    """The passage without its markup, if it has words."""
    text = passage.text
    events = list[Event]()
    opened = list[int]()  # the events that open something
    first = 0  # of the last element, or what is one by itself
    at = 0
    for token, (start, stop) in _located(text, inline):
        if token.type == "attributes" and events[-1].kind != "text":
            events[-1] = events[-1]._replace(stop=stop)
            if events[first].mark == "look":  # which keeps a word, as a link does
                events[first] = events[first]._replace(mark="link")
            at = stop
            continue
        event = _event(token, start, stop, text[start:stop])
        first = len(events)
        if token.nesting > 0:
            opened.append(first)
        elif token.nesting < 0:
            first = opened.pop()
        if token.type == "link_close":
            label = text[events[first].stop : start]
            if text[start:stop] in ("]", "][]") and translatable(label):  # and these are its name
                event = event._replace(raw=f"][{label}]")
        events.append(event)
        at = stop
    events.append(Event("text", at, len(text), text[at:]))  # what is not understood
    for each in paragraphs_of(text, events, passage.breaks, drops=True):
        yield replace(each, spans=passage.spans)


def _event(token: Any, start: int, stop: int, raw: str) -> Event:
    name, _, edge = token.type.rpartition("_")
    place = Event("anchor", start, stop)
    tag = _TAG.match(raw) if token.type == "html_inline" else None
    if tag:
        kind = {"": "open", "/": "close"}[tag[1]]
        return place._replace(kind=kind, name=tag[2], mark=MARKS.get(tag[2].lower(), "element"))
    if token.type in _SHOWN:
        return place._replace(words=_SHOWN[token.type])
    if token.type == "attributes":
        return place._replace(mark=token.type)
    if token.nesting:
        return place._replace(kind=edge, name=name, mark=_KINDS.get(name, "look"))
    return place._replace(kind="text", words=raw)


def _passages(
    source: str, begins: Sequence[int], tokens: Iterable[Any], inline: Inline
) -> Iterator[_Text]:
    """The texts, each with the type of the token that it is in. begins: of the source's lines"""
    end = 0  # of the last span: a table's cells share a line
    parent = ""
    for token in tokens:
        if token.type != "inline" or not token.map:
            parent = token.type
            if parent in ("container_any_open", "fence"):
                first, after = begins[token.map[0] : token.map[0] + 2]
                for title in dialects.BOX.finditer(source, first, after):
                    yield passage(source, [title.span("title")]), parent
            continue
        if dialects.WHOLE.search(token.content):
            continue
        lines = list[_Line]()
        for number, line in enumerate(token.content.split("\n"), token.map[0]):
            words = _BREAK.sub("", line)
            place = max(begins[number], end), begins[number + 1]
            span = _find(source, words.strip(), place, parent)
            if span:
                end = span[1]
                lines.append((words.strip(), span, words != line))
        texts = _texts(source, lines, inline)
        has_syntax = any(is_syntax(words) for words, *_ in lines)
        if len(" ".join(each.text for each in texts).split()) > has_syntax:  # more than a word
            yield from ((each, parent) for each in texts)


def _texts(source: str, lines: Sequence[_Line], inline: Inline) -> list[Passage]:
    """The texts of these lines: between those of syntax and before those that begin something new, other than within a mark or
    some code."""
    broken = {
        span
        for (before, _, has_break), (words, span, _) in pairwise(lines)
        if has_break and not runs_on(before, words)
    }
    whole = passage(source, [span for _, span, _ in lines], broken)
    firsts = items([words for words, *_ in lines])  # of lists that CommonMark does not know
    depths = [0] * (len(whole.text) + 1)
    if whole.breaks or firsts:
        depths = _depths(whole.text, inline)
    groups = [list[Span]()]
    places = [0, *whole.breaks, -1]
    for i, (words, span, _) in enumerate(lines):
        at, after = places[i : i + 2]
        mark = LIST_MARKS.match(words)
        begins = span in broken and not depths[at]
        stays = is_syntax(words) and not depths[at] and not depths[after]
        if mark and i in firsts and not depths[at + mark.end()]:  # no code
            begins = True
            span = span[0] + mark.end(), span[1]
        if begins or stays:
            groups.append([])
        if not stays:
            groups[-1].append(span)
    return [passage(source, group, broken) for group in groups if group]


def _depths(text: str, inline: Inline) -> list[int]:
    """How many marks, pieces of code and the like each place of a text is in."""
    changes = Counter[int]()
    for token, (start, stop) in _located(text, inline):
        if token.type != "text":
            changes[start + 1] += token.nesting >= 0
            changes[stop] -= token.nesting <= 0
    return [*accumulate(changes[at] for at in range(len(text) + 1))]


def _find(source: str, words: str, place: Span, parent: str) -> Span | None:
    """Where in a place a line's words are: behind its other marks, or in the next cell of a table."""
    start, stop = place
    if parent == "admonition_title_open":  # a title that is not given is the admonition's kind
        start = source.find('"', start, stop) if '"' in source[start:stop] else stop
    for each in (words, words.replace("|", r"\|")):  # as a cell's are written
        find = source.find if parent in ("th_open", "td_open") else source.rfind
        at = find(each, start, stop)
        if words and at >= 0:
            return at, at + len(each)
    return None


def _fit(parser: Any, passage: Paragraph, text: str) -> list[str]:
    """The text spread over the lines; none if one would begin something else, such as a list, that the source does not."""
    if "|" not in passage.raw.replace(r"\|", ""):
        text = re.sub(r"(?<!\\)\|", r"\|", text)  # which would end a table's cell
    lines = by_length(passage, re.sub(r"\n\s*\n", "\n", text))  # an empty one would end it
    known = [_PARAGRAPH, _blocks(parser, [passage.raw.replace("\n", " ")])]
    for i in range(len(lines)):
        near = slice(max(i - 1, 0), i + 1)
        while i and _blocks(parser, lines[near]) not in known and re.search("[ <]", lines[i]):
            first = units(lines[i])[0]
            lines[i - 1] += f" {first.rstrip()}"
            lines[i] = lines[i][len(first) :]
        if _blocks(parser, lines[near]) not in known:
            lines[i] = re.sub(r"^\d*(?=[^<\[\d])", r"\g<0>\\", lines[i])
    return lines if _blocks(parser, lines) in known else []


def _blocks(parser: Any, lines: Sequence[str]) -> list[str]:
    """The types of the blocks that these lines would be by themselves."""
    tokens = list[Any]()
    parser.block.parse("\n".join(lines), parser, {}, tokens)
    return [token.type for token in tokens]
