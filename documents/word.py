"""Word's .docx: the paragraphs of text, tables, headers, footers and notes. All else stays as it is."""

import re
from collections.abc import Iterator
from html import unescape
from xml.etree import ElementTree
from xml.sax.saxutils import escape
from zipfile import ZipFile

from common.errors import InputError
from documents.document import Document
from documents.inline import STAND_IN, Inline
from documents.markup import in_archive, in_markup
from documents.paragraph import Paragraph, Run

_PARTS = re.compile(r".*\.(?:main|header|footer|footnotes|endnotes)\+xml")  # content types
_TAG = re.compile(
    r"(?P<paragraph></?w:p\b[^>]*>)|(?P<properties><w:pPr>.*?</w:pPr>)"
    # What stays, as a part of its sentence or not
    r"|(?P<shown><(?P<math>m:oMath|m:oMathPara)>.*?</(?P=math)>)"
    r"|(?P<hidden><w:(?P<old>del|moveFrom)\b[^>]*(?<!/)>.*?</w:(?P=old)>)"
    # What begins or ends around words, in any order
    r"|<w:(?P<range>(?:comment|bookmark)\w*?)(?P<edge>Start|End)\b[^>]*w:id=\"(?P<id>[^\"]*)\"[^>]*>"
    # A field: first its code, then its result; and text with its reading
    r"|(?P<begin><w:fldChar\b[^>]*\"begin\"[^>]*(?:/>|>.*?</w:fldChar>))"
    r"|(?P<simple><w:fldSimple\b[^>]*w:instr=\"(?P<instruction>[^\"]*)\"[^>]*(?<!/)>)"
    r"|<w:instrText\b[^>]*>(?P<code>[^<]*)</w:instrText>|(?P<result><w:fldChar\b[^>]*\"separate\"[^>]*>)"
    r"|(?P<end><w:fldChar\b[^>]*\"end\"[^>]*>|</w:fldSimple>)|(?P<ruby><w:ruby>.*?</w:ruby>)"
    # Of a run
    r"|(?P<run><w:r\b[^>]*(?<!/)>\s*(?:<w:rPr>(?P<look>.*?)</w:rPr>(?!</w:rPrChange>))?)|(?P<leave></w:r>)"
    r"|<w:t(?:\s[^>]*)?>(?P<text>[^<]+)</w:t>"
    r"|(?P<break><w:(?:br|cr|tab)\b[^>]*>)|<w:(?P<hyphen>noBreak|soft)Hyphen\b[^>]*>"
    # An element of another kind, with its properties
    r"|(?P<element><(?P<close>/?)(?P<name>[\w:]+)\b[^>]*?(?P<empty>/?)>"
    r"(?:\s*<w:(?P<about>(?:sdt|smartTag|customXml)\w*Pr)\b(?:[^>]*/>|.*?</w:(?P=about)>))*)",
    re.DOTALL,
)
_UNSEEN = re.compile(r"<w:(?:lang|noProof)\b[^>]*>|<w:rPrChange\b.*", re.DOTALL)  # in a look
_KINDS = {"w:hyperlink": "link", "w:ins": "change", "w:moveTo": "change"}
_TEXT = re.compile(r"<w:t(?:\s[^>]*)?>([^<]+)")
_BASE = re.compile(r"(?s).*<w:rubyBase>")
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
    return in_markup(xml, lambda source: _Reader(source).paragraphs(), _written, about)


def _written(_: Paragraph, words: str) -> str:
    return f'<w:t xml:space="preserve">{escape(words)}</w:t>'


class _Field:
    """A field whose end is still to come, from the place and the run in which it begins."""

    def __init__(self, start: int, run: Run | None, code: str = "", has_result: bool = False):
        self.name = f"field {start}"
        self.start = start
        self.run = run
        self.code = code
        self.has_result = has_result
        self.has_text = False

    def is_prose(self) -> bool:
        return self.has_result and bool(_PROSE.match(self.code))


class _Reader:
    """Reads the paragraphs of a part, tag by tag."""

    def __init__(self, source: str):
        self.source = source
        self.open = list[Inline]()  # a text box has paragraphs of its own
        self.fields = list[_Field]()

    def paragraphs(self) -> Iterator[Paragraph]:
        for tag in _TAG.finditer(self.source):
            kind = tag.lastgroup or ""
            if kind == "paragraph" and tag[0].startswith("</"):
                here = self.open.pop()
                here.finish()
                yield from here.paragraphs
            elif kind == "paragraph" and not tag[0].endswith("/>"):
                self.open.append(Inline(self.source))
                self._continue_fields(tag)
            elif self.open and kind == "properties":
                self._continue_fields(tag)
            elif self.open:
                self._read(self.open[-1], kind, tag)

    def _continue_fields(self, tag: re.Match) -> None:
        """The rest of those that began in another paragraph."""
        for field in self.fields if len(self.open) == 1 else ():
            field.start = tag.end()
            field.run = None

    def _read(self, here: Inline, kind: str, tag: re.Match) -> None:
        is_hidden = not all(field.is_prose() for field in self.fields)
        before = here.run
        if kind in ("run", "leave"):
            look = _UNSEEN.sub("", tag["look"] or "")
            here.run = Run(tag[0], look) if kind == "run" else None
            here.add_from(before, "left out", tag.span())
        elif kind in ("begin", "simple"):
            code = unescape(tag["instruction"] or "")
            self.fields.append(_Field(tag.start(), here.run, code, kind == "simple"))
            if kind == "simple":
                self._read_field(here, kind, tag)
        elif kind in ("code", "result", "end"):
            self._read_field(here, kind, tag)
        elif is_hidden:
            for field in self.fields:
                field.has_text |= kind == "text"
        elif kind == "id":
            edge = {"Start": "open", "End": "close"}[tag["edge"]]
            here.add(edge, tag.span(), f"{tag['range']} {tag['id']}", "range")
        elif kind in ("text", "ruby"):
            texts = _TEXT.findall(_BASE.sub("", tag[0]))
            here.add("text", tag.span(), unescape("".join(texts)))
        elif kind == "hyphen":
            here.add("anchor" if tag["hyphen"] == "noBreak" else "left out", tag.span(), "-")
        elif kind == "break":
            here.line_break(tag.span())
        elif kind == "element" and not tag["empty"]:
            name = tag["name"]
            edge = "close" if tag["close"] else "open"
            here.add(edge, tag.span(), name, _KINDS.get(name, "element"))
        else:
            here.add("anchor", tag.span(), STAND_IN if kind == "shown" else "")

    def _read_field(self, here: Inline, kind: str, tag: re.Match) -> None:
        if not self.fields:
            return
        field = self.fields[-1]
        if kind == "code":
            field.code += unescape(tag["code"])
            return
        field.has_result |= kind == "result"
        if kind == "end":
            self.fields.pop()
        if not all(each.is_prose() for each in self.fields):
            return
        if field.is_prose():
            self._open_or_close(here, kind, field, tag)
        elif kind == "end":
            shown = STAND_IN if field.has_text else ""
            here.add_from(field.run, "anchor", (field.start, tag.end()), shown)

    @staticmethod
    def _open_or_close(here: Inline, kind: str, field: _Field, tag: re.Match) -> None:
        """A field around words that are translated."""
        if kind == "end":
            here.add("close", tag.span(), field.name)
        else:
            mark = "link" if field.code.strip().startswith("HYPERLINK") else "range"
            here.add_from(field.run, "open", (field.start, tag.end()), field.name, mark)
