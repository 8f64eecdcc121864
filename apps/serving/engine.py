"""One loop, whose thread alone touches a model, decodes the rows of all requests in one batch. Others read their progress."""

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx
from starlette.exceptions import HTTPException

from apps.serving.metrics import Metrics
from decoder import Options, SpeculativeDecoder
from speculative.common.errors import InputError
from speculative.step.driver import Prompts, Source
from speculative.step.row import FAILED, Row, Stats

# Finish reasons besides "stop" and "length"
CANCELLED = "cancelled"  # or not begun
LOST = "lost"  # a step failed, also without others beside it
_RETRY_AFTER = {"retry-after": "1"}  # seconds


class Refused(HTTPException):
    """The rows were not taken."""

    def __init__(self, why: str = "the server is shutting down"):
        super().__init__(503, why, _RETRY_AFTER)


_NO_FORM = "the text's form is too complex, or the model's vocabulary cannot write it"
_NO_STEP = "decoding failed; the server's log says why"
FAILURES: dict[str | None, Callable[[], Exception]] = {  # of finish reasons
    FAILED: partial(InputError, _NO_FORM),
    LOST: partial(HTTPException, 500, _NO_STEP, _RETRY_AFTER),
    CANCELLED: Refused,
}


@dataclass(frozen=True)
class Progress:
    """A row's progress. Do not read its tokens beyond `tokens` yet."""

    tokens: int = 0
    finish_reason: str | None = None
    stats: Stats = field(default_factory=Stats)


START = Progress()


@dataclass(eq=False)
class Job:
    row: Row
    wake: Callable[[], object]  # called, in any thread, whenever there is progress
    progress: Progress = START
    cancelled: bool = False
    submitted: float = field(default_factory=time.perf_counter)

    def publish(self, finish_reason: str | None) -> None:
        """Let the row's present tokens be read."""
        self.progress = Progress(len(self.row.origins), finish_reason, self.row.stats.copy())
        self.wake()


class Engine:
    """The loop, and its source of rows. One thread calls `run`; the others `submit`, `cancel`, `close` and `abort`."""

    def __init__(
        self, decoder: SpeculativeDecoder, options: Options, batch_size: int, queue_size: int
    ):
        """options: the acceptance rule, lenience and drafter for all rows; all other options are each row's own."""
        self.decoder = decoder
        self.options = options
        self.batch_size = decoder.max_batch_size(batch_size)
        self.queue_size = queue_size
        self._waiting: deque[Job] = deque()
        self._running: dict[Row, Job] = {}
        self._calls: deque[tuple[Future, Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self.closed = False
        self.metrics = Metrics(lambda: len(self._running), lambda: len(self._waiting))

    def submit(self, rows: Sequence[Row], wake: Callable, more: bool = False) -> list[Job]:
        """Decode these rows, or raise Refused and take none if too many wait. more: they continue a request: take them."""
        jobs = [Job(row, wake) for row in rows]
        with self._changed:
            self.check()
            if not more and len(self._waiting) + len(jobs) > self.queue_size:
                raise Refused("too many texts are waiting; try again later")
            self._waiting.extend(jobs)
            self._changed.notify()
        return jobs

    def call(self, function: Callable[[], Any]) -> Any:
        """The result of a function that may use the models, called between two steps. Raises Refused if closed."""
        future = Future[Any]()
        with self._changed:
            self.check()
            self._calls.append((future, function))
            self._changed.notify()
        return future.result()

    def check(self) -> None:
        if self.closed:
            raise Refused

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End these rows before the next step, because nobody waits for them."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
                if job in self._waiting:
                    self._waiting.remove(job)
                    job.publish(CANCELLED)

    def close(self) -> None:
        """Take no more rows, cancel those that wait, and let `run` return once the others are done."""
        with self._changed:
            self.closed = True
            self._changed.notify()
            self.cancel([*self._waiting])

    def abort(self) -> None:
        """Close without waiting for running rows."""
        self.close()
        self.cancel(list(self._running.values()))

    def run(self) -> None:
        """Decode submitted rows until `close`."""
        while self._wait():
            try:
                self._run_calls()
                self._decode(self, self.batch_size)
            except Exception:  # too little memory, or a bug
                traceback.print_exc()
                if not self._running:  # no batch could begin
                    self.take(len(self._waiting), wait=False)
            # After the error, which holds the batch's memory
            for job in list(self._running.values()):
                self._decode_alone(job)

    def _decode_alone(self, job: Job) -> None:
        """Go on with a row of a batch that failed: only the one that made it fail is to be lost."""
        try:
            if not job.row.finish_reason:
                self._decode(Prompts([job.row], lambda row: [row], 1), 1)
        except Exception:
            traceback.print_exc()
        if job.row in self._running:
            self._end(job, job.row.finish_reason or LOST)

    def _wait(self) -> bool:
        """Wait for a row or a call, and train the draft model meanwhile. False once the engine is closed."""
        if not self._waiting:
            mx.clear_cache()  # memory that MLX keeps for new arrays
        learner = self.decoder.learner
        while not (self._waiting or self._calls or self.closed):
            if not (learner and learner.idle()):
                with self._changed:
                    # One second at a time: Python may miss a signal that comes just before a wait.
                    self._changed.wait_for(lambda: self._waiting or self._calls or self.closed, 1)
        return bool(self._waiting or self._calls)

    def _run_calls(self) -> None:
        while self._calls:
            future, function = self._calls.popleft()
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

    def _decode(self, source: Source, batch_size: int) -> None:
        with self.decoder.running(self.options) as driver:
            for _ in driver.decode(source, batch_size, self._watch):
                pass

    def take(self, count: int, wait: bool) -> list[Row]:
        """As `decode` needs it. `run` does the waiting, while no memory is wired."""
        with self._changed:
            jobs = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
            self._running |= {job.row: job for job in jobs}
        return [job.row for job in jobs]

    def _watch(self, rows: Sequence[Row]) -> None:
        """Publish the rows' progress, end those that nobody waits for, and make the calls."""
        self._run_calls()
        for row in [row for row in rows if row in self._running]:
            job = self._running[row]
            if not job.progress.tokens:
                self.metrics.first_token.observe(time.perf_counter() - job.submitted)
            if job.cancelled and not row.finish_reason:
                row.finish_reason = CANCELLED
            if row.finish_reason:
                self._end(job, row.finish_reason)
            else:
                job.publish(None)

    def _end(self, job: Job, finish_reason: str) -> None:
        del self._running[job.row]
        self.metrics.add(job.row.stats, finish_reason)
        job.publish(finish_reason)
