"""Word's .docx: the paragraphs of text, tables, headers, footers and notes. All else stays as it is."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from html import unescape
from itertools import accumulate, pairwise
from xml.sax.saxutils import escape

from documents.check import STAND_IN, Item
from documents.document import Document, Span, as_text
from documents.inline import Inline
from documents.markup import Markup, in_archive, in_markup
from documents.paragraph import Paragraph, Run
from documents.tags import Token, ends_of, html_tokens, xml_tokens

_PARTS = re.compile(r".*\.(?:main|header|footer|footnotes|endnotes)\+xml")  # content types
_UNSEEN = re.compile(  # in a look
    r"<(?:[\w.-]+:)?(?:lang|noProof)\b[^>]*>|<(?:[\w.-]+:)?rPrChange\b.*", re.DOTALL
)
_WRAPPERS = set("hyperlink ins moveTo smartTag customXml sdt sdtContent dir bdo".split())
_KINDS = {"hyperlink": "link", "ins": "change", "moveTo": "change"}
_STAYS = {"del": "", "moveFrom": "", "oMath": STAND_IN, "oMathPara": STAND_IN}
_RANGE = re.compile(r"((?:comment|bookmark)\w*?)(Start|End)")
_PROPERTIES = re.compile(r"(?:sdt|smartTag|customXml)\w*Pr")  # of the element that they are in
_PROSE = re.compile(r"\s*(?:HYPERLINK|TOC|FORMTEXT)\b")  # fields whose results are translated
_CODE = re.compile(  # styles
    r"(?i)(?:source|html)?[ -]?code(?:char|block)?|verbatim(?:char)?|(?:html)?preformatted(?:text)?"
)


def parse(data: bytes) -> Document:
    return in_archive(data, _parts, _part, _untranslated)


def _parts(files: Mapping[str, bytes]) -> set[str]:
    types = [token.attributes for token in xml_tokens(as_text(files["[Content_Types].xml"]))]
    kinds = {each.get("PartName", "")[1:]: each.get("ContentType", "") for each in types}
    names = {name for name, kind in kinds.items() if _PARTS.fullmatch(kind)}
    return names if any(kinds[name].endswith("main+xml") for name in names) else set()


def _part(xml: bytes, _: str) -> Document:
    reader = _Reader(as_text(xml))
    markup = Markup(partial(_written, reader.prefix), partial(_items, reader.prefix.lower()))
    return in_markup(xml, lambda _: reader.paragraphs(), markup)


def _written(prefix: str, _: Paragraph, words: str) -> str:
    return f'<{prefix}t xml:space="preserve">{escape(words)}</{prefix}t>'


def _items(prefix: str, raw: str) -> Iterator[Item]:
    """Runs may be split and joined; their properties come first in them."""
    tokens = [*html_tokens(raw, is_xml=True)]
    ends = ends_of(tokens)
    last = ""
    after = 0
    runs = [token.kind for token in tokens if token.name == f"{prefix}r"]
    in_run = runs[:1] != ["open"]  # from before
    for number, token in enumerate(tokens):
        if number < after:
            continue
        name = token.name.removeprefix(prefix)
        part = raw[token.start : token.stop]
        role = "run" if name in ("r", "t") else "element"
        if (name == "rpr" and last == "<r") or name == "ruby":
            after = ends.get(number, number) + 1
        elif name == "t" and not in_run:
            yield Item("kept", token.start, token.stop, "text outside of a run")
        elif token.kind in ("open", "close"):
            in_run = token.kind == "open" if name == "r" else in_run
            yield Item(token.kind, token.start, token.stop, part, token.name, role)
        elif token.kind == "empty" and role == "element":
            yield Item("kept", token.start, token.stop, part)
        elif token.kind == "text" and last == "<t":
            yield Item("text", token.start, token.stop, unescape(part))
        last = f"<{name}" if token.kind == "open" else name


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
    """Reads the paragraphs of a part, token by token. The names of Word's own namespace, which is the root's, are without
    it, and those of attributes without any."""

    def __init__(self, source: str):
        self.source = source
        tokens = [*xml_tokens(source)]
        root = next(token for token in tokens if token.kind in ("open", "empty"))
        self.prefix = "".join(re.findall(r"\A<([\w.-]+:)", source[root.start : root.stop]))
        namespace = f"{root.name.rpartition(' ')[0]} "
        self.tokens = [token._replace(name=token.name.removeprefix(namespace)) for token in tokens]
        self.ends = ends_of(self.tokens)
        self.counts = {name: self._counts(name) for name in ("p", "r")}
        self.open = list[Inline | None]()  # None: in an element with paragraphs of its own
        self.holes = list[int]()  # where such elements end
        self.fields = list[_Field]()

    def _counts(self, name: str) -> list[int]:
        """The number of elements of this name that begin before each token."""
        is_one = (token.name == name and token.kind == "open" for token in self.tokens)
        return [*accumulate(is_one, initial=0)]

    def _has(self, name: str, number: int) -> bool:
        """Whether an element has another one in it."""
        counts = self.counts[name]
        return counts[self._end(number)] > counts[number + 1]

    def _end(self, number: int) -> int:
        """The last token of an element."""
        return self.ends.get(number, number)

    def _next(self, number: int, name: str) -> int | None:
        """The element of this name that follows a token at once."""
        number += 1
        while self.tokens[number].kind in ("text", "other"):
            number += 1
        token = self.tokens[number]
        return number if token.name == name and token.kind in ("open", "empty") else None

    def _span(self, first: int, last: int) -> Span:
        return self.tokens[first].start, self.tokens[last].stop

    def _is_code(self, number: int | None, name: str) -> bool:
        """Whether some properties name a style of code. name: of the style's element"""
        if number is None:
            return False
        inside = self.tokens[number : self._end(number)]
        styles = [each.attributes for each in inside if each.name == name]
        return any(_CODE.fullmatch(value) for each in styles for value in each.values())

    def paragraphs(self) -> Iterator[Paragraph]:
        number = 0
        while number < len(self.tokens):
            token = self.tokens[number]
            if self.holes[-1:] == [number]:
                self.holes.pop()
                self.open.pop()
                number += 1
            elif token.name == "p" and token.kind == "open":
                number = self._begin(number)
            elif token.name == "p" and token.kind == "close":
                here = self.open.pop()
                assert here
                here.finish()
                yield from here.paragraphs
                number += 1
            elif self.open and self.open[-1]:
                number = self._read(self.open[-1], number, token)
            else:
                number += 1

    def _begin(self, number: int) -> int:
        """Begin a paragraph, unless it is code. The token behind its properties."""
        properties = self._next(number, "pPr")
        if self._is_code(properties, "pStyle"):
            return self._end(number) + 1
        last = number if properties is None else self._end(properties)
        self.open.append(Inline(self.source))
        if len(self.open) == 1:
            for field in self.fields:  # the rest of those that began in another paragraph
                field.start = self.tokens[last].stop
                field.run = None
        return last + 1

    def _read(self, here: Inline, number: int, token: Token) -> int:
        """Read a token or an element in a paragraph. The token behind it."""
        last = self._end(number)
        span = self._span(number, last)
        if token.name == "r" and token.kind != "empty":
            return self._read_run(here, number, token)
        if token.name in ("fldChar", "fldSimple", "instrText"):
            return self._read_field(here, number, token)
        if not all(field.is_prose() for field in self.fields):
            for field in self.fields:
                field.has_text = field.has_text or token.name == "t"
            return number + 1
        local = token.name.rpartition(" ")[2]
        edge = _RANGE.fullmatch(token.name)
        if edge and token.kind != "close":
            kind = {"Start": "open", "End": "close"}[edge[2]]
            number_of_range = attribute(token, "id")
            here.add(kind, span, f"{edge[1]} {number_of_range}", "range")
        elif token.name in ("t", "ruby"):
            here.add("text", span, self._text(number, last))
        elif token.name == "noBreakHyphen":
            here.add("break", span, "-")
        elif token.name in ("br", "cr", "tab"):
            here.line_break(span)
        elif local in _STAYS and token.kind == "open":
            here.add("anchor", span, _STAYS[local])
        elif token.kind == "open":
            return self._read_element(here, number, token)
        elif token.kind == "close":
            here.add("close", span, token.name)
        elif token.kind != "text" and token.name != "softHyphen":
            here.add("anchor", span)
        return last + 1

    def _text(self, first: int, last: int) -> str:
        """The text of an element without the reading of its signs."""
        tokens = self.tokens[first : last + 1]
        bases = [i for i, token in enumerate(tokens) if token.name == "rubyBase"]
        texts = list[str]()
        for before, token in pairwise(tokens[bases[0] if bases else 0 :]):
            if token.kind == "text" and (before.name == "t" or before.kind == "other"):
                texts.append(token.name)
        return "".join(texts)

    def _read_element(self, here: Inline, number: int, token: Token) -> int:
        last = self._end(number)
        is_around = token.name in _WRAPPERS
        if not is_around and self._has("p", number):
            here.add("hole", self._span(number, last))
            self.holes.append(last)
            self.open.append(None)
            return number + 1
        if not is_around and not self._has("r", number):
            here.add("anchor", self._span(number, last))
            return last + 1
        first = number
        while _PROPERTIES.fullmatch(self.tokens[number + 1].name):
            number = self._end(number + 1)
        kind = _KINDS.get(token.name, "element")
        here.add("open", self._span(first, number), token.name, kind)
        return number + 1

    def _read_run(self, here: Inline, number: int, token: Token) -> int:
        before = here.run
        is_shown = all(field.is_prose() for field in self.fields)
        if token.kind == "close":
            here.run = None
            if is_shown:
                here.add_from(before, "left out", (token.start, token.stop))
            return number + 1
        properties = self._next(number, "rPr")
        if self._is_code(properties, "rStyle") and not self.fields:
            last = self._end(number)
            following = self._next(last, "r")
            while following and self._is_code(self._next(following, "rPr"), "rStyle"):
                last = self._end(following)
                following = self._next(last, "r")
            here.add("anchor", self._span(number, last), STAND_IN)
            return last + 1
        last = number if properties is None else self._end(properties)
        look = ""
        if properties is not None and properties != last:
            look = self.source[self.tokens[properties].stop : self.tokens[last].start]
        start, stop = self._span(number, last)
        here.run = Run(self.source[start:stop], f"</{self.prefix}r>", _UNSEEN.sub("", look))
        if is_shown:
            here.add_from(before, "left out", (start, stop))
        return last + 1

    def _read_field(self, here: Inline, number: int, token: Token) -> int:
        """Read a field's begin, its code, where its result begins, or its end."""
        kind = attribute(token, "fldCharType")
        last = self._end(number)
        if token.name == "fldSimple":
            kind = {"open": "begin", "close": "end"}.get(token.kind, "")
            last = number
        stop = self.tokens[last].stop
        if kind == "begin":
            field = _Field(token.start, here.run, attribute(token, "instr"))
            field.has_result = token.name == "fldSimple"
            self.fields.append(field)
        elif not self.fields:
            return last + 1
        field = self.fields[-1]
        if token.name == "instrText":
            field.code += self.source_text(number, last)
            return last + 1
        field.has_result = field.has_result or kind == "separate"
        if kind == "end":
            self.fields.pop()
        if not all(each.is_prose() for each in self.fields):
            return last + 1
        if field.is_prose() and kind == "end":
            here.add("close", (token.start, stop), field.name)
        elif field.is_prose():
            mark = "link" if field.code.strip().startswith("HYPERLINK") else "range"
            here.add_from(field.run, "open", (field.start, stop), field.name, mark)
        elif kind == "end":
            shown = STAND_IN if field.has_text else ""
            here.add_from(field.run, "anchor", (field.start, stop), shown)
        return last + 1

    def source_text(self, first: int, last: int) -> str:
        """The characters in an element."""
        texts = (token.name for token in self.tokens[first : last + 1] if token.kind == "text")
        return "".join(texts)


def attribute(token: Token, name: str) -> str:
    """An attribute of this name, in whatever namespace; empty if there is none."""
    return next((v for key, v in token.attributes.items() if key.split(" ")[-1] == name), "")


def _untranslated(files: Mapping[str, bytes]) -> str:
    """A note of what stays in a file beside its text."""
    counts = Counter[str]()
    for name, content in files.items():
        if name.startswith("word/comments.") and name.endswith(".xml"):
            counts["comment"] += content.count(b":comment ")
        counts["chart"] += bool(re.fullmatch(r"word/charts/chart\d*\.xml", name))
        counts["diagram"] += bool(re.fullmatch(r"word/diagrams/data\d*\.xml", name))
        if name == "word/document.xml":
            counts["alternative text"] += len(re.findall(rb' descr="[^"]', content))
    shown = [f"{n} {what}{'s' if n > 1 else ''}" for what, n in counts.items() if n]
    return f"not translated: {', '.join(shown)}" if shown else ""
