"""The language that documents name, which becomes that of their translation."""

import re
from dataclasses import dataclass
from functools import partial

from speculative.text.languages import bcp47, short

_HEAD = re.compile(  # of Markdown, WebVTT and SubStation Alpha
    r"(?asm)\A\ufeff?(?:(---|\+\+\+)\s.*?^(?:\1|\.\.\.)|WEBVTT.*?\n\r?\n|\[Script Info\].*?^\[)"
)
_FIELD = re.compile(r"""(?aim)^(lang(?:uage)?[ \t]*[:=][ \t]*["']?)([\w-]+)""")


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


def in_head(source: str, change: LanguageChange) -> str:
    """A text whose front matter or header names the target's language if it names one."""
    named = partial(_FIELD.sub, lambda field: field[1] + change.new(field[2]))
    return _HEAD.sub(lambda head: named(head[0]), source)
