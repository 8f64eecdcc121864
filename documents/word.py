"""Word's .docx: the paragraphs of text, tables, headers, footers and notes. All else stays as it is."""

import re
from collections.abc import Iterator
from html import unescape
from xml.etree import ElementTree
from xml.sax.saxutils import escape
from zipfile import ZipFile

from documents.document import Document
from documents.marks import STAND_IN, Paragraph, Slot, Slots
from documents.markup import in_archive, in_markup
from errors import InputError

_PARTS = re.compile(r".*\.(?:main|header|footer|footnotes|endnotes)\+xml")  # content types
_TAG = re.compile(
    r"(?P<paragraph></?w:p\b[^>]*>)|<w:pPr>.*?</w:pPr>"
    # What stays, as a part of its sentence or not
    r"|(?P<shown><(?P<math>m:oMath|m:oMathPara)>.*?</(?P=math)>)"
    r"|(?P<hidden><w:(?P<old>del|moveFrom)\b[^>]*(?<!/)>.*?</w:(?P=old)>)"
    r"|(?P<anchor><w:(?:drawing|pict|object|sym|ptab|\w+Ref|\w+Reference)\b)"
    # What is around words
    r"|(?P<open><w:(?:hyperlink|ins|moveTo|sdt|commentRangeStart|bookmarkStart)\b[^>]*>)"
    r"|(?P<close></w:(?:hyperlink|ins|moveTo|sdt)>|<w:(?:commentRange|bookmark)End\b[^>]*>)"
    # A field: first its code, then its result; and text with its reading
    r"|(?P<begin><w:fldChar\b[^>]*\"begin\")|<w:fldSimple\b[^>]*w:instr=\"(?P<simple>[^\"]*)\"[^>]*(?<!/)>"
    r"|<w:instrText\b[^>]*>(?P<code>[^<]*)|(?P<result><w:fldChar\b[^>]*\"separate\")"
    r"|(?P<end><w:fldChar\b[^>]*\"end\"|</w:fldSimple>)|(?P<ruby></?w:(?:ruby|rt)>)"
    # Of a run
    r"|(?P<run><w:r\b[^>]*>)|<w:rPr>(?P<look>.*?)</w:rPr>|<w:t(?P<text>(?:\s[^>]*)?>[^<]+)</w:t>"
    r"|(?P<break><w:(?:br|cr|tab)\b)|(?P<hyphen><w:(?:noBreak|soft)Hyphen\b[^>]*>)",
    re.DOTALL,
)
_UNSEEN = re.compile(r"<w:(?:lang|noProof)\b[^>]*>|<w:rPrChange\b.*", re.DOTALL)  # in a look
_GROUP = re.compile(
    r"</?w:(hyperlink|ins|moveTo|sdt)|<w:(comment|bookmark)\w*?(?:Start|End)\b[^>]*w:id=(\S+)"
)
_KINDS = {"hyperlink": "link", "ins": "change", "moveTo": "change"}
_RUBY = {"<w:ruby>": "base", "<w:rt>": "reading", "</w:rt>": "base", "</w:ruby>": ""}
_PROSE = re.compile(r"\s*(?:HYPERLINK|TOC|FORMTEXT)\b")  # fields whose results are translated


def parse(data: bytes) -> Document:
    return in_archive(data, ".docx", _parts, _part)


def _parts(archive: ZipFile) -> set[str]:
    types = ElementTree.fromstring(archive.read("[Content_Types].xml")).iter()
    kinds = {each.get("PartName", "")[1:]: each.get("ContentType", "") for each in types}
    names = {name for name, kind in kinds.items() if _PARTS.fullmatch(kind)}
    if not any(kinds[name].endswith("main+xml") for name in names):
        raise KeyError("there is no text in it")
    return names


def _part(xml: bytes, path: str, about: dict) -> Document:
    name = path.rpartition("/")[2]
    if b"<!DOCTYPE" in xml:  # and with it entities
        raise InputError(f"not a .docx file: {name} has a document type")
    try:
        ElementTree.fromstring(xml)
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # also: unknown encodings
        raise InputError(f"not a .docx file: {name}: {error}") from None
    return in_markup(xml, _Reader().paragraphs, _written, about)


