"""Documents in zip archives."""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

from apps.documents.document import Document, Parse, joined
from speculative.common.errors import InputError, errors_name

Parsers = dict[str, Parse]  # of the files with text in an archive
MAX_UNPACKED = 1 << 29  # bytes of an archive


def in_archive(
    data: bytes,
    parsers_of: Callable[[Mapping[str, bytes]], Parsers],
    notes_of: Callable[[Mapping[str, bytes]], Sequence[str]] = lambda files: (),
) -> Document:
    """The document in a zip archive. notes_of: what a reader should know of all files"""
    with ZipFile(BytesIO(data)) as archive:
        if sum(file.file_size for file in archive.infolist()) > MAX_UNPACKED:
            raise InputError(f"it unpacks to more than {MAX_UNPACKED >> 20} MB")
        files = archive.infolist()
        contents = {file.filename: archive.read(file) for file in files}
    parsers = parsers_of(contents)
    if not parsers:
        raise InputError("there is no text in it")
    parts = dict[str, Document]()
    for name in filter(parsers.__contains__, contents):
        with errors_name(Path(name.rpartition("/")[2])):
            parts[name] = parsers[name](contents[name])

    def assemble(written: Sequence[bytes]) -> bytes:
        new = dict(zip(parts, written, strict=True))
        output = BytesIO()
        with ZipFile(output, "w") as archive:
            for file in files:
                archive.writestr(file, new.get(file.filename, contents[file.filename]))
        return output.getvalue()

    return joined([*parts.values()], assemble, notes_of(contents))
