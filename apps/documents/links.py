"""Links between files, which lead to their translations."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from html import escape, unescape
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

import regex

from apps.documents.document import Edit, Span, edited
from speculative.common.files import followed

_LINKED = (".md", ".markdown", ".mdx", ".qmd", ".html", ".htm", ".xhtml")
_AS_IT_IS = "surrogateescape"  # what is in another encoding than UTF-8
_VALUE = r"""(?:"[^"<]*+"|'[^'<]*+'|[^\s<>"']++)"""  # of an attribute
_HREF = rf"<\w[^\s<>]*+(?:\s++(?!href[\s=])[^\s<>\"'=]++(?:\s*+=\s*+{_VALUE})?+)*+\s++href\s*+="
# Code, which is passed over, or a link's target: in angle brackets, in quotes, or without space
_LINK = regex.compile(
    r"(?ims)^[ \t>*+\d.)-]*(?P<fence>`{3,}|~{3,}).*?(?:^[ \t>]*(?P=fence)|\Z)"
    r"|(?P<code>`++)[^\n]*?(?<!`)(?P=code)(?!`)"
    rf"|(?:\]\(|\]:|{_HREF})\s*"
    r"""(?:<(?P<link>[^<>\n]*)>|(?P<quote>["'])(?P<link>.*?)(?P=quote)"""
    r"""|(?P<link>(?:[^\s()<>"']|\([^\s()]*\))+))"""
)


def _may_link(file: Path) -> bool:
    return file.suffix.lower() in _LINKED


def links_in(data: bytes, file: Path) -> Iterator[tuple[Span, Path, SplitResult]]:
    """The links to other files in the data of a file that may have some: the place of each, the file, as `followed` names it,
    and its parts."""
    for match in _LINK.finditer(data.decode(errors=_AS_IT_IS)):
        with suppress(ValueError, OSError):  # no address, or a name that no file can have
            parts = urlsplit(unescape(match["link"] or ""))
            if parts.path and not (parts.scheme or parts.netloc):
                yield match.span("link"), followed(file.parent / unquote(parts.path)), parts


def anchors_in(files: Iterable[Path]) -> Mapping[Path, set[str]]:
    """The anchors that the links of these files lead to, by the files that they are in."""
    anchors = defaultdict[Path, set[str]](set)
    for file in filter(_may_link, files):
        with suppress(OSError):
            for _, target, parts in links_in(file.read_bytes(), file):
                anchors[target].add(parts.fragment)
    return anchors


def led(data: bytes, file: Path, outputs: Mapping[Path, Path]) -> bytes:
    """The data of a file's translation, whose links lead to those of these files. outputs: by file, as `followed` names both"""
    if not _may_link(file):
        return data
    edits = list[Edit]()
    for span, target, parts in links_in(data, file):
        if target in outputs:
            path = os.path.relpath(outputs[target], outputs[followed(file)].parent)
            if path != os.path.normpath(unquote(parts.path)):
                edits.append((span, escape(parts._replace(path=quote(path)).geturl())))
    return edited(data.decode(errors=_AS_IT_IS), edits).encode(errors=_AS_IT_IS) if edits else data
