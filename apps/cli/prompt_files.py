"""Files of prompts: parsed line by line, decoded in batches, answered in their order."""

import codecs
import functools
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import BinaryIO

from apps.cli import cli
from apps.cli.display import Summary
from apps.cli.session import Session
from decoder import BATCH_SIZE, Content, Options, Response, SpeculativeDecoder
from speculative.checkpoints.folder import json_object
from speculative.common.errors import InputError
from speculative.common.files import check_free, replacing
from speculative.common.reporting import reporter
from speculative.models.ranks import ALONE, Ranks
from speculative.step.journal import RowJournal
from speculative.text.text_side import Prompt, check_prompt

NOTE_SECONDS = 10  # between notes of --verbose on how far it is, without a terminal
_OBJECT = re.compile(rb'\s*\{\s*"(.*")?(prompt|messages)"\s*:')  # how JSON lines begin
_ARRAY = re.compile(rb'\s*\[\s*(["{]|$)')  # how a JSON array of texts or objects begins


def name_of(path: str) -> str:
    return "standard input" if path == "-" else cli.one_line(path)


@dataclass(eq=False)
class PromptFile:
    """An iterator over the prompts of a file, one a line, which reads lines as needed.

    A line is a text or, in .jsonl and .json files and after a first line of this kind, a JSON object with a field `prompt`
    and optionally `reference`. A JSON array has its entries for lines. A line without a usable prompt is passed over
    after `report(number, reason)`; there lines count from 1.
    """

    path: str  # "-": standard input
    report: Callable[[int, str], None]
    ranks: Ranks = ALONE
    # Makes a prompt of what a line has, None: to be passed over, or raises InputError
    prepare: Callable[[Content], Content | None] = check_prompt

    def __post_init__(self):
        self.name = name_of(self.path)
        self._lines = self.ranks.lines(self._open)
        # None: not known yet
        self._is_json = True if self.path.endswith((".jsonl", ".json")) else None
        self._next: Content | None = None
        self.line_numbers: list[int] = []  # of the prompts
        self._unanswered: dict[int, Content] = {}  # by line
        self.lines = self.bad_lines = 0

    def _open(self) -> "BinaryIO | Arriving":
        path = os.dup(sys.stdin.fileno()) if self.path == "-" else self.path
        file = open(path, "rb")  # noqa: SIM115
        return file if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else Arriving(file)

    def ready(self) -> bool:
        """Whether the next prompt, or the end, is there without waiting; always where ranks share a file."""
        while self._next is None and isinstance(self._lines, Arriving):
            if not self._lines.ready():
                return False
            line = next(self._lines, None)
            if line is None:
                return True
            self._next = self._parse(line)
        return True

    def __iter__(self) -> Iterator[Content]:
        return self

    def __next__(self) -> Content:
        while self._next is None:
            self._next = self._parse(next(self._lines))
        prompt = self._next
        self._next = None
        self.line_numbers.append(self.lines - 1)
        self._unanswered[self.lines - 1] = prompt
        return prompt

    def _parse(self, line: bytes) -> Content | None:
        """The prompt in the next line; None, after a report, if it has none."""
        number = self.lines
        self.lines += 1
        line = line.removeprefix(codecs.BOM_UTF8)  # also inside concatenated files
        if number == 0 and b"\0" in line:
            raise InputError(f"{self.name}: not text in UTF-8; for documents, use translate.py")
        if number == 0 and _ARRAY.match(line):
            self._lines = self._entries(line)
            line = next(self._lines, b"")
        if self._is_json is None and line.strip():
            self._is_json = bool(_OBJECT.match(line))
        try:
            return self.prepare(_prompt_of(line, bool(self._is_json)))
        except InputError as error:
            self._reject(number, str(error))
            return None

    def _entries(self, first: bytes) -> Iterator[bytes]:
        """The file's lines or, if they are a JSON array, an object on a line for each of its entries."""
        lines = [first, *self._lines]
        with suppress(ValueError, RecursionError):
            values = json.loads(b"".join(lines))
            self._is_json = True
            objects = (v if isinstance(v, dict) else {"prompt": v} for v in values)
            return (json.dumps(value).encode() for value in objects)
        return iter(lines)

    def _reject(self, line: int, reason: str) -> None:
        self.bad_lines += 1
        self.report(line + 1, reason)

    def answers(
        self,
        decoder: SpeculativeDecoder,
        batch_size: int,
        options: Options,
        journal: RowJournal | None = None,
    ) -> Iterator[tuple[int, Response]]:
        """Decode the prompts; yield (line, Response) as each finishes. If memory runs out, those at hand are decoded again
        one by one, and those that are too large even then are reported."""
        settings = vars(decoder.seeded(options)) | {"journal": journal}
        while True:
            first = len(self.line_numbers)
            try:
                for index, response in decoder.stream_batch(self, batch_size, **settings):
                    line = self.line_numbers[first + index]
                    self._unanswered.pop(line, None)
                    yield line, response
                return
            except (RuntimeError, MemoryError) as error:  # some of a prompt's samples may be out
                if not cli.out_of_memory(error) or options.num_samples > 1:
                    raise
            for line, prompt in [*self._unanswered.items()]:
                try:
                    (response,) = decoder.batch_generate([prompt], **settings)
                except (RuntimeError, MemoryError) as error:
                    if not cli.out_of_memory(error):
                        raise
                    self._reject(line, f"too large for the memory: {error}")
                else:
                    yield line, response
                del self._unanswered[line]


