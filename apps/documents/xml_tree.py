"""The elements of XML, with their places in the source."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from speculative.common.errors import InputError

_REST_OF_TAG = re.compile(r"""(?:[^>"']|"[^"]*"|'[^']*')*+>""")
_NOT_ASCII = re.compile(r"[^\0-\x7f]")


@dataclass(slots=True)
class Element:
    """An element of XML, and where it and its content are in the source. name: its namespace, a space and the local name"""

    name: str
    attributes: Mapping[str, str]
    start: int
    inner: int
    end: int = 0
    stop: int = 0
    children: list["Element"] = field(default_factory=list)

    def iter(self) -> Iterator["Element"]:
        """It and all in it, in the source's order."""
        yield self
        for child in self.children:
            yield from child.iter()


def xml_tree(source: str) -> Element:
    """Some XML; its root is the only child. InputError if it is not well-formed, or has a document type and with it entities."""
    if "<!DOCTYPE" in source:
        raise InputError("it has a document type")
    parser = expat.ParserCreate("us-ascii", " ")
    opened = [Element("", {}, 0, 0)]
    shift = len(source) - len(source.lstrip("\ufeff"))

    def begin(name: str, attributes: Mapping[str, str]) -> None:
        start = parser.CurrentByteIndex + shift
        rest = _REST_OF_TAG.match(source, start)
        assert rest
        element = Element(name, attributes, start, rest.end())
        opened[-1].children.append(element)
        opened.append(element)

    def end(_: str) -> None:
        element = opened.pop()
        element.end = element.stop = parser.CurrentByteIndex + shift
        if not source.endswith("/>", element.start, element.inner):
            element.stop = source.index(">", element.end) + 1

    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    try:
        parser.Parse(_NOT_ASCII.sub("_", source[shift:]), True)  # so that bytes are characters
    except expat.ExpatError as error:
        raise InputError(str(error)) from None
    return opened[0]
