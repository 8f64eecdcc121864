"""Tags of markup, with their places in the source."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from html import unescape

from apps.documents.document import Passage, Span
from apps.documents.inline import Event

# As HTML's standard reads them: quotes count behind an equals sign. Not by html.parser, which takes quadratic time.
_TAG = re.compile(
    r"<!--(?:.*?-->|(?P<open_comment>))|<!\[CDATA\[(?:(?P<cdata>.*?)\]\]>|(?P<open_cdata>))|<!(?i:DOCTYPE)[^\[>]*+(?:\[[^\]]*+\]\s*+)?+>|<[!?][^>]*+(?:>|\Z)"
    r"|<(?P<close>/?)(?P<name>[A-Za-z][^\s/>]*+)"
    r"""(?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+)*+(?:>|(?P<open_tag>\Z))""",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(  # its name, the quote around its value, and this
    r"""([^\s"'>/=]++)(?:\s*+=\s*+(["']?+)((?<=")[^"]*+|(?<=')[^']*+|[^\s"'>]++)\2)?+"""
)
# The kinds of marks that elements of HTML are; all others are "element"
_PHRASES = "abbr acronym b bdi bdo big cite data del dfn em font i ins mark nobr q s small span strike strong sub sup time u"
MARKS = dict.fromkeys(_PHRASES.split(), "look") | {"a": "link"}
VOID = set("area base br col embed hr img input link meta param source track wbr".split())
_RAW_TEXT = set("iframe noembed noframes script style textarea xmp".split())  # no tags in them


def html_tokens(source: str, is_xml: bool = False) -> Iterator[Event]:
    """The tags of HTML, or of XML as far as it can be read, with their names in lower case, and the text between them. What is
    neither text nor opens or closes an element is an anchor, such as an empty element or a comment."""
    position = 0
    while tag := _TAG.search(source, position):
        start, end = tag.span()
        if position < start:
            yield Event("text", position, start)
        position = end
        name = (tag["name"] or "").lower()
        kind = "open"
        if tag.lastgroup in ("open_comment", "open_cdata", "open_tag"):
            position = len(source)
            yield Event("anchor", start, position)
            return
        if is_xml and tag.lastgroup == "cdata":
            kind = "text"
        elif not name:
            kind = "anchor"
        elif tag["close"]:
            kind = "close"
        elif name in VOID or (is_xml and source[end - 2] == "/"):
            kind = "anchor"
        yield Event(kind, start, end, name=name)
        if kind == "open" and name in _RAW_TEXT:
            close = re.compile(rf"(?i)</{name}(?=[\s/>])").search(source, end)
            position = close.start() if close else len(source)
            yield Event("anchor", end, position)
    if position < len(source):
        yield Event("text", position, len(source))


def words_of(raw: str) -> str:
    """The words of a text or a CDATA section."""
    if raw.startswith("<![CDATA["):
        return raw[9:-3]
    return unescape(raw)


def attributes_of(tag: str) -> dict[str, str]:
    """The attributes of a tag of HTML, by their names in lower case."""
    _, *found = _ATTRIBUTE.findall(tag)
    return {name.lower(): unescape(value) for name, _, value in reversed(found)}


def with_values(tag: str, values: Mapping[str, str]) -> str:
    """A tag whose attributes of these names have these values; those that it lacks come first."""
    had = attributes_of(tag)
    for name, value in values.items():
        if had.get(name.lower()) == value:
            continue
        head, *attributes = _ATTRIBUTE.finditer(tag)
        old = next((each for each in attributes if each[1].lower() == name.lower()), None)
        if old:
            tag = f'{tag[: old.start()]}{name}="{value}"{tag[old.end() :]}'
        else:
            tag = f'{tag[: head.end()]} {name}="{value}"{tag[head.end() :]}'
    return tag


def attributes_in(source: str, tag: Span, names: Collection[str]) -> Iterator[Passage]:
    """The values of a tag's attributes of these names, without the quotes around them."""
    for match in _ATTRIBUTE.finditer(source, *tag):
        if match[3] and match[1].lower() in names:
            yield Passage(unescape(match[3]), (match.span(3),))


def ends_of(tokens: Sequence[Event]) -> dict[int, int]:
    """The ends of elements that are closed: the number of an opening tag's token -> its closing tag's."""
    opened = dict[str, list[int]]()
    ends = dict[int, int]()
    for number, token in enumerate(tokens):
        if token.kind == "open":
            opened.setdefault(token.name, []).append(number)
        elif token.kind == "close" and opened.get(token.name):
            ends[opened[token.name].pop()] = number
    return ends


def events_of(
    is_xml: bool, marks: Mapping[str, str], hidden: Collection[str], raw: str, shown: str = ""
) -> Iterator[Event]:
    """The parts of markup, for the check. marks: by name, else "element"; hidden: left out; shown: whose text is seen"""
    tokens = [*html_tokens(raw, is_xml)]
    ends = ends_of(tokens)
    after = 0
    opened = ""
    for number, token in enumerate(tokens):
        if number < after:
            continue
        part = raw[token.start : token.stop]
        if token.name in hidden:
            after = ends.get(number, number) + 1
        elif token.kind != "text":
            yield token._replace(mark=marks.get(token.name, "element"), raw=part)
        elif shown in ("", opened):
            yield token._replace(words=words_of(part))
        if token.kind == "open":
            opened = token.name
        elif token.kind == "close":
            opened = ""
