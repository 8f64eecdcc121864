"""The rows that were decoded of a sound, in a journal: a run after one that was interrupted takes them from there."""

from contextlib import closing
from pathlib import Path
from typing import Any

from files import Journal
from speech.transcript import Steps


def resumed(steps: Steps, output: Path, key: str, force: bool = False) -> Steps:
    """A sound's steps. Rows that an earlier run has decoded come from the output's journal, in the same order; those that
    this run decodes are added to it. Arguments and InputError: as `Journal`."""
    try:
        journal = Journal(output, key, force)
    except OSError:  # a full disk, for example: nothing is kept
        return (yield from steps)
    with closing(journal):
        earlier = iter(journal.entries)
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
            entry = next(earlier, None)
            if entry is None:
                yield work
                try:
                    journal.append([(row.generated, row.origins, row.logprobs) for row in work])
                except OSError:  # what has no entry is decoded again
                    return (yield from steps)
                continue
            for row, (tokens, origins, logprobs) in zip(work, entry, strict=True):
                row.tokens += tokens
                row.origins += origins
                row.logprobs += logprobs
                row.finish_reason = "stop"
