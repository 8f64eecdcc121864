"""Where transcripts go: to stdout, or to files, which replace none that are there unless the user says so."""

import json
import os
import secrets
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from errors import InputError
from speech.formats import FORMATS, Layout, Transcript


@dataclass(frozen=True)
class Output:
    """Where transcripts go, and in which format."""

    format: str  # one of FORMATS, or all
    folder: Path | None  # None: they are printed
    layout: Layout
    force: bool = False  # replace files that exist
    resume: bool = False  # write only those that do not

    @property
    def streamed(self) -> bool:
        """Whether segments are printed as they come."""
        return self.format == "txt" and not self.folder

    @property
    def formats(self) -> list[str]:
        return list(FORMATS) if self.format == "all" else [self.format]

    def files(self, name: str) -> dict[str, Path]:
        """The files to write of this name, by format. InputError if one exists, without `force` or `resume`."""
        files = {each: Path(f"{self.folder}/{name}.{each}") for each in self.formats}
        for format, path in list(files.items()):
            if not path.exists() or self.force:
                continue
            if not self.resume:
                instead = "--force replaces it, --resume goes on with the others"
                raise InputError(f"{path} already exists; {instead}")
            del files[format]
        return files

    def journal(self, name: str) -> Path:
        """The file that has a sound's finished windows until its transcript is written."""
        return Path(f"{self.folder}/.{zlib.crc32(os.fsencode(name)):08x}.part")

    def check(self, name: str) -> bool:
        """Whether there is a file to write of this name. OSError if one could not be written."""
        files = self.files(name)
        for path in files.values():
            is_new = not path.exists()
            path.open("ab").close()
            if is_new:
                path.unlink()
        return bool(files)

    def write(self, transcript: Transcript, name: str) -> Iterator[tuple[OSError, str]]:
        """Write the files of this name, each whole or not at all. Yield the error and the text of each that could not be
        written."""
        for format, path in self.files(name).items():
            text = FORMATS[format](transcript, self.layout)
            part = path.with_name(f".{secrets.token_hex(8)}.part")
            try:
                part.write_text(text, encoding="utf-8")
                part.replace(path)
            except OSError as error:
                yield error, text

    def text(self, transcript: Transcript, title: str | None) -> str:
        """What is printed of a transcript at its end, with a title if it is one of several."""
        if self.streamed or self.folder:
            return ""
        text = FORMATS[self.format](transcript, self.layout)
        if not text or title is None:
            return text
        if self.format == "json":
            return json.dumps({"file": title} | json.loads(text), ensure_ascii=False) + "\n"
        if self.format == "vtt":
            return text.replace("WEBVTT", f"NOTE {title}", 1)
        return f"{title}:\n{text}"
