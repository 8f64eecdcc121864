"""Documents to translate: formats behind one contract, and what stands between a text and a model's sentences.

A format is a module with `parse(data) -> Document`: it finds the parts to translate, and everything else stays byte for
byte. Only translator.py knows a model.
"""

import own_modules  # noqa: F401 (before all others: see there)

# isort: split
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common.errors import InputError
from documents import gettext, html, markdown, plain, subtitles, word
from documents.document import Document
from documents.encodings import decoded

FORMATS: dict[str, Callable[[bytes], Document]] = {
    ".txt": plain.parse,
    ".md": markdown.parse,
    ".markdown": markdown.parse,
    ".docx": word.parse,
    ".html": html.parse,
    ".htm": html.parse,
    ".epub": html.parse_epub,
    ".po": gettext.parse,
    ".pot": gettext.parse,
    ".srt": partial(subtitles.parse, kind="srt"),
    ".vtt": partial(subtitles.parse, kind="srt"),
    ".ass": partial(subtitles.parse, kind="ass"),
    ".ssa": partial(subtitles.parse, kind="ass"),
}

# Keyword arguments of `parse`, and the formats that have them
OPTIONS = {
    "bilingual": (".txt", ".srt", ".vtt", ".ass", ".ssa"),
    "cue_by_cue": (".srt", ".vtt", ".ass", ".ssa"),
    "fuzzy": (".po", ".pot"),
}


def read(path: Path, data: bytes, encoding: str | None = None, **options: bool) -> Document:
    """The document in a file of this name. options: of `OPTIONS`; each format takes those that it has. InputError if the
    name is of no format, or the data are not of its."""
    suffix = path.suffix.lower() or ".txt"
    if suffix not in FORMATS:
        raise InputError(f"{path}: not a document: they end in {', '.join(FORMATS)}")
    applied = {option: on for option, on in options.items() if suffix in OPTIONS[option]}
    try:
        return decoded(partial(FORMATS[suffix], **applied), data, encoding)
    except ImportError:
        needed = f"{path.name} needs: pip install -r requirements-documents.txt"
        raise InputError(needed) from None
