"""HTML and EPUB: the text between the tags. Tags, scripts, styles, code and what is not to be translated stay."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from html import escape, unescape
from posixpath import dirname, join, normpath
from urllib.parse import unquote
from xml.etree import ElementTree

from common.errors import InputError
from documents.check import STAND_IN, Item
from documents.document import Document, as_text
from documents.encodings import decoded
from documents.inline import Event, Inline
from documents.markup import Markup, in_archive, in_markup
from documents.paragraph import Paragraph
from documents.sentences import ADDRESS
from documents.tags import Token, attributes_of, ends_of, html_tokens

_BLOCKS = set(  # all others are within a sentence
    "address area article aside audio base blockquote body caption center col colgroup dd details dialog dir div dl dt fieldset"
    " figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html legend li link main map menu"
    " meta nav noframes noscript ol optgroup option p param pre search section select source style summary table tbody td"
    " template tfoot th thead title tr track ul video".split()
)
_PHRASES = set(  # which may be plain
    "abbr acronym b bdi bdo big cite data del dfn em font i ins label mark nobr q s small span strike strong sub sup time u"
    "".split()
)
_STAYS = set("audio iframe object script style svg template textarea video".split())
_STAYS_IN_SENTENCE = set("code kbd math mjx-container samp tt var".split())
_ALL_STAY = _STAYS | _STAYS_IN_SENTENCE | {"pre"}
_RUBY = set("rb rp rt ruby".split())  # says how a word is read that is translated
# Classes and roles of what stays
_FORMULA = set("katex katex-display mathjax mathjax_display mathjax_svg mathjax_chtml".split())
_PAGE_NUMBER = set("pagenum pageno page-number pagenumber pagebreak doc-pagebreak".split())
_NOTE = re.compile(r"[\[(]\s*(?:\d{1,3}|[a-z]|[*†‡§¶↩↑]+)\s*[\])]|\d{1,3}|[*†‡§¶↩↑^]*")
_SHORT = 24  # tokens: longer elements are no notes
_SPACE = " \t\r\n\f"
_SPACES = re.compile(f"[{_SPACE}]+")
_NCX = "application/x-dtbncx+xml"
_CHAPTERS = {"application/xhtml+xml", "text/html", _NCX}
_ENCRYPTED = "META-INF/encryption.xml"
_FONT = b"http://www.idpf.org/2008/embedding", b"http://ns.adobe.com/pdf/enc#RC"  # only fonts

Splits = Callable[
    [str, Sequence[Token], Mapping[int, int]], Collection[int]
]  # which tags end a sentence


def _named(names: Collection[str], _: str, tokens: Sequence[Token], __: object) -> set[int]:
    return {number for number, token in enumerate(tokens) if token.name in names}


def _outlined(
    splitting: Collection[str],
    inline: Collection[str],
    source: str,
    tokens: Sequence[Token],
    ends: Mapping[int, int],
) -> set[int]:
    """The tags of elements whose parents have no words of their own, as DeepL's outline detection has them."""
    parents = dict[int, int]()
    with_words = set[int]()
    opened = [-1]
    for number, token in enumerate(tokens):
        if token.kind == "text" and source[token.start : token.stop].strip():
            with_words.add(opened[-1])
        elif number in ends:
            parents[number] = opened[-1]
            opened.append(number)
        elif token.kind == "close" and ends.get(opened[-1]) == number:
            opened.pop()
    found = {
        number
        for number, parent in parents.items()
        if tokens[number].name not in inline and parent not in with_words
    }
    return found | {ends[number] for number in found} | _named(splitting, source, tokens, ends)


def parse(data: bytes, stays: Collection[str] = ()) -> Document:
    """stays: names of elements that are not translated, besides HTML's"""
    is_xml = as_text(data).lstrip("\ufeff").startswith("<?xml")
    return _page(data, is_xml, partial(_named, _BLOCKS), {*_ALL_STAY, *map(str.lower, stays)})


def parse_xml(
    data: bytes,
    splits: Collection[str] = (),
    inline: Collection[str] = (),
    stays: Collection[str] = (),
    is_outlined: bool = True,
) -> Document:
    """Text whose tags have no meaning of HTML's. splits: names of tags that end a sentence; inline: of those that do not;
    stays: of elements that are not translated. is_outlined: besides, an element is a text of its own if its parent has no
    words beside it"""
    named, within, kept = ({name.lower() for name in each} for each in (splits, inline, stays))
    ends = partial(_outlined, named, within) if is_outlined else partial(_named, named)
    return _page(data, True, ends, kept, is_html=False)


def _page(
    data: bytes,
    is_xml: bool,
    splits: Splits,
    stays: Collection[str] = frozenset(_ALL_STAY),
    is_html: bool = True,
) -> Document:
    def find(source: str) -> Iterator[Paragraph]:
        yield from _Reader(source, is_xml, splits, stays, is_html).paragraphs()

    return in_markup(data, find, Markup(_written, partial(_items, is_xml)))


def _written(_: Paragraph, words: str) -> str:
    return escape(words, quote=False)


def _items(is_xml: bool, raw: str) -> Iterator[Item]:
    is_reading = False
    for token in html_tokens(raw, is_xml):
        part = raw[token.start : token.stop]
        if token.name in _RUBY:
            is_reading = token.kind == "open" and token.name in ("rt", "rp")
        elif token.kind == "text" and not is_reading:
            yield Item("text", token.start, token.stop, _shown(part))
        elif token.kind in ("open", "close"):
            role = "phrase" if token.name in _PHRASES else "element"
            yield Item(token.kind, token.start, token.stop, part, token.name, role)
        elif token.kind != "text":
            yield Item("kept", token.start, token.stop, part)


