"""Where the members of a zip file lie that has no compression, as torch's and npz files are."""

import struct
import zipfile
from io import BufferedReader, FileIO
from pathlib import Path

from checkpoints.tensors import MAX_HEADER
from errors import InputError


class _Bounded(BufferedReader):
    """A file that a wrong directory cannot make zipfile read much of at once, or outside of."""

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 0 and not 0 <= offset < 2**62:
            raise zipfile.BadZipFile("its directory points outside the file")
        return super().seek(offset, whence)

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > MAX_HEADER:
            raise zipfile.BadZipFile("its directory is too large")
        return super().read(size)


def stored_members(path: Path) -> dict[str, tuple[int, int]]:
    """Where the members of a zip file lie, none of them compressed: name -> (offset, size)."""
    try:
        with FileIO(path) as raw, _Bounded(raw) as file, zipfile.ZipFile(file) as archive:
            members = sorted(archive.infolist(), key=lambda member: member.header_offset)
            ends = [member.header_offset for member in members[1:]] + [archive.start_dir]
            places = {m.filename: _payload(file, m, e) for m, e in zip(members, ends, strict=True)}
    except InputError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError) as error:
        raise InputError(f"truncated or damaged zip file: {error}") from None
    if len(places) != len(members):
        raise InputError("two members of the zip file have the same name")
    return places


def _payload(file: BufferedReader, member: zipfile.ZipInfo, end: int) -> tuple[int, int]:
    name, size = member.filename, member.file_size
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise InputError(f"{name} is compressed or encrypted")
    file.seek(member.header_offset)
    header = file.read(30)
    # The local header's extra field may be longer than the directory's: it aligns the payload.
    signature, name_length, extra_length = struct.unpack("<4s22xHH", header)
    offset = member.header_offset + 30 + name_length + extra_length
    if signature != b"PK\3\4" or member.compress_size != size or offset + size > end:
        raise InputError(f"{name} is not where, or not as large as, the zip file's directory says")
    return offset, size
