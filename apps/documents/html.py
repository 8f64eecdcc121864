"""HTML: the text between the tags. Tags, scripts, styles, code and what is not to be translated stay."""

import re
from bisect import bisect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any

from apps.documents.document import Change, Document, Edit, Passage, as_text, edited
from apps.documents.inline import STAND_IN, Event, paragraphs_of
from apps.documents.language import LanguageChange
from apps.documents.markup import Markup, in_markup
from apps.documents.paragraph import Paragraph, is_glued
from apps.documents.tags import (
    MARKS,
    attributes_in,
    attributes_of,
    ends_of,
    events_of,
    html_tokens,
    with_values,
    words_of,
)
from speculative.text.languages import direction

_BLOCKS = set(  # all others are within a sentence
    "address area article aside audio base blockquote body button caption center col colgroup dd details dialog dir div dl dt"
    " fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html input label legend li"
    " link main map menu meta nav noframes noscript ol optgroup option p param pre search section select source style summary"
    " table tbody td template textarea tfoot th thead title tr track ul video".split()
)
_CHECKED = MARKS | {"ruby": "run", "rb": "run"}  # which the check alone sees inside of one text
# What stays, with what it shows in the text: elements, and classes and roles
_STAYS = {
    **dict.fromkeys("audio iframe object pre script style svg template textarea video".split(), ""),
    **dict.fromkeys("code kbd math mjx-container samp tt var".split(), STAND_IN),
}
_STAYING_CLASSES = {
    "": re.compile(r"(?i)(?:[\w-]+-)?(?:pagenum|pageno|page-?number|pagebreak|pagelist)"),
    STAND_IN: re.compile(r"(?i)katex(?:-\w+)?|mathjax(?:_\w+)?|notranslate"),
}
_READING = re.compile(r"(?i)<(rt|rp)\b[^>]*>[^<]*</\1\s*>|<[^>]*>")
_NOTE = re.compile(r"[\[(]\s*(?:\d{1,3}|[a-z])\s*[\])]|\d{1,3}|\W*")
_SHORT = 24  # tokens: longer elements are no notes
_SPACE = " \t\r\n\f"
_SPACES = re.compile(f"[{_SPACE}]+")
# The words of a text, and the space at its ends; a CDATA section
_PARTS = re.compile(rf"(?s:<!\[CDATA\[.*)|[{_SPACE}]+|[^{_SPACE}]+(?:[{_SPACE}]++[^{_SPACE}]++)*+")
_READ = {"alt", "title", "aria-label", "placeholder", "label"}
# Tags of which value or content is read, too
_WORDED = re.compile(
    r"""(?i)<input\b[^>]*\stype\s*=\s*["']?(?:submit|reset|button)\b"""
    r"""|<meta\b[^>]*\s(?:name|property)\s*=\s*["']?(?:(?:og|twitter):)?(?:title|description)\b"""
)
_SINGLE = {"title", "nav", "option"}  # where no source stands beside its translation
_LABEL = re.compile(r"(?i)\s(?:(?:xml:)?lang|dir)\s*=")


def parse(data: bytes, **options: Any) -> Document:
    return _page(data, as_text(data).lstrip("\ufeff").startswith("<?xml"), **options)


def _page(
    data: bytes,
    is_xml: bool,
    stays: Collection[str] = (),
    splits: Collection[str] = _BLOCKS,
    inline: Collection[str] | None = None,
    is_html: bool = True,
    bilingual: bool = False,
) -> Document:
    """stays: elements that are not translated, besides HTML's; splits: tags that end a sentence. inline: elements that do not,
    where others do if their parents have no words beside them; None: no others do. is_html: all others are HTML's"""
    staying = {name.lower(): STAND_IN for name in stays} | (_STAYS if is_html else {})
    read = partial(_PageReader, is_xml=is_xml, stays=staying, is_html=is_html)
    reader = read(as_text(data))
    outlined = set() if inline is None else reader.outlined(inline)
    find = partial(reader.paragraphs, reader.named(splits) | outlined)
    parts = partial(events_of, is_xml, _CHECKED, ("rt", "rp"))

    def relabel(source: str, change: LanguageChange) -> str:
        return read(source).in_language(change)

    def below(raw: str, change: Change, _: Paragraph) -> str:
        if change is None:
            return f"<br/>{raw}"
        span = _in_tag("<span>", change, reader.added["html"])
        return f"<br/>{span}{relabel(raw, change)}</span>"

    markup = Markup(partial(escape, quote=False), parts, relabel=relabel)
    if bilingual and is_html:
        markup = replace(markup, below=below)
    return in_markup(data, find, markup, hidden=reader.attributes)