def _shown(raw: str) -> str:
    return _SPACES.sub(" ", unescape(raw)).replace("\xad", "")


def parse_epub(data: bytes) -> Document:
    return in_archive(data, _chapters, _chapter)


def _chapters(files: Mapping[str, bytes]) -> set[str]:
    """The texts and the table of contents, which the package lists."""
    encrypted = files.get(_ENCRYPTED, b"")
    if encrypted.count(b"<EncryptionMethod") > sum(map(encrypted.count, _FONT)):
        raise InputError("this book is encrypted (DRM)")
    names = set[str]()
    for package in (name for name in files if name.endswith(".opf")):
        for item in ElementTree.fromstring(files[package]).iter():
            if item.get("media-type") in _CHAPTERS:
                path = join(dirname(package), unquote(item.get("href", "")))
                names.add(normpath(path))
    return names


def _chapter(data: bytes, name: str) -> Document:
    def parse(data: bytes) -> Document:
        is_contents = b"<ncx" in data[:2000] or name.endswith(".ncx")
        if is_contents:
            return _page(data, True, lambda _, tokens, __: range(len(tokens)), {"docauthor"})
        return _page(data, True, partial(_named, _BLOCKS))

    return decoded(parse, data, is_markup=True)


class _Reader:
    """Reads the paragraphs of a page, tag by tag."""

    def __init__(
        self, source: str, is_xml: bool, splits: Splits, stays: Collection[str], is_html: bool
    ):
        """stays: elements that are not translated; is_html: the others have HTML's meaning, too"""
        self.source = source
        self.is_html = is_html
        self.stays = stays
        self.tokens = [*html_tokens(source, is_xml)]
        self.ends = ends_of(self.tokens)
        self.blocks = splits(source, self.tokens, self.ends)
        self.here = Inline(source)

    def paragraphs(self) -> list[Paragraph]:
        after = 0
        for number, token in enumerate(self.tokens):
            if number < after:
                continue
            if token.kind == "text":
                self._text(token)
            else:
                after = self._tag(number, token)
        self.here.finish()
        return self.here.paragraphs

    def _tag(self, number: int, token: Token) -> int:
        """Read a tag, or an element as a whole. The token behind it."""
        here, name = self.here, token.name
        is_block = bool(name) and number in self.blocks
        if is_block:
            here.finish()
        last = self.ends.get(number, number)
        whole = Event("anchor", token.start, self.tokens[last].stop)
        if last > number:
            shown = self._stays(number, token, is_block)
            if shown is not None:
                here.add(whole._replace(words=shown))
                return last + 1
            if name == "ruby" and self.is_html:
                here.add(whole._replace(kind="text", words=self._without_reading(number, last)))
                return last + 1
        place = Event("anchor", token.start, token.stop)
        if name == "br" and self.is_html:
            here.add(place._replace(kind="break", words=" "))
        elif is_block:
            return number + 1
        elif token.kind in ("empty", "other"):
            here.add(place)
        else:
            mark = "look" if name in _PHRASES else "element"
            if name == "a":
                mark = "link"
            here.add(place._replace(kind=token.kind, name=name, mark=mark))
        return number + 1

    def _without_reading(self, first: int, last: int) -> str:
        """The words of a ruby element."""
        parts = list[str]()
        after = first
        for number in range(first, last):
            token = self.tokens[number]
            if token.name in ("rt", "rp"):
                after = self.ends.get(number, number) + 1
            if token.kind == "text" and number >= after:
                parts.append(_shown(self.source[token.start : token.stop]))
        return "".join(parts)

    def _stays(self, number: int, token: Token, is_block: bool) -> str | None:
        """The words in the text for an element that is not translated; None: it is translated."""
        raw = self.source[token.start : token.stop]
        attributes = attributes_of(raw) if "=" in raw else {}
        classes = {*attributes.get("class", "").lower().split()}
        is_off = attributes.get("translate", "").lower() == "no" or "notranslate" in classes
        if is_off or token.name in self.stays:
            return "" if is_block or token.name in _STAYS else STAND_IN
        if not self.is_html:
            return None
        if classes & _FORMULA:
            return STAND_IN
        roles = {attributes.get("role", ""), attributes.get("epub:type", "")}
        if (classes | roles) & _PAGE_NUMBER:
            return ""
        if token.name != "a" or self.ends[number] - number > _SHORT:
            return None
        inside = self.tokens[number + 1 : self.ends[number]]
        texts = (self.source[each.start : each.stop] for each in inside if each.kind == "text")
        words = unescape("".join(texts)).strip()
        if ADDRESS.fullmatch(words):
            return STAND_IN
        return "" if _NOTE.fullmatch(words) else None

    def _text(self, token: Token) -> None:
        raw = self.source[token.start : token.stop]
        begin = token.stop - len(raw.lstrip(_SPACE))
        end = max(token.start + len(raw.rstrip(_SPACE)), begin)
        cuts = (token.start, begin), (begin, end), (end, token.stop)
        for start, stop in cuts:
            if start < stop:
                self.here.add(Event("text", start, stop, _shown(self.source[start:stop])))
