"""Files of prompts: read line by line, answered in the same order."""

import codecs
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from select import select
from typing import BinaryIO

from decoder import Options, Response, SpeculativeDecoder, Text
from distributed.ranks import ALONE, Ranks
from errors import InputError
from terminal.cli import one_line, out_of_memory
from text.prompts import Prompt, check_prompt

_OBJECT = re.compile(rb'\s*\{\s*"(.*")?(prompt|messages)"\s*:')  # how JSON lines begin
_ARRAY = re.compile(rb'\s*\[\s*(["{]|$)')  # how a JSON array of texts or objects begins


class PromptFile:
    """An iterator over the prompts of a file, which reads lines as needed; `ready` tells whether the next
    prompt is there without waiting.

    Each line is a prompt or, if the name ends in .jsonl or .json or the first line is of this kind, a JSON object with a
    field `prompt` and optionally `reference`. A JSON array of texts or such objects has these for lines. A line without
    a usable prompt is skipped after `report(number, reason)`. Lines count from 0.
    """

    def __init__(
        self,
        path: str,
        report: Callable[[int, str], None],
        ranks: Ranks = ALONE,
        check: Callable[[Text], object] = check_prompt,
        skip: int = 0,
    ):
        """path: "-" for standard input; check: raises InputError for an unusable prompt; skip: pass over so many lines.
        OSError or InputError if the file cannot be opened."""
        self.name = "standard input" if path == "-" else one_line(path)
        self._path, self._report, self._check, self._skipped = path, report, check, skip
        self._lines = ranks.lines(self._open)
        self._is_json = True if path.endswith((".jsonl", ".json")) else None  # None: not known yet
        self._next: Text | None = None
        self._lines_of: list[int] = []
        self._unanswered: dict[int, Text] = {}  # by line
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

    def __iter__(self) -> Iterator[Text]:
        return self

    def __next__(self) -> Text:
        while self._next is None:
            self._next = self._read(next(self._lines))
        prompt, self._next = self._next, None
        self._lines_of.append(self.lines - 1)
        self._unanswered[self.lines - 1] = prompt
        return prompt

    def _read(self, line: bytes) -> Text | None:
        """The prompt in the next line; None, after a report, if it has none."""
        number, self.lines = self.lines, self.lines + 1
        if number == 0 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise InputError(f"{self.name}: UTF-16 text; save it as UTF-8")
        if number == 0 and b"\0" in line:
            raise InputError(f"{self.name}: not a text file; for documents, use translate.py")
        line = line.removeprefix(codecs.BOM_UTF8)  # also inside concatenated files
        if number == 0 and _ARRAY.match(line):
            self._lines = self._entries(line)
            line = next(self._lines, b"")
        if self._is_json is None and line.strip():
            self._is_json = bool(_OBJECT.match(line))
        if number < self._skipped:
            return None
        try:
            prompt = _prompt_of(line, bool(self._is_json))
            self._check(prompt)
        except InputError as error:
            self._skip(number, str(error))
            return None
        return prompt

    def _entries(self, first: bytes) -> Iterator[bytes]:
        """The file's lines or, if they are a JSON array, an object on a line for each of its entries."""
        lines = [first, *self._lines]
        try:
            values = json.loads(b"".join(lines))
        except (ValueError, RecursionError):
            return iter(lines)
        self._is_json = True
        return (json.dumps(v if isinstance(v, dict) else {"prompt": v}).encode() for v in values)

    def _skip(self, line: int, reason: str) -> None:
        self.bad_lines += 1
        self._report(line, reason)

    def answers(
        self, decoder: SpeculativeDecoder, batch_size: int, options: Options
    ) -> Iterator[tuple[int, Response]]:
        """Decode the prompts; yield (line, Response) as each finishes. If memory runs out, the prompts at hand are
        decoded again one by one, and those that are too large even then are reported."""
        settings = vars(decoder.seeded(options))
        while True:
            first = len(self._lines_of)
            try:
                for index, response in decoder.stream_batch(self, batch_size, **settings):
                    line = self.line_of(first + index)
                    self._unanswered.pop(line, None)
                    yield line, response
                return
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or options.num_samples > 1:  # some samples may be out
                    raise
            for line, prompt in [*self._unanswered.items()]:
                try:
                    (response,) = decoder.batch_generate([prompt], **settings)
                except (RuntimeError, MemoryError) as error:
                    if not out_of_memory(error):
                        raise
                    self._skip(line, f"too large for the memory: {error}")
                else:
                    yield line, response
                del self._unanswered[line]


def _prompt_of(line: bytes, is_json: bool) -> Text:
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
        self._read, self._ended = bytearray(), False

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
        return bytes(line + newline)

    def _has_line(self) -> bool:
        return self._ended or b"\n" in self._read

    def _read_more(self) -> None:
        some = os.read(self._file.fileno(), 1 << 16)
        self._read += some
        self._ended = not some


def answered(path: Path, samples: int, as_json: bool) -> int:
    """How many lines of a prompt file have their outputs in this file. What comes after these is removed: an interrupted
    run may have left a part. InputError if it holds something else."""
    if not path.exists():
        return 0
    *lines, _ = path.read_bytes().split(b"\n")
    try:  # the prompt's line of each output
        of = [json.loads(x)["index"] if as_json else i // samples for i, x in enumerate(lines)]
        done = of[-1] + (of.count(of[-1]) == samples) if of else 0
        kept = lines[: sum(line < done for line in of)]
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{path} exists and does not hold outputs of --json") from None
    os.truncate(path, sum(len(line) + 1 for line in kept))
    if done:
        print(f"{path} has the outputs up to line {done}: going on after it", file=sys.stderr)
    return done


class InOrder:
    """Writes texts in the order of their numbers: the first unfinished one as it grows, each later one once all
    before it are finished. `reached`: how many are finished and written."""

    def __init__(self, write: Callable[[str], object], reached: int = 0):
        self._write, self.reached = write, reached
        self._waiting: dict[int, tuple[str, bool]] = {}

    def put(self, number: int, text: str, finished: bool = True) -> None:
        """Add to a text."""
        before, _ = self._waiting.get(number, ("", False))
        self._waiting[number] = before + text, finished
        while self.reached in self._waiting:
            text, finished = self._waiting.pop(self.reached)
            self._write(text)
            if not finished:
                return
            self.reached += 1
