"""The driver of a batch: it admits rows, times their steps, gives memory back, and refills the batch from a source: prompts,
or tasks, which need texts decoded on their way.

What a step is belongs to the batch: `decoder.Batch` decodes speculatively, `BeamBatch` (beams.py) searches.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Protocol

import mlx.core as mx

from speculative.common.errors import InputError
from speculative.step.draft import Step
from speculative.step.row import Row

CLEAR_EVERY = 256  # steps after which MLX gives back the memory that it holds, as in mlx-lm

# Rows, to go on when they are finished, or a function to call where models may be used and whose result to send back
Work = Iterable[Row] | Callable[[], Any]
Task = Generator[Work, Any, Any]


class RowBatch(Protocol):
    """Rows decoded together. A finished row stays, and takes no part in a step, until another replaces it."""

    rows: list[Row]

    def admit(self, rows: list[Row], new: Sequence[int]) -> None:
        """Prefill the rows at the indices `new`; `rows` holds all rows from now on. Returns when that is done."""

    def step(self) -> Step:
        """Decode every unfinished row further."""

    def select(self, indices: Sequence[int]) -> None:
        """Go on with these rows only."""

    def observe(self, step: Step, finished: Sequence[Row]) -> None:
        """Learn from a step, which has its times, and from the rows that it finished."""


class Source(Protocol):
    def take(self, count: int, wait: bool) -> list[Row]:
        """Up to `count` rows; with `wait` at least one, unless no more will come."""


class Driver:
    """Takes a batch from step to step, and records what its rows' prefill and steps took."""

    def __init__(self, batch: RowBatch):
        self.batch = batch
        self._steps = 0

    def admit(self, new_rows: Sequence[Row]) -> None:
        """Prefill new rows. They replace finished rows first, then widen the batch."""
        rows = list(self.batch.rows)
        free = [b for b, row in enumerate(rows) if row.finish_reason]
        added = range(len(rows), len(rows) + len(new_rows))
        new = [*free, *added][: len(new_rows)]
        for b, row in zip(new, new_rows, strict=True):
            rows[b : b + 1] = [row]
        began = time.perf_counter()
        self.batch.admit(rows, new)
        now = time.perf_counter()
        tokens = sum(len(row.prompt) for row in new_rows)
        for row in new_rows:
            row.started = now
            row.stats.encoding_seconds = (now - began) * len(row.prompt) / tokens

    def advance(self) -> list[Row]:
        """Take a step and record its times; return the rows that it finished."""
        live = [row for row in self.batch.rows if not row.finish_reason]
        began = time.perf_counter()
        step = self.batch.step()
        step.seconds = time.perf_counter() - began - step.draft.prefill_seconds
        if self._steps % CLEAR_EVERY == 0:
            mx.clear_cache()
        self._steps += 1
        for row in live:
            row.stats.target_calls += 1
            row.stats.seconds += step.seconds / len(live)
            row.stats.preparing_seconds += step.draft.prefill_seconds / len(live)
        finished = [row for row in live if row.finish_reason]
        self.batch.observe(step, finished)
        return finished

    def decode(
        self, source: Source, batch_size: int, watch: Callable = lambda rows: None
    ) -> Iterator[Row]:
        """Decode the rows of a source, at most `batch_size` together; yield each as soon as it finishes.

        A prefill takes about a step, however many rows there are. So new rows join once the idle time of finished rows
        adds up to a step of the whole batch (the economic order quantity, Harris 1913), or at once where the batch is
        not full. If no row comes, the batch shrinks as soon as a quarter of it has finished. A row that its journal has is
        finished without being decoded.
        watch: gets the batch's rows after each step, and may end some by setting finish_reason
        """
        idle = 0  # steps that finished rows have been idle since rows last joined
        while True:
            rows = self.batch.rows
            live = [b for b, row in enumerate(rows) if not row.finish_reason]
            idle += len(rows) - len(live)
            if not live or len(rows) < batch_size or idle >= batch_size:
                taken = source.take(batch_size - len(live), wait=not live)
                replayed = [row for row in taken if row.journal and row.journal.replay(row)]
                yield from replayed
                new_rows = [row for row in taken if not row.replayed]
                if new_rows:
                    self.admit(new_rows)
                    idle = 0
                elif replayed:
                    continue
                elif not live:
                    return
                elif 4 * len(live) <= 3 * len(rows):
                    self.batch.select(live)
            finished = self.advance()
            watch(self.batch.rows)
            for row in finished:
                if row.journal:
                    row.journal.keep(row)
            yield from finished


class Prompts:
    """A source of rows for prompts: of up to `window` prompts that are available, the longest first."""

    def __init__(
        self, prompts: Iterable, make: Callable[[Any], list[Row]], window: int, journal: Any = None
    ):
        """make: makes the rows of a prompt; journal: keeps them"""
        self._prompts = enumerate(each for each in prompts)  # a generator: it ends once
        self._make = make
        self._window = window
        self._journal = journal
        self._ready = getattr(prompts, "ready", lambda: True)
        self._waiting: list[Row] = []  # the shortest first
        # unfinished row -> (index of its prompt, its index within the prompt)
        self.index: dict[Row, tuple[int, int]] = {}

    def take(self, count: int, wait: bool) -> list[Row]:
        if len(self._waiting) < count:
            self._fetch(wait and not self._waiting)
        return [self._waiting.pop() for _ in range(min(count, len(self._waiting)))]

    def _fetch(self, wait: bool) -> None:
        """Make the rows of the prompts that are available; with `wait`, of one at least."""
        for fetched in range(self._window):
            if not (self._ready() or (wait and not fetched)):
                break
            new = next(self._prompts, None)
            if new is None:
                break
            number, prompt = new
            rows = self._make(prompt)
            for row in rows:
                row.journal = self._journal
            self._waiting += rows
            self.index |= {row: (number, i) for i, row in enumerate(rows)}
        self._waiting.sort(key=lambda row: (-len(row.prompt), self.index[row]), reverse=True)


def result_of(results: Iterable[tuple[int, Any]]) -> Any:
    """The result of the one task that was run. InputError if it failed."""
    ((_, result),) = results
    if isinstance(result, InputError):
        raise result
    return result


class RunningTask:
    """A task on its way, and the rows that it needs. The functions that it needs are called by `call`."""

    def __init__(self, task: Task, call: Callable[[Callable], Any] = lambda function: function()):
        self._task = task
        self._call = call
        self._returned: Any = None  # by the function last called
        self.rows: Iterator[Row] = iter(())  # not taken yet
        self.unfinished: set[Row] = set()
        self.result: Any = None  # once it has ended

    def goes_on(self) -> bool:
        """Let it go on, until it needs `rows` or a function has been called. False: it has ended, with a `result`."""
        try:
            work = self._task.send(self._returned)
        except StopIteration as end:
            self.result = end.value
            return False
        self._returned = None
        if callable(work):
            self._returned = self._call(work)
        else:
            self.rows = iter(work)
        return True


class Tasks:
    """A source of rows for the driver: those of `at_once` tasks at a time. Several tasks may wait for the same row."""

    def __init__(self, tasks: Iterable[Task], at_once: int):
        self._tasks = enumerate(tasks)
        self._at_once = at_once
        self._running: dict[int, RunningTask] = {}
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
            self._running[index] = RunningTask(task)
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
                if not running.goes_on():
                    self._end(index, running.result)
                    return
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