parse_xhtml = partial(_page, is_xml=True)
parse_xml = partial(_page, is_xml=True, splits=(), inline=(), is_html=False)


def _shown(raw: str) -> str:
    return _SPACES.sub(" ", words_of(raw)).replace("\xad", "")


class _PageReader:
    """Reads the paragraphs of a page. stays: elements that stay, with what they show; is_html: others are HTML's"""

    def __init__(self, source: str, is_xml: bool, stays: Mapping[str, str], is_html: bool):
        self.source = source
        self.is_html = is_html
        # Names of elements, and what should name their language
        self.added = {"html": "xml:lang" if is_xml else "lang"}
        self.stays = stays
        self.tokens = [*html_tokens(source, is_xml)]
        for number, token in enumerate(self.tokens):
            local = token.name.rpartition(":")[2]
            if is_html and local != token.name and (is_xml or local == "math"):
                self.tokens[number] = token._replace(name=local)
        self.ends = ends_of(self.tokens)
        self.texts = [i for i, token in enumerate(self.tokens) if token.kind == "text"]
        self.firsts = {last: first for first, last in self.ends.items()}
        self.wholes = dict[int, Event]()  # by the number of their first tag
        self.attributes = list[Passage]()  # that are read
        self.labels = list[Event]()  # tags that name a language or its direction, or should
        self._find_wholes()

    def named(self, names: Collection[str]) -> set[int]:
        wanted = {name.lower() for name in names}
        return {number for number, token in enumerate(self.tokens) if token.name in wanted}

    def outlined(self, inline: Collection[str]) -> set[int]:
        """The tags of elements whose parents have no words of their own, as DeepL's outline detection has them."""
        parents = dict[int, int]()
        with_words = set[int]()
        opened = [-1]
        for number, token in enumerate(self.tokens):
            if token.kind == "text" and self.source[token.start : token.stop].strip():
                with_words.add(opened[-1])
            elif number in self.ends:
                parents[number] = opened[-1]
                opened.append(number)
            elif self.ends.get(opened[-1]) == number:
                opened.pop()
        alone = {number for number, parent in parents.items() if parent not in with_words}
        alone -= self.named(inline)
        return alone | {self.ends[number] for number in alone}

    def paragraphs(self, blocks: Collection[int], source: str) -> Iterator[Paragraph]:
        """blocks: the tags that end a sentence. source: with other attributes in the same places"""
        events = list[Event]()
        after = 0
        single = -1  # the last tag of such an element
        for number, token in enumerate(self.tokens):
            if number < after:
                continue
            is_block = number in blocks
            last = self.ends.get(number, number)
            touches = self._touches(number) if self.is_html else ""
            if is_block or touches == "item":
                for each in paragraphs_of(source, events):
                    yield replace(each, is_single=number <= single)
                events = []
            elif touches:
                events.append(Event("text", token.start, token.start, " "))
            if token.name in _SINGLE:
                single = max(single, last)
            whole = self.wholes.get(number)
            if whole:
                events.append(whole._replace(words="") if is_block else whole)
                after = last + 1
            elif token.kind == "text":
                for part in _PARTS.finditer(source, token.start, token.stop):
                    if events and events[-1].kind == "break" and part[0].isspace():
                        events[-1] = events[-1]._replace(stop=part.end())
                        continue
                    events.append(Event("text", *part.span(), _shown(part[0])))
            elif token.name == "br" and self.is_html:
                events.append(token._replace(kind="break", words=" "))
            elif not is_block:
                events.append(token._replace(mark=MARKS.get(token.name, "element")))
        yield from paragraphs_of(source, events)

    def _find_wholes(self) -> None:
        """Find the elements that are not translated, or whose tags are not kept, and the attributes of all others."""
        after = 0
        for number, token in enumerate(self.tokens):
            last = self.ends.get(number, number)
            if number < after or token.kind not in ("open", "anchor"):
                continue
            is_closed = last > number or (token.kind == "anchor" and token.name != "")
            whole = self._as_a_whole(number, last) if is_closed else None
            if whole:
                self.wholes[number] = whole
                after = last + 1
            is_named = token.name == "link" or (whole and whole.words)  # whose title is no prose
            if self.is_html and not is_named:
                names = {*_READ}
                if _WORDED.match(self.source, token.start):
                    names |= {"value", "content"}
                self.attributes += attributes_in(self.source, token[1:3], names)
            is_label = token.name == "html" or _LABEL.search(self.source, token.start, token.stop)
            if is_label and not whole:
                self.labels.append(token)

    def in_language(self, change: LanguageChange) -> str:
        """The page, whose elements name another language. Those that stay as they are keep theirs."""
        edits = list[Edit]()
        for token in self.labels:
            raw = self.source[token.start : token.stop]
            new = _in_tag(raw, change, self.added.get(token.name, ""))
            edits.append(((token.start, token.stop), new))
        return edited(self.source, edits)

    def _as_a_whole(self, first: int, last: int) -> Event | None:
        token = self.tokens[first]
        place = Event("anchor", token.start, self.tokens[last].stop)
        shown = self._stays(first, last)
        if shown is not None:
            return place._replace(words=shown)
        if token.name == "ruby" and self.is_html:
            words = _READING.sub("", self.source[place.start : place.stop])
            return place._replace(kind="text", words=_shown(words))
        return None

    def _stays(self, first: int, last: int) -> str | None:
        """The words in the text for an element that is not translated; None: it is translated."""
        token = self.tokens[first]
        attributes = attributes_of(self._raw(first))
        if token.name in self.stays:
            return self.stays[token.name]
        if attributes.get("translate", "").lower() == "no":
            return STAND_IN
        if "page-list" in attributes.get("epub:type", ""):  # not a class, which may be others
            return ""
        roles = " ".join(attributes.get(name, "") for name in ("class", "role", "epub:type"))
        for shown, pattern in _STAYING_CLASSES.items():
            if any(map(pattern.fullmatch, roles.split())):
                return shown
        if not self.is_html or token.name != "a" or last - first > _SHORT:
            return None
        texts = [each for each in self.tokens[first:last] if each.kind == "text"]
        words = "".join(words_of(self.source[each.start : each.stop]) for each in texts).strip()
        return "" if _NOTE.fullmatch(words) else None

    def _touches(self, second: int) -> str:
        """Whether an element's words touch those of the one before and are no part of the same word: "item" if they are a text
        of their own, "word" if they may be in the same sentence, else nothing."""
        first = self.firsts.get(second - 1, second)
        place = bisect(self.texts, second)
        numbers = [first, *self.texts[max(place - 1, 0) : place + 1], self.ends.get(second, -1)]
        if self.wholes.keys() & {first, second} or len(numbers) < 4 or numbers != sorted(numbers):
            return ""
        one, before, behind, other = map(self._raw, [*numbers[:3], second])
        names = [self.tokens[number].name for number in (first, second)]
        looks = [MARKS.get(name) for name in names]
        if one != other and "look" not in looks:
            return "item"
        if len(before) == 1 or not (is_glued(before[-1], behind[0]) and behind[0].isalnum()):
            return ""
        if "link" in looks:  # which ends no part of a word
            return "item"
        if one != other and not behind[0].isupper() and names != ["span", "span"]:
            return ""
        return "word" if behind[0].islower() else "item"

    def _raw(self, number: int) -> str:
        token = self.tokens[number]
        return self.source[token.start : token.stop]


def _in_tag(raw: str, change: LanguageChange, added: str = "") -> str:
    """A tag of HTML, with the target's language and direction if it has the source's. added: for the root, the attribute
    that names its language if none does"""
    had = attributes_of(raw)
    tags = {name: tag for name, tag in had.items() if name in ("lang", "xml:lang")}
    if added:
        had = {"dir": direction(change.source)} | had
        tags = tags or {added: ""}
    elif not all(map(change.is_source, tags.values())):
        return raw
    values = {name: change.new(tag) for name, tag in tags.items()}
    old = had.get("dir", "").lower()
    new = direction(change.target)
    is_own = added != "" or old == direction(change.source) or change.source is None
    if is_own and {old, new} == {"ltr", "rtl"}:
        values["dir"] = new
    return with_values(raw, values)
