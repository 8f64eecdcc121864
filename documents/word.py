"""Word's .docx: the paragraphs of text, tables, headers, footers and notes. All else stays as it is."""

import re
from collections.abc import Iterator
from html import unescape
from xml.etree import ElementTree
from xml.sax.saxutils import escape
from zipfile import ZipFile

from documents.document import Document
from documents.marks import APART, STAND_IN, Paragraph, Slot, Slots
from documents.markup import TAG, Lost, attribute, in_archive, in_markup
from errors import InputError

# Of [Content_Types].xml; a template's or a macro's document has another one before ".main".
_PARTS = re.compile(r".*(?:\.main|[.](?:header|footer|footnotes|endnotes))\+xml")
_UNSEEN = re.compile(r"<w:(?:lang|noProof)\b[^>]*>")  # in a run's formatting
_HYPHEN = f"{APART}hyphen"  # a look: its slot is an element
_GROUPS = {"w:hyperlink": "link", "w:ins": "change", "w:moveTo": "change", "w:sdt": "range"}
# Elements whose texts stay, and what the sentence shows of them.
_HIDDEN = {
    "w:del": "",
    "w:moveFrom": "",
    "mc:AlternateContent": "",
    "m:oMath": STAND_IN,
    "m:oMathPara": STAND_IN,
}
_IN_RUN = {"w:rPr", "w:t", "w:ruby", "w:instrText", "w:lastRenderedPageBreak"}  # no anchors
_HYPHENS = {"w:noBreakHyphen": "-", "w:softHyphen": ""}
_BREAKS = {"w:br", "w:cr", "w:tab"}
_PROSE = {"HYPERLINK", "TOC", "FORMTEXT"}  # fields whose results are texts


def parse(data: bytes) -> Document:
    return in_archive(data, ".docx", _parts, _part)


def _parts(archive: ZipFile) -> set[str]:
    types = ElementTree.fromstring(archive.read("[Content_Types].xml"))
    parts = {
        each.get("PartName", "").lstrip("/"): each.get("ContentType", "")
        for each in types
        if _PARTS.fullmatch(each.get("ContentType", ""))
    }
    if not any(kind.endswith(".main+xml") for kind in parts.values()):
        raise KeyError("it has no text")
    return {*parts}


def _part(xml: bytes, name: str, lost: Lost) -> Document:
    name = name.rpartition("/")[2]
    if b"<!DOCTYPE" in xml:  # and with it entities
        raise InputError(f"not a .docx file: {name} has a document type")
    try:
        ElementTree.fromstring(xml)
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # also: unknown encodings
        raise InputError(f"not a .docx file: {name}: {error}") from None
    return in_markup(xml, lambda source: _Reader(source).paragraphs(), _written, lost)


def _written(paragraph: Paragraph, slot: Slot, words: str) -> str:
    text = f' xml:space="preserve">{escape(words)}'
    if slot.look == _HYPHEN:
        return words and f"<w:t{text}</w:t>"
    if slot.span[0] < slot.span[1]:
        return text
    look = f"<w:rPr>{paragraph.look}</w:rPr>" if paragraph.look else ""
    return f"<w:r>{look}<w:t{text}</w:t></w:r>"


class _Field:
    """A field between its begin and its end; its result follows its instruction."""

    def __init__(self, instruction: str = "", has_begun: bool = False):
        self.instruction = instruction
        self.has_begun = has_begun  # the result
        self.has_text = False
        self.group = ""  # of a link's words

    def is_a(self, *names: str) -> bool:
        return self.instruction.strip().upper().startswith(names)


class _Open(Slots):
    """A paragraph that has begun. A text box in it has paragraphs of its own."""

    def __init__(self, depth: int):
        super().__init__()
        self.depth = depth  # elements around its children
        self.hidden = 0  # of these its own ones whose texts stay
        self.look = ""  # of the run


