"""Where the members of an uncompressed zip file lie: torch's and npz files are such."""

import struct
import zipfile
from pathlib import Path

from errors import InputError


def stored_members(path: Path) -> dict[str, tuple[int, int]]:
    """Where the members of a zip file lie, none of them compressed: name -> (offset, size)."""
    places = {}
    with open(path, "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    raise zipfile.BadZipFile(f"{member.filename} is compressed")
                with archive.open(member):  # reads the local header: the file is at the data now
                    places[member.filename] = file.tell(), member.file_size
        except (zipfile.BadZipFile, RuntimeError, ValueError, OSError, struct.error) as error:
            raise InputError(f"truncated or damaged zip file: {error}") from None
    return places
