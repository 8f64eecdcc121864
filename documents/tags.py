"""Tags of HTML and XML, with their places in the source."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from html import unescape
from types import MappingProxyType
from typing import NamedTuple
from xml.parsers import expat

from common.errors import InputError

# As HTML's standard reads them: quotes count behind an equals sign. Not by html.parser, which takes quadratic time.
_TAG = re.compile(
    r"<!--(?:.*?-->|(?P<open_comment>))|<!\[CDATA\[(?:(?P<cdata>.*?)\]\]>|(?P<open_cdata>))|<!(?i:DOCTYPE)[^\[>]*+(?:\[[^\]]*+\]\s*+)?+>|<[!?][^>]*+>"
    r"|<(?P<close>/?)(?P<name>[A-Za-z][^\s/>]*+)"
    r"""(?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+)*+(?:>|(?P<open_tag>\Z))""",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"""([^\s"'>/=]++)(?:\s*+=\s*+("[^"]*+"|'[^']*+'|[^\s"'>]++))?+""")
_CHUNK = 1 << 16  # bytes
VOID = set("area base br col embed hr img input link meta param source track wbr".split())
_RAW_TEXT = set("iframe noembed noframes script style textarea xmp".split())  # no tags in them


_NONE: Mapping[str, str] = MappingProxyType({})


class Token(NamedTuple):
    """A part of a source, with where it is.

    kind:       "open", "close" or "empty", of an element; "text"; or "other", such as a comment
    name:       an element's, in lower case; in XML the namespace, a space and the local name
    attributes: of XML, named in the same way
    """

    kind: str
    start: int
    stop: int
    name: str = ""
    attributes: Mapping[str, str] = _NONE


def html_tokens(source: str, is_xml: bool = False) -> Iterator[Token]:
    """The tags of HTML, or of XML as far as it can be read, and the text between them."""
    position = 0
    while tag := _TAG.search(source, position):
        start, end = tag.span()
        if position < start:
            yield Token("text", position, start)
        position = end
        name = (tag["name"] or "").lower()
        kind = "open"
        if tag.lastgroup in ("open_comment", "open_cdata", "open_tag"):
            position = len(source)
            yield Token("other", start, position)
            return
        if not name:
            kind = "other"
        elif tag["close"]:
            kind = "close"
        elif name in VOID or (is_xml and source[end - 2] == "/"):
            kind = "empty"
        yield Token(kind, start, end, name)
        if kind == "open" and name in _RAW_TEXT:
            close = re.compile(rf"(?i)</{name}(?=[\s/>])").search(source, end)
            position = close.start() if close else len(source)
            yield Token("other", end, position)
    if position < len(source):
        yield Token("text", position, len(source))


def attributes_of(tag: str) -> dict[str, str]:
    """The attributes of a tag of HTML, by their names in lower case."""
    _, *found = _ATTRIBUTE.findall(tag)
    return {name.lower(): unescape(value.strip("\"'")) for name, value in reversed(found)}


def ends_of(tokens: Sequence[Token]) -> dict[int, int]:
    """The ends of elements that are closed: the number of an opening tag's token -> its closing tag's."""
    opened = dict[str, list[int]]()
    ends = dict[int, int]()
    for number, token in enumerate(tokens):
        if token.kind == "open":
            opened.setdefault(token.name, []).append(number)
        elif token.kind == "close" and opened.get(token.name):
            ends[opened[token.name].pop()] = number
    return ends


def xml_tokens(source: str) -> Iterator[Token]:
    """The tokens of XML; the name of a text is what it says. InputError if it is not well-formed, or has a document type and
    with it entities."""
    found = list[
        tuple[str, int, str, Mapping[str, str]]
    ]()  # tokens with the byte that they begin at
    parser = expat.ParserCreate("utf-8", " ")

    def add(kind: str, name: str = "", attributes: Mapping[str, str] = _NONE) -> None:
        found.append((kind, parser.CurrentByteIndex, name, attributes or _NONE))

    def refuse(*_) -> None:
        raise InputError("it has a document type")

    parser.StartElementHandler = partial(add, "open")
    parser.EndElementHandler = partial(add, "close")
    parser.CharacterDataHandler = partial(add, "text")
    parser.DefaultHandler = lambda _: add("other")
    parser.StartDoctypeDeclHandler = refuse
    data = source.encode()
    last: Token | None = None
    byte = place = 0
    for start in range(0, len(data) + 1, _CHUNK):
        try:
            parser.Parse(data[start : start + _CHUNK], start + _CHUNK > len(data))
        except expat.ExpatError as error:
            raise InputError(str(error)) from None
        for kind, index, name, attributes in found:
            place += len(data[byte:index].decode())
            byte = index
            if last and last.kind == kind == "text":
                last = last._replace(name=last.name + name)
                continue
            if last:
                yield from _ended(source, last, place)
            last = Token(kind, place, place, name, attributes)
        found.clear()
    if last:
        yield from _ended(source, last, len(source))


def _ended(source: str, token: Token, stop: int) -> Iterator[Token]:
    """The token with its end; nothing for the closing tag that an empty element does not have."""
    if token.kind == "open" and source.endswith("/>", token.start, stop):
        token = token._replace(kind="empty")
    if token.start < stop:
        yield token._replace(stop=stop)
