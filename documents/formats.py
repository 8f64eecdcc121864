"""The formats, by the ending of a file's name: each turns a file's bytes into a document, or raises InputError."""

from collections.abc import Callable
from functools import partial

from documents import gettext, markdown, plain, subtitles, word
from documents.document import Document

FORMATS: dict[str, Callable[[bytes], Document]] = {
    ".txt": plain.parse,
    ".md": markdown.parse,
    ".docx": word.parse,
    ".po": gettext.parse,
    ".srt": partial(subtitles.parse, srt=True),
    ".vtt": subtitles.parse,
}