class _Reader:
    """Reads the paragraphs of a part."""

    def __init__(self, source: str):
        self.source = source
        self.elements = list[re.Match]()  # that are open
        self.open = list[_Open]()
        self.fields = list[_Field]()
        self.pairs_fields = source.count('"begin"') == source.count('"end"')  # both: fldCharType's

    def paragraphs(self) -> Iterator[Paragraph]:
        for tag in TAG.finditer(self.source):
            if not tag["name"]:
                continue
            if not tag["close"]:
                self._begin(tag)
                self.elements.append(tag)
            if tag["close"] or tag["empty"]:
                begin = self.elements.pop()
                if begin["name"] == "w:p":
                    ended = self.open.pop()
                    if begin is not tag:
                        ended.gap(tag.start())
                    ended.finish()
                    yield from ended.finished
                elif self.open and begin is not tag:
                    self._end(begin, tag)

    def _parent(self) -> str:
        return self.elements[-1]["name"] if self.elements else ""

    def _is_hidden(self) -> bool:
        in_field = any(not (each.has_begun and each.is_a(*_PROSE)) for each in self.fields)
        return in_field or self.open[-1].hidden > 0

    def _begin(self, tag: re.Match) -> None:
        name = tag["name"]
        if name == "w:p":
            self.open.append(_Open(len(self.elements) + 1))
        if name == "w:p" or not self.open:
            return
        here = self.open[-1]
        if len(self.elements) == here.depth and name != "w:pPr" and not self._is_hidden():
            here.gap(tag.start())
        in_run = self._parent() == "w:r" and not self._is_hidden()
        if name == "w:r":
            here.look = ""
        elif name == "w:fldSimple":
            self.fields.append(_Field(unescape(attribute(tag["attributes"], "w:instr")), True))
        elif name == "w:fldChar" and self.pairs_fields:
            self._field(attribute(tag["attributes"], "w:fldCharType"), f"link {tag.start()}")
        elif name in _HIDDEN and not tag["empty"]:
            here.hidden += 1
        elif name in _GROUPS and not tag["empty"]:
            here.groups.append(f"{_GROUPS[name]} {tag.start()}")
        elif name in ("w:commentRangeStart", "w:bookmarkStart"):
            here.groups.append(_range(tag))
        elif name in ("w:commentRangeEnd", "w:bookmarkEnd"):
            here.close(_range(tag))
        elif in_run and name in _BREAKS:
            here.line_break()
        elif in_run and name in _HYPHENS:
            here.words(tag.span(), _HYPHENS[name], _HYPHEN)
        elif in_run and name not in _IN_RUN:
            here.anchor()

    def _end(self, begin: re.Match, tag: re.Match) -> None:
        name = begin["name"]
        here = self.open[-1]
        content = self.source[begin.end() : tag.start()]
        if name == "w:t" and self._is_hidden():
            for field in self.fields:
                field.has_text = True
        elif name == "w:t" and content:
            span = begin.end("name"), tag.start()
            around = {each["name"] for each in self.elements[here.depth :]}
            look = f"{APART}ruby" if "w:ruby" in around else here.look
            here.words(span, "" if "w:rt" in around else unescape(content), look)
        elif name == "w:instrText" and self.fields:
            self.fields[-1].instruction += unescape(content)
        elif name == "w:rPr" and self._parent() == "w:r":
            here.look = _UNSEEN.sub("", content)
        elif name == "w:fldSimple":
            self._field("end")
        elif name in _HIDDEN:
            here.hidden -= 1
            if not self._is_hidden():
                here.anchor(_HIDDEN[name])
        elif name in _GROUPS:
            here.close(f"{_GROUPS[name]} {begin.start()}")

    def _field(self, kind: str, group: str = "") -> None:
        """A field's begin, the begin of its result ("separate"), or its end."""
        here = self.open[-1]
        if kind == "begin":
            self.fields.append(_Field())
        elif kind == "separate" and self.fields:
            self.fields[-1].has_begun = True
            if self.fields[-1].is_a("HYPERLINK"):
                self.fields[-1].group = group
                here.groups.append(group)
        elif kind == "end" and self.fields:
            field = self.fields.pop()
            here.close(field.group)
            if not field.is_a(*_PROSE) and not self._is_hidden():
                here.anchor(STAND_IN if field.has_text else "")


def _range(tag: re.Match) -> str:
    """The name of a comment's words or a bookmark's."""
    return f"range {tag['name'][2:5]} {attribute(tag['attributes'], 'w:id')}"
