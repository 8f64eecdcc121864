"""Tasks: work that needs texts decoded on its way. One batch decodes the rows of many tasks, each in its own order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from common.errors import InputError
from speculative.row import Row

# Rows, to go on when they are finished, or a function to call where models may be used and whose result to send back
Work = Iterable[Row] | Callable[[], Any]
Task = Generator[Work, Any, Any]


@dataclass(frozen=True)
class Ended:
    """The end of a task, with its result."""

    result: Any


def resume(task: Task, result: Any = None) -> Work | Ended:
    """Let a task go on: what it needs next, or its result. result: of the function that it needed called"""
    try:
        return task.send(result)
    except StopIteration as end:
        return Ended(end.value)


def result_of(results: Iterable[tuple[int, Any]]) -> Any:
    """The result of the one task that was run. InputError if it failed."""
    ((_, result),) = results
    if isinstance(result, InputError):
        raise result
    return result


@dataclass
class _Running:
    """A task that waits for rows."""

    task: Task
    rows: Iterator[Row] = field(default_factory=lambda: iter(()))  # not taken yet
    unfinished: set[Row] = field(default_factory=set)


class Tasks:
    """A source of rows for the driver: those of `at_once` tasks at a time. Several tasks may wait for the same row."""

    def __init__(self, tasks: Iterable[Task], at_once: int):
        self._tasks = enumerate(tasks)
        self._at_once = at_once
        self._running: dict[int, _Running] = {}
        self._waiting = deque[Row]()
        self._owners: dict[Row, list[int]] = {}  # the tasks that wait for a row
        self.results = deque[tuple[int, Any]]()  # of tasks that have ended, with their numbers

    def take(self, count: int, wait: bool) -> list[Row]:
        for index in [*self._running]:
            if len(self._waiting) < count:
                self._advance(index, count)
        while len(self._waiting) < count and len(self._running) < self._at_once:
            index, task = next(self._tasks, (0, None))
            if task is None:
                break
            self._running[index] = _Running(task)
            self._advance(index, count)
        return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def finish(self, row: Row) -> None:
        """Let the tasks that waited for this row alone go on."""
        for index in self._owners.pop(row):
            running = self._running.get(index)
            if running is None:  # it failed meanwhile
                continue
            running.unfinished.remove(row)
            if not running.unfinished:
                self._advance(index, len(self._waiting) + 1)  # now, whatever else waits

    def _advance(self, index: int, count: int) -> None:
        """Let a task go on until `count` rows wait to be taken, it waits for all its rows, or it ends."""
        running = self._running[index]
        try:
            while len(self._waiting) < count:
                row = next(running.rows, None)
                if row is not None:
                    self._add(index, row)
                    continue
                if running.unfinished:
                    return
                work = resume(running.task)
                while callable(work):
                    work = resume(running.task, work())
                if isinstance(work, Ended):
                    self._end(index, work.result)
                    return
                running.rows = iter(work)
        except InputError as error:
            self._end(index, error)

    def _end(self, index: int, result: Any) -> None:
        del self._running[index]
        self.results.append((index, result))

    def _add(self, index: int, row: Row) -> None:
        if row.finish_reason:  # as another task's
            return
        self._running[index].unfinished.add(row)
        owners = self._owners.setdefault(row, [])
        owners.append(index)
        if len(owners) == 1:
            self._waiting.append(row)