def _prompt_of(line: bytes, is_json: bool) -> Content:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text") from None
    value = json_object(text, "prompt") if is_json else {"prompt": text}
    reference = value.get("reference")
    return value["prompt"] if reference is None else Prompt(value["prompt"], reference)


class Arriving:
    """An iterator over the lines of a pipe or terminal that knows whether the next one has arrived."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._arrived = b""
        self._ended = False

    def ready(self, wait: bool = False) -> bool:
        """Whether the next line, or the end, is there; with `wait`, once it is."""
        while not (self._ended or b"\n" in self._arrived):
            if not (wait or select([self._file], [], [], 0)[0]):
                return False
            data = os.read(self._file.fileno(), 1 << 16)
            self._arrived += data
            self._ended = not data
        return True

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self.ready(wait=True)
        line, newline, self._arrived = self._arrived.partition(b"\n")
        if not line + newline:
            raise StopIteration
        return line + newline


@dataclass(frozen=True)
class FileTask:
    path: str  # "-": standard input
    output: Path | None = None  # None: standard output
    batch_size: int = BATCH_SIZE
    model: str = ""  # its stamp
    force: bool = False  # replace a file that exists

    def size(self) -> tuple[int | None, int | None]:
        """The lines and the bytes of a file; None if only reading it tells."""
        if self.path == "-" or not Path(self.path).is_file():
            return None, None
        with open(self.path, "rb") as file:
            return sum(1 for _ in file), os.fstat(file.fileno()).st_size

    @contextmanager
    def out(self, seeded: bool) -> Iterator[tuple[RowJournal | None, Callable[[int, str], object]]]:
        """Yields what keeps the rows, and a function that takes an output by its number: they are written in their order, and
        the file is there when all are. seeded: as for RowJournal"""
        path = self.output
        if path is None:
            yield None, cli.InOrder(functools.partial(cli.write, end="")).put
            return
        check_free(path, self.force)
        with closing(RowJournal(path, self.model, seeded)) as journal:
            with replacing(path, self.force) as new, open(new, "w", encoding="utf-8") as file:
                write = functools.partial(print, end="", file=file, flush=True)
                yield journal, cli.InOrder(write).put
            journal.remove()


def decode_file(session: Session, task: FileTask) -> None:
    """Decode the prompts of a file. Report lines without a usable prompt; they make the exit code 1."""
    samples = session.options.num_samples
    summary = Summary()
    session.prepare("-")  # what fails for every prompt, such as a language, is said once
    with task.out(session.options.seed is not None) as (journal, put):

        def report(line: int, reason: str) -> None:
            reporter.note(f"{name_of(task.path)}, line {line}: {reason}")
            for sample in range(samples):
                put((line - 1) * samples + sample, "" if session.display.as_json else "\n")

        file = PromptFile(task.path, report, session.ranks, session.prepare)
        lines, size = task.size()
        if session.decoder.learner and size:
            session.decoder.learner.total = size
        with progress(lines, session.display.verbose) as show_progress:
            answers = file.answers(session.decoder, task.batch_size, session.options, journal)
            for line, response in answers:
                put(line * samples + response.sample, f"{session.display.line(line, response)}\n")
                session.remember(response)
                summary.add(response)
                show_progress(summary.texts // samples)
    summary.print(session.decoder, session.display.verbose)
    if task.output:
        print(task.output)
    if file.bad_lines:
        raise InputError(f"{file.name}: {file.bad_lines} of {file.lines} lines have no answer")
    if summary.failed:
        sys.exit(cli.INPUT_ERROR)


@contextmanager
def progress(total: int | None, verbose: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function that shows how many lines are done, in a bar on a terminal or, if `verbose`, in notes.
    total: lines; None: not known"""
    done = 0
    noted = time.perf_counter()
    with reporter.bar("prompts", total, "", 0) as advance:

        def show(lines: int) -> None:
            nonlocal done, noted
            advance(lines - done)
            done = lines
            is_due = time.perf_counter() - noted >= NOTE_SECONDS
            if verbose and is_due and not sys.stderr.isatty():
                noted = time.perf_counter()
                reporter.note(f"{lines}/{total or '?'}")

        yield show
