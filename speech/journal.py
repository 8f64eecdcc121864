"""The rows that were decoded of a sound, in a file: a run after one that was interrupted takes them from there."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from speculative.row import Row
from speculative.tasks import Ended, Task, resume


def resumed(task: Task, path: Path, key: int) -> Task:
    """A sound's task. Rows that an earlier run has decoded come from the file, in the same order; those that this run
    decodes are added to it. key: what the texts depend on; the file begins anew if another run had another one."""
    entries = list(_entries(path, key))
    with suppress(OSError):  # there is none so far, for example
        os.truncate(path, len("".join(entries).encode()))
    earlier = iter(entries)
    number = 0
    work = resume(task)
    while not isinstance(work, Ended):
        if callable(work):
            work = resume(task, (yield work))
            continue
        work = [*work]
        number += 1
        entry = next(earlier, None)
        if entry is None:
            yield work
            values = [(row.generated, row.origins, row.logprobs) for row in work]
            # a full disk, for example: what has no entry is decoded again
            with suppress(OSError), path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, number, values]) + "\n")
        else:
            _fill(work, json.loads(entry)[-1])
        work = resume(task)
    return work.result


def _fill(rows: list[Row], values: list) -> None:
    """Finish rows with what was decoded of them before."""
    for row, (tokens, origins, logprobs) in zip(rows, values, strict=True):
        row.tokens += tokens
        row.origins += origins
        row.logprobs += logprobs
        row.finish_reason = "stop"


def _entries(path: Path, key: int) -> Iterator[str]:
    """The entries up to one that is missing, cut off, or another run's."""
    with suppress(OSError, ValueError):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(True), 1):
            if json.loads(line)[:2] != [key, number] or line[-1] != "\n":
                return
            yield line
