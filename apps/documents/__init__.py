"""Documents to translate: formats behind one contract, and what stands between a text and a model's sentences.

A format is a module with `parse(data) -> Document`: it finds the parts to translate, and everything else stays byte for
byte (docs/new_format.md). Only translator.py knows a model.
"""

from functools import partial
from pathlib import Path
from typing import Any

from apps.documents import epub, gettext, html, markdown, plain, subtitles, word
from apps.documents.document import Document, Parse
from apps.documents.encodings import decoded
from speculative.common.errors import InputError, first_line

_PARSERS: dict[Parse, str] = {
    plain.parse: ".txt",
    markdown.parse: ".md .markdown .mdx .qmd",
    word.parse: ".docx",
    html.parse: ".html .htm",
    html.parse_xhtml: ".xhtml",
    epub.parse: ".epub",
    gettext.parse: ".po .pot",
    subtitles.parse: ".srt .vtt",
    subtitles.parse_ass: ".ass .ssa",
}
FORMATS = {ending: parse for parse, endings in _PARSERS.items() for ending in endings.split()}
# Formats that declare their encoding, and what is done with a character that it lacks
_DECLARE: dict[Any, str] = dict.fromkeys((html.parse, html.parse_xhtml), "xmlcharrefreplace")
_DECLARE[gettext.parse] = "strict"

# What turns other formats into one of these
_CONVERT = "convert it: textutil -convert docx {0} (or soffice --convert-to docx)"
_INSTEAD = {
    ".doc": _CONVERT,
    ".rtf": _CONVERT,
    ".odt": _CONVERT,
    ".pages": "export it as Word or EPUB from Pages",
    ".pdf": "a PDF has no paragraphs; convert it to .docx, and look at the result",
}

# Keyword arguments of `parse`, and the formats that have them
OPTIONS = {
    "anchors": (".md", ".markdown", ".mdx", ".qmd"),
    "bilingual": tuple(ending for ending in FORMATS if ending not in (".po", ".pot")),
    "cue_by_cue": (".srt", ".vtt", ".ass", ".ssa"),
    "fuzzy": (".po", ".pot"),
}


def read(path: Path, data: bytes, encoding: str | None = None, **options: Any) -> Document:
    """The document in a file of this name. options: of `OPTIONS`, for formats that have them. InputError if it is none."""
    suffix = path.suffix.lower() or ".txt"
    if suffix in _INSTEAD:
        raise InputError(f"{path}: {_INSTEAD[suffix].format(path.name)}")
    if suffix not in FORMATS:
        raise InputError(f"{path}: not a document: they end in {', '.join(FORMATS)}")
    applied = {option: on for option, on in options.items() if suffix in OPTIONS[option]}
    try:
        parse = FORMATS[suffix]
        return decoded(partial(parse, **applied), data, encoding, _DECLARE.get(parse))
    except ImportError:
        raise InputError(f"{path.name} needs: pip install -r requirements-apps.txt") from None
    except InputError:
        raise
    except Exception as error:  # whatever a parser makes of a file that is none of its format
        raise InputError(f"not a {suffix} file: {first_line(error)}") from error
