"""Where the members of an uncompressed zip file lie: torch's and npz files are such."""

import zipfile
from pathlib import Path


def stored_members(path: Path) -> dict[str, tuple[int, int]]:
    """Where the members of a zip file lie, none of them compressed: name -> (offset, size). A damaged
    file raises errors of many kinds."""
    places = {}
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise zipfile.BadZipFile(f"{member.filename} is compressed")
            with archive.open(member):  # reads the local header: the file is at the data now
                places[member.filename] = file.tell(), member.file_size
    return places
