"""Where the members of an uncompressed zip file lie: torch's and npz files are such."""

import struct
import zipfile
from pathlib import Path

from errors import InputError


def stored_members(path: Path) -> dict[str, tuple[int, int]]:
    """Where the members of a zip file lie, none of them compressed: name -> (offset, size)."""
    places = {}
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                name, size = member.filename, member.file_size
                if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                    raise InputError(f"{name} is compressed or encrypted")
                start, end = member.header_offset, archive.start_dir
                file.seek(start if 0 <= start < end else end)  # where no member is
                # The local header's extra field may be longer than the directory's: it aligns the data.
                signature, *lengths = struct.unpack("<4s22xHH", file.read(30))
                offset = start + 30 + sum(lengths)
                if signature != b"PK\3\4" or member.compress_size != size or offset + size > end:
                    raise InputError(f"{name} is not where, or not as large as, the directory says")
                places[name] = offset, size
    except InputError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError) as error:
        raise InputError(f"truncated or damaged zip file: {error}") from None
    return places
