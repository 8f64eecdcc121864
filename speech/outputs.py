"""Where transcripts go: to stdout, or to files, which replace none unless the user says so."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from common.files import check_free, hidden, replacing
from speech.formats import FORMATS
from speech.options import Layout
from speech.segments import Transcript


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
        return [*FORMATS] if self.format == "all" else [self.format]

    def base(self, name: str) -> Path:
        """The files of this name, without their formats. What is decoded is in its journal until they are written."""
        return Path(f"{self.folder}/{name}")

    def files(self, name: str) -> dict[str, Path]:
        """The files of this name, by format, but with `resume` only those that do not exist."""
        files = {each: Path(f"{self.base(name)}.{each}") for each in self.formats}
        if self.resume and not self.force:
            files = {each: path for each, path in files.items() if not path.is_file()}
        return files

    def check(self, name: str) -> bool:
        """Whether there is a file to write. InputError if one may not be replaced, OSError if one cannot be written."""
        files = self.files(name)
        for path in files.values():
            if not path.is_dir():
                check_free(path, self.force)
                path.open("ab").close()
                if not path.stat().st_size:
                    path.unlink()
        return bool(files)

    def write(self, transcript: Transcript, name: str) -> Iterator[tuple[str, str]]:
        """Write each file whole or not at all; yield the reason and the text of each that could not be written."""
        for each, path in self.files(name).items():
            text = FORMATS[each](transcript, self.layout)
            try:
                with replacing(path, self.force) as partial:
                    partial.write_text(text, encoding="utf-8")
            except OSError as error:
                yield f"{path}: {error.strerror}", text
            except InputError as error:
                yield str(error), text
        hidden(self.base(name), "journal").unlink(missing_ok=True)

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
