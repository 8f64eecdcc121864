"""Files of prompts: read line by line, answered in the same order."""

import codecs
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from select import select
from typing import BinaryIO

from distributed.ranks import ALONE, Ranks
from errors import InputError
from terminal.cli import one_line
from text.prompts import Prompt, check_prompt


class PromptFile:
    """An iterator over the prompts of a file, which reads lines as needed; `ready` tells whether the next
    prompt is there without waiting.

    Each line is a prompt. If the file's name ends in .jsonl or its first line begins with an opening brace, each line
    is a JSON object with a field `prompt` and optionally `reference`. A line without a usable prompt is skipped after
    `report(number, reason)`. Lines count from 0.
    """

    def __init__(
        self,
        path: str,
        report: Callable[[int, str], None],
        ranks: Ranks = ALONE,
        check: Callable[[str | Prompt], object] = check_prompt,
    ):
        """path: "-" for standard input; check: raises InputError for an unusable prompt. OSError or
        InputError if the file cannot be opened."""
        self.name = "standard input" if path == "-" else one_line(path)
        self._path, self._report, self._check = path, report, check
        self._lines = ranks.lines(self._open)
        self._is_json = path.endswith(".jsonl")
        self._next: str | Prompt | None = None
        self._lines_of: list[int] = []
        self.lines = self.bad_lines = 0

    def _open(self) -> "BinaryIO | Arriving":
        path = os.dup(sys.stdin.fileno()) if self._path == "-" else self._path
        file = open(path, "rb")  # noqa: SIM115
        return file if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else Arriving(file)

    def line_of(self, index: int) -> int:
        """The line of the prompt `index`."""
        return self._lines_of[index]

    def ready(self) -> bool:
        """Whether the next prompt, or the end, is there without waiting. Ranks that share a file
        wait for it together."""
        while self._next is None and isinstance(self._lines, Arriving):
            if not self._lines.ready():
                return False
            line = next(self._lines, None)
            if line is None:
                return True
            self._next = self._read(line)
        return True

    def __iter__(self) -> Iterator[str | Prompt]:
        return self

    def __next__(self) -> str | Prompt:
        while self._next is None:
            self._next = self._read(next(self._lines))
        prompt, self._next = self._next, None
        return prompt

    def _read(self, line: bytes) -> str | Prompt | None:
        """The prompt in the next line; None, after a report, if it has none."""
        number, self.lines = self.lines, self.lines + 1
        if number == 0 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise InputError(f"{self.name}: UTF-16 text; save it as UTF-8")
        line = line.removeprefix(codecs.BOM_UTF8)  # also inside concatenated files
        self._is_json = self._is_json or (number == 0 and line.lstrip().startswith(b"{"))
        try:
            prompt = _prompt_of(line, self._is_json)
            self._check(prompt)
        except InputError as error:
            self.bad_lines += 1
            self._report(number, str(error))
            return None
        self._lines_of.append(number)
        return prompt


def _prompt_of(line: bytes, is_json: bool) -> str | Prompt:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
        value = json.loads(text) if is_json else {"prompt": text}
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from None
    if not isinstance(value, dict) or "prompt" not in value:
        raise InputError("not a JSON object with a field prompt")
    reference = value.get("reference")
    return value["prompt"] if reference is None else Prompt(value["prompt"], reference)


class Arriving:
    """An iterator over the lines of a pipe or terminal that knows whether the next one has arrived."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._read, self._ended = b"", False

    def ready(self) -> bool:
        """Whether the next line, or the end, is there."""
        while not self._has_line() and select([self._file], [], [], 0)[0]:
            self._read_more()
        return self._has_line()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while not self._has_line():
            self._read_more()
        line, newline, self._read = self._read.partition(b"\n")
        if not line + newline:
            raise StopIteration
        return line + newline

    def _has_line(self) -> bool:
        return self._ended or b"\n" in self._read

    def _read_more(self) -> None:
        some = os.read(self._file.fileno(), 1 << 16)
        self._read, self._ended = self._read + some, not some


class InOrder:
    """Writes one line per number, in order, each as soon as all earlier ones are there. `reached`: how many
    are written; lines after a gap wait for it to close."""

    def __init__(self, write: Callable[[str], None]):
        self._write = write
        self._waiting: dict[int, str] = {}
        self.reached = 0

    def put(self, number: int, text: str) -> None:
        self._waiting[number] = text
        while self.reached in self._waiting:
            self._write(one_line(self._waiting.pop(self.reached)))
            self.reached += 1
