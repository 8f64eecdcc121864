"""Files of many prompts: read line by line, answered in the order of their lines."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

from decoder import check_prompt
from distributed.ranks import ALONE, Ranks
from errors import InputError


class PromptFile:
    """The prompts of a file, read as they are needed.

    Each line is a prompt; or a JSON object with a field `prompt`, when the file's name ends in
    .jsonl or its first line begins with an opening brace. A line without a prompt is passed over,
    after `report(number, reason)`. Lines are counted from 0.
    """

    def __init__(self, path: str, report: Callable[[int, str], None], ranks: Ranks = ALONE):
        """path: "-" for standard input. OSError or InputError when it cannot be opened."""
        self._path, self._report = path, report
        self._lines = ranks.lines(self._open)
        self._lines_of: list[int] = []
        self.lines = self.bad_lines = 0

    def _open(self) -> BinaryIO:
        return sys.stdin.buffer if self._path == "-" else open(self._path, "rb")

    def line_of(self, index: int) -> int:
        """The line of the prompt `index`."""
        return self._lines_of[index]

    def __iter__(self) -> Iterator[str]:
        is_json = self._path.endswith(".jsonl")
        for number, line in enumerate(self._lines):
            self.lines = number + 1
            is_json = is_json or (number == 0 and line.lstrip().startswith(b"{"))
            try:
                prompt = check_prompt(_prompt_of(line, is_json))
            except InputError as error:
                self.bad_lines += 1
                self._report(number, str(error))
            else:
                self._lines_of.append(number)
                yield prompt


def _prompt_of(line: bytes, is_json: bool) -> str:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text") from None
    if not is_json:
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error}") from None
    if not isinstance(value, dict) or "prompt" not in value:
        raise InputError("no JSON object with a field prompt")
    return value["prompt"]


class InOrder:
    """Writes one line per number, in the order of the numbers, each as soon as all before it are
    there. On leaving, by an error too, the rest is written; a number that never came
    is an empty line, so that line i always belongs to number i."""

    def __init__(self, write: Callable[[str], None]):
        self._write_line = write
        self._waiting: dict[int, str] = {}
        self._next = 0

    def __enter__(self) -> "InOrder":
        return self

    def __exit__(self, *error) -> None:
        for number in range(self._next, max(self._waiting, default=-1) + 1):
            self._write(self._waiting.pop(number, ""))

    def put(self, number: int, text: str) -> None:
        self._waiting[number] = text
        while self._next in self._waiting:
            self._write(self._waiting.pop(self._next))

    def _write(self, text: str) -> None:
        self._write_line(" ".join(text.splitlines()))
        self._next += 1