def _written(paragraph: Paragraph, slot: Slot, words: str) -> str:
    text = f' xml:space="preserve">{escape(words)}'
    if slot.look == _HYPHEN:
        return words and f"<w:t{text}</w:t>"
    if slot.span[0] < slot.span[1]:
        return text
    look = f"<w:rPr>{paragraph.look}</w:rPr>" if paragraph.look else ""
    return f"<w:r>{look}<w:t{text}</w:t></w:r>"


_HYPHEN = "hyphen"  # a look; its slot is the whole element


class _Open(Slots):
    """A paragraph that has begun. A text box in it has paragraphs of its own."""

    look = ""  # of the run
    ruby = ""  # which part of a text with its reading


class _Field:
    """A field whose end is still to come."""

    def __init__(self, code: str = "", has_result: bool = False):
        self.code = code
        self.has_result = has_result
        self.has_text = False
        self.link = ""  # the group of its result

    def is_prose(self) -> bool:
        return self.has_result and bool(_PROSE.match(self.code))


class _Reader:
    """Reads the paragraphs of a part, tag by tag."""

    def __init__(self):
        self.open = list[_Open]()
        self.fields = list[_Field]()

    def paragraphs(self, source: str) -> Iterator[Paragraph]:
        for tag in _TAG.finditer(source):
            if tag.lastgroup == "paragraph" and tag[0].startswith("</"):
                here = self.open.pop()
                here.gap(tag.start())
                here.finish()
                yield from here.paragraphs
            elif tag.lastgroup == "paragraph" and not tag[0].endswith("/>"):
                self.open.append(_Open())
            elif self.open and tag.lastgroup:
                self._read(self.open[-1], tag.lastgroup, tag)

    def _read(self, here: _Open, kind: str, tag: re.Match) -> None:
        at = tag.start()
        is_hidden = not all(field.is_prose() for field in self.fields)
        if kind in ("begin", "simple"):
            self.fields.append(_Field(unescape(tag["simple"] or ""), kind == "simple"))
        elif kind in ("code", "result", "end"):
            self._read_field(here, kind, tag)
        elif kind == "close":
            here.close(_group(tag))
        elif is_hidden:
            for field in self.fields:
                field.has_text |= kind == "text"
        elif kind == "open":
            here.gap(at)
            here.groups.append(f"{_group(tag)}{at}")
        elif kind == "run":
            here.gap(at)
            here.look = ""
        elif kind == "look":
            here.look = _UNSEEN.sub("", tag["look"])
        elif kind == "ruby":
            here.ruby = _RUBY[tag[0]]
        elif kind == "text":
            words = "" if here.ruby == "reading" else unescape(tag["text"].partition(">")[2])
            here.add(tag.span("text"), words, here.look, "apart" if here.ruby else "text")
        elif kind == "break":
            here.line_break(at)
        elif kind == "hyphen":
            here.add(tag.span(), "-" if "noBreak" in tag[0] else "", _HYPHEN, "apart")
        else:
            here.anchor(at, STAND_IN if kind == "shown" else "")

    def _read_field(self, here: _Open, kind: str, tag: re.Match) -> None:
        if not self.fields:
            return
        field = self.fields[-1]
        if kind == "code":
            field.code += unescape(tag["code"])
        elif kind == "result":
            field.has_result = True
            if field.code.strip().startswith("HYPERLINK"):
                field.link = f"link field {tag.start()}"
                here.groups.append(field.link)
        else:
            self.fields.pop()
            if field.link:
                here.close(field.link)
            elif not field.is_prose() and all(each.is_prose() for each in self.fields):
                here.anchor(tag.start(), STAND_IN if field.has_text else "")


def _group(tag: re.Match) -> str:
    """How the name of a group begins."""
    match = _GROUP.match(tag[0])
    assert match
    element = match[1] or match[2]
    return f"{_KINDS.get(element, 'range')} {element} {match[3]} "
