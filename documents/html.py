"""HTML and EPUB: the text between the tags. Tags, scripts, styles, code and what is not to be translated stay."""

import re
from collections.abc import Collection
from html import escape, unescape
from posixpath import dirname, join, normpath
from urllib.parse import unquote
from xml.etree import ElementTree
from zipfile import ZipFile

from documents.document import Document
from documents.marks import STAND_IN, Paragraph, Slot, Slots
from documents.markup import in_archive, in_markup

_TAG = re.compile(
    r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<[!?][^>]*>"
    r"|<(?P<close>/?)(?P<name>[A-Za-z][^\s/>]*)"
    r"""(?P<attributes>(?:"[^"]*"|'[^']*'|[^'">])*?)(?P<empty>/?)>""",
    re.DOTALL,
)
_INLINE = set(
    "a abbr acronym b bdi bdo big cite data del dfn em font i img input ins label mark nobr q rb rp rt ruby s small"
    " span strike strong sub sup time tt u wbr".split()
)
_VOID = set("area base br col embed hr img input link meta param source track wbr".split())
_STAYS = set("audio iframe object script style svg template textarea video".split())
_STAYS_IN_SENTENCE = set("code kbd math samp tt var".split())
_ALL_STAY = _STAYS | _STAYS_IN_SENTENCE | {"pre"}
_IS_TEXT = set("script style textarea".split())  # what looks like a tag in them is none
_NOT_TRANSLATED = re.compile(r"""(?i)\btranslate\s*=\s*["']?no\b|\bclass\s*=[^>]*\bnotranslate\b""")
# The rest of a link to a note or from it, or of an empty one
_NOTE = re.compile(
    r"(?:\s|<[^<>]*>)*[\[(]?(?:\d{1,3}|(?<=[\[(])[a-z]|[*†‡§¶↩]*|&#\w+;)[\])]?(?:\s|<(?!/[aA]\b)[^<>]*>)*</[aA]\s*>"
)
_SPACE = " \t\r\n\f"
_SPACES = re.compile(f"[{_SPACE}]+")
_CHAPTERS = {"application/xhtml+xml", "application/x-dtbncx+xml"}


def parse(data: bytes) -> Document:
    return _part(data)


def parse_xml(data: bytes, splits: Collection[str] = (), stays: Collection[str] = ()) -> Document:
    """Text whose tags have no meaning of HTML's. splits: names of tags that end a sentence; stays: of elements that are not
    translated."""
    names = [{name.lower() for name in given} for given in (splits, stays)]
    return in_markup(data, lambda source: _Reader(source, *names).paragraphs(), _written)


def parse_epub(data: bytes) -> Document:
    return in_archive(data, ".epub", _chapters, _part)


def _part(data: bytes, _: str = "", about: dict | None = None) -> Document:
    return in_markup(data, lambda source: _Reader(source).paragraphs(), _written, about)


def _chapters(archive: ZipFile) -> set[str]:
    """The texts and the table of contents, which the package lists."""
    names = set[str]()
    for package in archive.namelist():
        if package.endswith(".opf"):
            for item in ElementTree.fromstring(archive.read(package)).iter():
                if item.get("media-type") in _CHAPTERS:
                    path = join(dirname(package), unquote(item.get("href", "")))
                    names.add(normpath(path))
    if not names:
        raise KeyError("there is no text in it")
    return names


def _written(paragraph: Paragraph, slot: Slot, words: str) -> str:
    return escape(words, quote=False)


class _Reader:
    """Reads the paragraphs of a page, tag by tag."""

    def __init__(self, source: str, splits: set[str] | None = None, stays: set[str] = _ALL_STAY):
        """splits: tags that end a sentence; None: HTML's"""
        self.source = source
        self.splits = splits
        self.stays = stays
        self.is_xml = splits is not None or source.lstrip("\ufeff").startswith("<?xml")
        self.here = Slots()
        self.open = list[re.Match]()  # elements within the paragraph

    def paragraphs(self) -> list[Paragraph]:
        position = 0
        while tag := _TAG.search(self.source, position):
            self._text(position, tag.start())
            position = self._tag(tag, (tag["name"] or "").lower()) if tag["name"] else tag.end()
        self._text(position, len(self.source))
        self._end_paragraph(len(self.source))
        return self.here.paragraphs

    def _end_paragraph(self, at: int) -> None:
        if not self.open:
            self.here.gap(at)
        self.here.finish()
        self.open = []
        self.here.groups = []

    def _tag(self, tag: re.Match, name: str) -> int:
        """Read a tag, or an element that stays. Where to read on."""
        here = self.here
        begins = not tag["close"]
        is_empty = self.is_xml and bool(tag["empty"])
        if self.splits is None:
            is_empty = is_empty or name in _VOID
            in_sentence = name in _INLINE or name in _STAYS_IN_SENTENCE or name in _STAYS
        else:
            in_sentence = name not in self.splits
        if not in_sentence and name != "br":
            self._end_paragraph(tag.start())
        if begins and in_sentence and not self.open:
            here.gap(tag.start())
        if (
            begins
            and not is_empty
            and (name in self.stays or _NOT_TRANSLATED.search(tag["attributes"]))
        ):
            end = self._end_of(tag, name)
            is_part = in_sentence and name not in _STAYS
            here.anchor(tag.start(), STAND_IN if is_part else "")
            return end
        if name == "br":
            here.line_break(tag.start())
        elif begins and is_empty:
            here.anchor(tag.start())
        elif begins and in_sentence:
            note = _NOTE.match(self.source, tag.end()) if name == "a" else None
            if note:
                here.anchor(tag.start())
                return note.end()
            self.open.append(tag)
            if name == "a":
                here.groups.append(f"link {tag.start()}")
        elif in_sentence:
            self._close(name)
        return tag.end()

    def _close(self, name: str) -> None:
        for i in reversed(range(len(self.open))):
            if self.open[i]["name"].lower() == name:
                self.here.close(f"link {self.open.pop(i).start()}")
                return

    def _end_of(self, tag: re.Match, name: str) -> int:
        """Where an element ends; right behind its tag if it does not."""
        depth = 1
        same = re.compile(rf"(?i)<(/?){re.escape(name)}\b[^>]*>")
        for other in same.finditer(self.source, tag.end()):
            if other[1]:
                depth -= 1
            elif name not in _IS_TEXT and not other[0].endswith("/>"):
                depth += 1
            if not depth:
                return other.end()
        return tag.end()

    def _text(self, start: int, stop: int) -> None:
        raw = self.source[start:stop]
        names = {tag["name"].lower() for tag in self.open}
        look = "".join(tag[0] for tag in self.open if tag["name"].lower() != "a")
        space = " " if self.here.goes_on() and raw[:1] in _SPACE else ""
        begin = start if space else stop - len(raw.lstrip(_SPACE))
        words = _SPACES.sub(" ", unescape(raw.strip(_SPACE))).replace("\xad", "")
        if words:
            end = start + len(raw.rstrip(_SPACE))
            kind = "apart" if "ruby" in names else "text"
            self.here.add((begin, end), "" if names & {"rt", "rp"} else space + words, look, kind)
            start = end
        if start < stop:
            self.here.space((start, stop), look)
