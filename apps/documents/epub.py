"""EPUB: the chapters of a book and its table of contents; its package names their language."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from html import unescape
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from apps.documents.archive import Parsers, in_archive
from apps.documents.document import Document, Fitted, Passage, in_text
from apps.documents.encodings import decoded
from apps.documents.html import parse_xhtml, parse_xml
from apps.documents.language import LanguageChange
from apps.documents.tags import with_values
from speculative.common.errors import InputError
from speculative.text.languages import direction

_CHAPTERS: dict[str, Any] = dict.fromkeys(("application/xhtml+xml", "text/html"), parse_xhtml)
_CHAPTERS["application/x-dtbncx+xml"] = partial(parse_xml, stays=["docauthor", "pagelist"])
_DC_LANGUAGE = re.compile(r"(<dc:language\b[^<>]*>\s*)([^<\s]+)")
_DC_TITLE = re.compile(r"<dc:title\b[^<>]*(?<!/)>\s*([^<]*[^<\s])")
_SPINE = re.compile(r"""(?s)<package\b[^>]*\sversion\s*=\s*["']3.*(<spine\b[^>]*>)""")  # of EPUB 3
_CONTAINER = "META-INF/container.xml"
_ENCRYPTED = "META-INF/encryption.xml"
_FONT = b"http://www.idpf.org/2008/embedding", b"http://ns.adobe.com/pdf/enc#RC"  # only fonts


def parse(data: bytes, **options: Any) -> Document:
    return in_archive(data, partial(_parsers, options))


def _parsers(options: Mapping[str, Any], files: Mapping[str, bytes]) -> Parsers:
    """Those of the texts and the table of contents, which the package lists, and of the package."""
    encrypted = files.get(_ENCRYPTED, b"")
    if encrypted.count(b"<EncryptionMethod") > sum(map(encrypted.count, _FONT)):
        raise InputError("this book is encrypted (DRM)")
    parsers = dict[str, Any]()
    in_package = partial(in_text, find=_titles, fit=_as_xml, relabel=_package_in_language)
    container = ElementTree.fromstring(files.get(_CONTAINER, b"<container/>"))
    paths = (each.get("full-path", "") for each in container.iter())
    for package in filter(files.__contains__, paths):
        for item in ElementTree.fromstring(files[package]).iter():
            parse_file = _CHAPTERS.get(item.get("media-type", ""))
            if parse_file:
                path = join(dirname(package), unquote(item.get("href", "")))
                parsers[normpath(path)] = partial(parse_file, **options)
                if not options.get("bilingual"):
                    parsers[package] = in_package
    in_utf8 = partial(decoded, lacking="xmlcharrefreplace")
    return {name: partial(in_utf8, each) for name, each in parsers.items()}


def _titles(source: str) -> Iterator[Passage]:
    for title in _DC_TITLE.finditer(source):
        yield Passage(unescape(title[1]), (title.span(1),))


def _as_xml(source: str, title: Passage, text: str, *_: object) -> Fitted | None:
    return None if text == title.text else Fitted([escape(text)])


def _package_in_language(source: str, change: LanguageChange) -> str:
    named = _DC_LANGUAGE.search(source)
    if not named:
        return source
    source = _DC_LANGUAGE.sub(rf"\g<1>{change.new(named[2])}", source, 1)
    spine = _SPINE.search(source)
    if spine and direction(change.source or named[2]) != direction(change.target):
        values = {"page-progression-direction": direction(change.target)}
        source = source.replace(spine[1], with_values(spine[1], values))
    return source
