"""The rows that were decoded of a sound, in a journal: a run after one that was interrupted takes them from there."""

from contextlib import closing
from pathlib import Path

from common.files import Journal
from speculative.row import Row
from speculative.tasks import Ended, Task, resume


def resumed(task: Task, output: Path, key: str, force: bool = False) -> Task:
    """A sound's task. Rows that an earlier run has decoded come from the output's journal, in the same order; those that
    this run decodes are added to it. Arguments and InputError: as `Journal`."""
    try:
        journal = Journal(output, key, force)
    except OSError:  # a full disk, for example: nothing is kept
        return (yield from task)
    with closing(journal):
        earlier = iter(journal.entries)
        work = resume(task)
        while not isinstance(work, Ended):
            if callable(work):
                work = resume(task, (yield work))
                continue
            rows = [*work]
            entry = next(earlier, None)
            if entry is None:
                yield rows
                try:
                    journal.append([(row.generated, row.origins, row.logprobs) for row in rows])
                except OSError:  # what has no entry is decoded again
                    return (yield from task)
            else:
                _fill(rows, entry)
            work = resume(task)
        return work.result


def _fill(rows: list[Row], values: list) -> None:
    """Finish rows with what was decoded of them before."""
    for row, (tokens, origins, logprobs) in zip(rows, values, strict=True):
        row.tokens += tokens
        row.origins += origins
        row.logprobs += logprobs
        row.finish_reason = "stop"
