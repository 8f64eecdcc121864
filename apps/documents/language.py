"""The language that documents name, which becomes that of their translation."""

import re
from dataclasses import dataclass

from apps.documents.tags import attributes_of, with_values
from speculative.text.languages import bcp47, direction, short

_HEAD = re.compile(  # of Markdown, WebVTT and SubStation Alpha
    rb"(?sm)\A(?:\xef\xbb\xbf)?(?:(---|\+\+\+)\s.*?^(?:\1|\.\.\.)|WEBVTT.*?\n\r?\n|\[Script Info\].*?^\[)"
)
_FIELD = re.compile(rb"""(?im)^(lang(?:uage)?[ \t]*[:=][ \t]*["']?)([\w-]+)""")


@dataclass(frozen=True)
class LanguageChange:
    """The language of a document and, as a BCP 47 tag, of its translation."""

    source: str | None  # None: any, since the model translates from whatever it reads
    target: str

    def is_source(self, tag: str) -> bool:
        """Whether a tag is the source's, whatever its script and country."""
        names = {short(each).partition("-")[0] for each in (tag, self.source or tag)}
        return len(names) == 1

    def new(self, tag: str) -> str:
        """The target's tag in place of another; the same one if it is the target's, maybe with a country."""
        return tag if f"{bcp47(tag)}-".startswith(f"{self.target}-") else self.target

    def in_head(self, data: bytes) -> bytes:
        """A file of text, whose front matter or header names the target's language if it names one."""
        head = _HEAD.match(data)
        if not head:
            return data
        named = _FIELD.sub(lambda field: field[1] + self.new(field[2].decode()).encode(), head[0])
        return named + data[head.end() :]

    def in_tag(self, raw: str, added: str = "") -> str:
        """A tag of HTML, with the target's language and direction if it has the source's. added: for the root, the attribute
        that names its language if none does"""
        had = attributes_of(raw)
        tags = {name: tag for name, tag in had.items() if name in ("lang", "xml:lang")}
        if added:
            had = {"dir": direction(self.source)} | had
            tags = tags or {added: ""}
        elif not all(map(self.is_source, tags.values())):
            return raw
        values = {name: self.new(tag) for name, tag in tags.items()}
        old = had.get("dir", "").lower()
        new = direction(self.target)
        is_own = added != "" or old == direction(self.source) or self.source is None
        if is_own and {old, new} == {"ltr", "rtl"}:
            values["dir"] = new
        return with_values(raw, values)
