"""HTML and EPUB: the text between the tags. Tags, scripts, styles, code and what is not to be translated stay."""

import re
from collections.abc import Collection
from html import escape, unescape
from posixpath import dirname, join, normpath
from urllib.parse import unquote
from xml.etree import ElementTree
from zipfile import ZipFile

from documents.document import Document
from documents.inline import STAND_IN, Inline
from documents.markup import in_archive, in_markup
from documents.paragraph import Paragraph

_TAG = re.compile(
    r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<[!?][^>]*>"
    r"|<(?P<close>/?)(?P<name>[A-Za-z][^\s/>]*)(?=[\s/>])"
    r"""(?P<attributes>(?:"[^"]*"|'[^']*'|[^'">])*?)(?P<empty>/?)>""",
    re.DOTALL,
)
_INLINE = set(
    "a abbr acronym b bdi bdo big cite data del dfn em font i img input ins label mark nobr q rb rp rt ruby s small"
    " span strike strong sub sup time tt u wbr".split()
)
VOID = set("area base br col embed hr img input link meta param source track wbr".split())
_STAYS = set("audio iframe object script style svg template textarea video".split())
_STAYS_IN_SENTENCE = set("code kbd math samp tt var".split())
_ALL_STAY = _STAYS | _STAYS_IN_SENTENCE | {"pre"}
_RUBY = set("rb rp rt ruby".split())  # says how a word is read that is translated
_IS_TEXT = set("script style textarea".split())  # what looks like a tag in them is none
_NOT_TRANSLATED = re.compile(r"""(?i)\btranslate\s*=\s*["']?no\b|\bclass\s*=[^>]*\bnotranslate\b""")
# The rest of a link to a note or from it, or of an empty one
_NOTE = re.compile(
    r"(?:\s|<(?!/?[aA]\b)[^<>]*>)*[\[(]?(?:\d{1,3}|(?<=[\[(])[a-z]|[*†‡§¶↩]*|&#\w+;)[\])]?(?:\s|<(?!/[aA]\b)[^<>]*>)*</[aA]\s*>"
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


def _written(_: Paragraph, words: str) -> str:
    return escape(words, quote=False)


class _Reader:
    """Reads the paragraphs of a page, tag by tag."""

    def __init__(self, source: str, splits: set[str] | None = None, stays: set[str] = _ALL_STAY):
        """splits: tags that end a sentence; None: HTML's"""
        self.source = source
        self.splits = splits
        self.stays = stays
        self.is_xml = splits is not None or source.lstrip("\ufeff").startswith("<?xml")
        self.here = Inline(source)
        self.ruby = ""  # the part that is open

    def paragraphs(self) -> list[Paragraph]:
        position = 0
        end = self.source.rfind(">") + 1  # of the last tag
        while tag := _TAG.search(self.source, position, end):
            self._text(position, tag.start())
            position = self._tag(tag, (tag["name"] or "").lower())
        self._text(position, len(self.source))
        self.here.finish()
        return self.here.paragraphs

    def _tag(self, tag: re.Match, name: str) -> int:
        """Read a tag, or an element that stays. Where to read on."""
        here = self.here
        begins = not tag["close"]
        is_empty = not name or (self.is_xml and bool(tag["empty"]))
        if self.splits is None:
            is_empty = is_empty or name in VOID
            in_sentence = name in _INLINE or name in _STAYS_IN_SENTENCE or name in _STAYS
        else:
            in_sentence = name not in self.splits
        is_break = name == "br" and self.splits is None
        if name and not (in_sentence or is_break):
            here.finish()
        stays = name in self.stays
        if begins and not is_empty and (stays or _NOT_TRANSLATED.search(tag["attributes"])):
            end = self._end_of(tag, name)
            is_part = in_sentence and name not in _STAYS
            here.add("anchor", (tag.start(), end), STAND_IN if is_part else "")
            return end
        note = _NOTE.match(self.source, tag.end()) if name == "a" and begins else None
        if is_break:
            space = _SPACES.match(self.source, tag.end())
            here.line_break((tag.start(), space.end() if space else tag.end()))
            return space.end() if space else tag.end()
        if name in _RUBY:
            self.ruby = name if begins else "ruby" * (name != "ruby")
            here.add("left out", tag.span())
        elif is_empty or note:
            end = note.end() if note else tag.end()
            if in_sentence or not name:
                here.add("anchor", (tag.start(), end))
            return end
        elif in_sentence:
            kind = "link" if name == "a" else "look"
            here.add("open" if begins else "close", tag.span(), name, kind)
        return tag.end()

    def _end_of(self, tag: re.Match, name: str) -> int:
        """Where an element ends; right behind its tag if it does not."""
        depth = 1
        same = re.compile(rf"(?i)<(/?){re.escape(name)}(?=[\s/>])[^>]*>")
        for other in same.finditer(self.source, tag.end()):
            if other[1]:
                depth -= 1
            elif name not in _IS_TEXT and not other[0].endswith("/>"):
                depth += 1
            if not depth:
                return other.end()
        return tag.end()

    def _text(self, start: int, stop: int) -> None:
        if self.ruby in ("rt", "rp"):
            self.here.add("left out", (start, stop))
            return
        raw = self.source[start:stop]
        begin = stop - len(raw.lstrip(_SPACE))
        end = max(start + len(raw.rstrip(_SPACE)), begin)
        words = _SPACES.sub(" ", unescape(self.source[begin:end])).replace("\xad", "")
        if start < begin:
            self.here.add("space", (start, begin))
        if begin < end:
            self.here.add("text", (begin, end), words)
        if end < stop:
            self.here.add("space", (end, stop))
