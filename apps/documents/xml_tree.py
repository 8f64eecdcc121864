"""The elements of XML, with their places in the source."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from apps.documents.tags import attributes_of, html_tokens
from speculative.common.errors import InputError


@dataclass(slots=True)
class Element:
    """An element of XML, and where it and its content are in the source. name: with its prefix, in lower case"""

    name: str
    tag: str
    start: int
    inner: int
    end: int
    stop: int
    children: list["Element"] = field(default_factory=list)

    def iter(self) -> Iterator["Element"]:
        """It and all in it, in the source's order."""
        yield self
        for child in self.children:
            yield from child.iter()

    def has(self, name: str) -> bool:
        return any(each.name == name for each in self.iter())

    def attribute(self, name: str) -> str:
        """An attribute of this name, with whatever prefix; empty if there is none."""
        found = attributes_of(self.tag).items()
        return next((value for key, value in found if key.rpartition(":")[2] == name), "")


def xml_tree(source: str) -> Element:
    """Some XML; its root is the only child. InputError if it is not well-formed, or has a document type and with it entities."""
    if "<!DOCTYPE" in source:
        raise InputError("it has a document type")
    try:
        expat.ParserCreate(namespace_separator="}").Parse(source, True)
    except expat.ExpatError as error:
        raise InputError(str(error)) from None
    opened = [Element("", "", 0, 0, 0, 0)]
    for token in html_tokens(source, is_xml=True):
        if token.kind == "close":
            element = opened.pop()
            element.end = token.start
            element.stop = token.stop
        elif token.name:
            tag = source[token.start : token.stop]
            element = Element(token.name, tag, token.start, token.stop, token.stop, token.stop)
            opened[-1].children.append(element)
            if token.kind == "open":
                opened.append(element)
    return opened[0]
