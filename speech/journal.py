"""The rows that were decoded of a sound, in a file: a run after one that was interrupted takes them from there."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from speech.transcript import Steps


def resumed(steps: Steps, path: Path, key: int) -> Steps:
    """A sound's steps. Rows that an earlier run has decoded come from the file, in the same order; those that this run
    decodes are added to it. key: what the texts depend on; the file begins anew if another run had another one."""
    entries = list(_entries(path, key))
    with suppress(OSError):  # there is none so far, for example
        os.truncate(path, len("".join(entries).encode()))
    earlier = iter(entries)
    number = 0
    result: Any = None
    while True:
        try:
            work = steps.send(result)
        except StopIteration as end:
            return end.value
        if not isinstance(work, list):
            result = yield work
            continue
        result = None
        number += 1
        entry = next(earlier, None)
        if entry is None:
            yield work
            values = [(row.generated, row.origins, row.logprobs) for row in work]
            # a full disk, for example: what has no entry is decoded again
            with suppress(OSError), path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, number, values]) + "\n")
            continue
        for row, (tokens, origins, logprobs) in zip(work, json.loads(entry)[-1], strict=True):
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
