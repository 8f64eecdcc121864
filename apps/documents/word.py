"""Word's .docx: the paragraphs of text, tables, headers, footers, notes and comments, and what controls are
bound to. All else stays as it is."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import unescape
from itertools import groupby
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from apps.documents.archive import Parsers, in_archive
from apps.documents.document import Change, Document, Passage, Span, as_text
from apps.documents.html import parse_xml
from apps.documents.inline import STAND_IN, Event, paragraphs_of
from apps.documents.language import LanguageChange
from apps.documents.markup import Markup, in_markup
from apps.documents.paragraph import Paragraph, Run
from apps.documents.tags import (
    attributes_in,
    attributes_of,
    events_of,
    with_values,
)
from apps.documents.xml_tree import Element, xml_tree
from speculative.text.languages import direction, script_of

_PARTS = re.compile(  # content types
    r".*\.(?:main|header|footer|footnotes|endnotes|comments|styles|settings)\+xml"
)
_LANGUAGE = re.compile(r"<([\w.-]+:)(?:lang|themeFontLang)\b[^>]*>")
# The attribute that names the language of text in a script, besides `val`
_COMPLEX = "Arab Beng Deva Gujr Guru Hebr Khmr Knda Laoo Mlym Mymr Nkoo Orya Sinh Syrc Taml Telu Thaa Thai Tibt"
_SCRIPTS = dict.fromkeys(_COMPLEX.split(), "bidi")
_SCRIPTS |= dict.fromkeys(("Hans", "Hant", "Jpan", "Kore"), "eastAsia")
_FROM_RIGHT = re.compile(r"<[\w.-]+:(?:bidi|rtl|bidiVisual)\b[^>]*>")
_UNSEEN = re.compile(  # in a look
    r"<(?:[\w.-]+:)?(?:lang|noProof)\b[^>]*>|<(?:[\w.-]+:)?rPrChange\b.*", re.DOTALL
)
# Elements, all in lower case
_WRAPPERS = set("hyperlink ins moveto smarttag customxml sdt sdtcontent dir bdo".split())
_MARKS = {"hyperlink": "link", "ins": "change", "moveto": "change"}
_STAYS = {"del": "", "movefrom": "", "omath": STAND_IN, "omathpara": STAND_IN}
_SHOWN = {"nobreakhyphen": "-", "br": " ", "cr": " ", "tab": " "}
_RANGE = re.compile(r"((?:comment|bookmark)\w*?)(start|end)")
_PROPERTIES = re.compile(r"(?:p|r|sdt|smarttag|customxml)\w*pr")  # of the element that they are in
_PROSE = {"HYPERLINK": "link", "TOC": "range", "FORMTEXT": "range"}  # fields that are translated
_CODE = re.compile(  # styles
    r"(?i)(?:source|html)?[ -]?code(?:char|block)?|verbatim(?:char)?|(?:html)?preformatted(?:text)?"
)
_READ = {"alt", "descr", "title"}
_CORE = "docProps/core.xml"  # the document's properties; some of them are no text
_CORE_STAYS = "cp:contentStatus cp:lastModifiedBy cp:lastPrinted cp:revision cp:version dc:creator dc:identifier dc:language dcterms:created dcterms:modified"
_ALT_CHUNK = re.compile(rb"<[\w.-]+:altChunk\b")
_BOUND = re.compile(rb"<[\w.-]+:dataBinding\b(?![^>]*coreProperties)")
_CHART = re.compile(r"word/(?:charts/chart|diagrams/data)\d*\.xml")


def parse(data: bytes, **options: Any) -> Document:
    return in_archive(data, partial(_parsers, options), _untranslated)


def _parsers(options: Mapping[str, Any], files: Mapping[str, bytes]) -> Parsers:
    types = ElementTree.fromstring(files["[Content_Types].xml"])
    shown = (each for each in types if _PARTS.fullmatch(each.get("ContentType", "")))
    parts: Parsers = {each.get("PartName", "")[1:]: partial(_part, **options) for each in shown}
    is_bound = any(b"coreProperties" in files.get(name, b"") for name in parts)  # a control
    return parts | ({_CORE: partial(parse_xml, stays=_CORE_STAYS.split())} if is_bound else {})


def _part(xml: bytes, bilingual: bool = False) -> Document:
    reader = _PartReader(as_text(xml))
    run, text, look, ruby = (f"{reader.prefix.lower()}{name}" for name in ("r", "t", "rpr", "ruby"))
    marks = dict.fromkeys((run, text, ""), "run")  # may be split and joined; comments may be lost
    unseen = (look, ruby, f"{reader.prefix.lower()}softhyphen")
    parts = partial(events_of, True, marks, unseen, shown=text)

    def written(words: str) -> str:
        return f'<{reader.prefix}t xml:space="preserve">{escape(words)}</{reader.prefix}t>'

    def below(raw: str, change: Change, paragraph: Paragraph) -> str:
        between = f"<{reader.prefix}br/>"
        if paragraph.spans in reader.tabbed:
            between = written(" / ")
        new = _in_language(raw, change) if change else raw
        return f"<{reader.prefix}r>{between}</{reader.prefix}r>{new}"

    markup = Markup(written, parts, below=below if bilingual else None, relabel=_in_language)
    return in_markup(xml, reader.paragraphs_in, markup, hidden=reader.attributes)


def _in_language(source: str, change: LanguageChange) -> str:
    """A part that names the target's language as its default and where it named the source's."""
    old, new = (_SCRIPTS.get(script_of(each), "val") for each in (change.source, change.target))
    defaults = source.rfind("docDefaults>")  # where these end, if they are here

    def named(match: re.Match) -> str:
        had = attributes_of(match[0])
        is_own = change.is_source(had.get(f"{match[1]}{old}".lower(), ""))
        if not is_own and match.start() > defaults:
            return match[0]
        name = f"{match[1]}{new}"
        return with_values(match[0], {name: change.new(had.get(name.lower(), ""))})

    if direction(change.source) == "rtl" != direction(change.target):
        source = _FROM_RIGHT.sub("", source)
    return _LANGUAGE.sub(named, source)


@dataclass
class _Field:
    """A field whose end is still to come, from the place where it begins."""

    place: Event
    code: str = ""
    has_result: bool = False


def _mark_of(code: str) -> str:
    """The kind of mark that a field with this code is; none if it is not translated."""
    return _PROSE.get(" ".join(code.split()[:1]), "")


class _PartReader:
    """Reads the paragraphs of a part. The names of Word's own namespace, which is the root's, are without its prefix."""

    def __init__(self, source: str):
        self.source = source
        self.tree = xml_tree(source)
        (root,) = self.tree.children
        self.prefix = "".join(re.findall(r"\A<([\w.-]+:)", source[root.start : root.inner]))
        self.attributes = list[Passage]()  # that describe pictures
        for element in root.iter():
            element.name = element.name.removeprefix(self.prefix.lower())
            if element.name.rpartition(":")[2] in ("docpr", "shape"):
                self.attributes += attributes_in(source, (element.start, element.inner), _READ)
        self.paragraphs = list[Paragraph]()
        self.tabbed = set[tuple[Span, ...]]()  # those in lines with tabs
        self.fields = list[_Field]()

    def paragraphs_in(self, source: str) -> list[Paragraph]:
        """The paragraphs. source: with other attributes in the same places"""
        self.source = source
        self._read_paragraphs(self.tree)
        return self.paragraphs

    def _read_paragraphs(self, element: Element) -> None:
        for child in element.children:
            if child.name == "p":
                self._read_paragraph(child)
            elif child.has("p"):
                self._read_paragraphs(child)

    def _read_paragraph(self, element: Element) -> None:
        if _is_code(element):
            return
        for field in self.fields:  # the rest of those that began in another paragraph
            field.place = Event("anchor", element.inner, element.inner)
        here = [*self._read_all(element.children)]
        paragraphs = [*paragraphs_of(self.source, here)]
        if len(paragraphs) > 1 and any(each.name == "tab" for each in here):
            self.tabbed |= {each.spans for each in paragraphs}
        self.paragraphs += paragraphs

    def _is_shown(self) -> bool:
        return all(field.has_result and _mark_of(field.code) for field in self.fields)

    def _read_all(self, elements: Sequence[Element]) -> Iterator[Event]:
        for is_code, group in groupby(elements, lambda each: each.name == "r" and _is_code(each)):
            some = [*group]
            if is_code and self._is_shown():
                yield Event("anchor", some[0].start, some[-1].stop, STAND_IN)
                continue
            for element in some:
                if element.name == "r":
                    yield from self._read_run(element)
                elif not _PROPERTIES.fullmatch(element.name):
                    yield from self._read(element, Event("anchor", element.start, element.stop))

    def _read_run(self, element: Element) -> Iterator[Event]:
        """Read a run, as if each thing in it had one of its own."""
        parts = [child for child in element.children if child.name != "rpr"]
        head = self.source[element.start : element.inner]
        look = ""
        if parts != element.children:
            properties = element.children[0]
            head = self.source[element.start : properties.stop]
            look = self.source[properties.inner : properties.end]
        run = Run(head, f"</{self.prefix}r>", _UNSEEN.sub("", look))
        for part in parts:
            place = Event("anchor", part.start, part.stop, before=run, after=run)
            if part is parts[0]:
                place = place._replace(start=element.start, before=Run())
            if part is parts[-1]:
                place = place._replace(stop=element.stop, after=Run())
            yield from self._read(part, place, run)

    def _read(self, element: Element, place: Event, run: Run | None = None) -> Iterator[Event]:
        """Read what is in a run or a paragraph. place: its own, with its run if it is the only thing there"""
        name = element.name
        edge = _RANGE.fullmatch(name)
        if name in ("fldchar", "instrtext"):
            yield from self._read_field(element, place)
        elif not self._is_shown():
            yield from self._read_all(element.children)
        elif edge:
            kind = {"start": "open", "end": "close"}[edge[2]]
            of = f"{edge[1]} {element.attribute('id')}"
            yield place._replace(kind=kind, name=of, mark="range")
        elif name in ("t", "ruby"):
            yield self._text(element, place, run)
        elif name in _SHOWN:
            yield place._replace(kind="break", words=_SHOWN[name], name=name)
        elif element.has("p") and name not in _WRAPPERS:
            yield place._replace(kind="hole")
            self._read_paragraphs(element)
        elif name == "sdt" and any(p.name.endswith(":checkbox") for p in _properties(element)):
            yield place._replace(words=STAND_IN)
        elif not run and self._mark(element):
            yield from self._read_element(element)
        elif name == "fldsimple" and element.has("t"):
            yield place._replace(words=STAND_IN)
        elif name != "softhyphen":
            yield place._replace(words=_STAYS.get(name.rpartition(":")[2], ""))

    def _mark(self, element: Element) -> str:
        """The kind of mark of an element whose words are the paragraph's; none for others."""
        if element.name == "fldsimple":
            return _mark_of(element.attribute("instr"))
        is_around = element.name in _WRAPPERS or element.has("r")
        if not is_around or element.name.rpartition(":")[2] in _STAYS:
            return ""
        return _MARKS.get(element.name, "element")

    def _text(self, element: Element, place: Event, run: Run | None) -> Event:
        """A text, without the reading of its signs."""
        base = [each for each in element.iter() if each.name == "rubybase"] or [element]
        texts = [each for each in base[0].iter() if each.name == "t"]
        raw = "".join(self.source[each.inner : each.end] for each in texts)
        return place._replace(kind="text", words=unescape(raw), run=run)

    def _read_element(self, element: Element) -> Iterator[Event]:
        properties = [each for each in element.children if _PROPERTIES.fullmatch(each.name)]
        begin = max([element.inner, *(each.stop for each in properties)])
        yield Event("open", element.start, begin, name=element.name, mark=self._mark(element))
        yield from self._read_all(element.children)
        yield Event("close", element.end, element.stop, name=element.name)

    def _read_field(self, element: Element, place: Event) -> Iterator[Event]:
        """Read a field's begin, its code, where its result begins, or its end."""
        kind = element.attribute("fldchartype")
        if kind == "begin":
            self.fields.append(_Field(place))
        if not self.fields:
            return
        field = self.fields[-1]
        field.has_result = field.has_result or kind == "separate"
        if element.name == "instrtext":
            field.code += self.source[element.inner : element.end]
        elif kind == "end":
            self.fields.pop()
        if kind not in ("separate", "end") or not self._is_shown():
            return
        name = f"field {field.place.start}"
        whole = field.place._replace(stop=place.stop, after=place.after)
        mark = _mark_of(field.code)
        if not (field.has_result and mark):
            yield whole._replace(words=STAND_IN if field.has_result else "")
        elif kind == "separate":
            yield whole._replace(kind="open", name=name, mark=mark)
        else:
            yield place._replace(kind="close", name=name)


def _properties(element: Element) -> list[Element]:
    return [each for child in element.children[:1] for each in child.children]


def _is_code(element: Element) -> bool:
    """Whether the style of a paragraph, or of a run that is no field's edge, is one of code."""
    if any(child.name == "fldchar" for child in element.children):
        return False
    styles = [each for each in _properties(element) if each.name in ("pstyle", "rstyle")]
    return any(_CODE.fullmatch(style.attribute("val")) for style in styles)


def _untranslated(files: Mapping[str, bytes]) -> list[str]:
    charts = sum(_CHART.fullmatch(name) is not None for name in files)
    embedded = sum(len(_ALT_CHUNK.findall(data)) for data in files.values())
    bound = sum(len(_BOUND.findall(data)) for data in files.values())
    data = "data that controls are bound to, whose text Word shows instead"
    counts = {"charts and diagrams": charts, "embedded documents": embedded, data: bound}
    return [f"not translated: {kind} ({count})" for kind, count in counts.items() if count]
