"""One loop decodes the rows of all requests in one batch. Only its thread touches a model. Other threads submit rows
and read their progress; each row is its own buffer, so a slow reader holds nobody up."""

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from starlette.exceptions import HTTPException

from decoder import Options, SpeculativeDecoder
from serving.metrics import Metrics
from speculative.driver import Source, Waiting
from speculative.row import Row, Stats

# Finish reasons besides "stop", "length" and row.FAILED.
CANCELLED, REFUSED = "cancelled", "refused"
RETRY_AFTER = {"retry-after": "1"}  # seconds
LOST = "lost"  # a step failed, also without others beside it


class Refused(HTTPException):
    """The rows were not taken."""

    def __init__(self, why: str = "the server is shutting down"):
        super().__init__(503, why, RETRY_AFTER)


@dataclass(frozen=True)
class Progress:
    """How far a row is. Do not read its tokens beyond `tokens` yet."""

    tokens: int = 0
    finish_reason: str | None = None
    stats: Stats = field(default_factory=Stats)


START = Progress()


@dataclass(eq=False)
class Job:
    """A row in the engine."""

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
        self._calls: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self.closed = False
        self.metrics = Metrics(lambda: len(self._running), lambda: len(self._waiting))

    def submit(
        self, rows: Sequence[Row], wake: Callable[[], object], more: bool = False
    ) -> list[Job]:
        """Decode these rows, or raise Refused and take none if too many wait. more: take them in any case, because they
        continue a request."""
        jobs = [Job(row, wake) for row in rows]
        with self._changed:
            self.check()
            if not more and len(self._waiting) + len(jobs) > self.queue_size:
                raise Refused("too many texts are waiting; try again later")
            self._waiting.extend(jobs)
            self._changed.notify()
        return jobs

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function between two steps, where it may use the models; return its result. Raises Refused once the
        engine is closed, and what the function raises."""
        future = Future[Any]()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        with self._changed:
            self.check()
            self._calls.append(run)
            self._changed.notify()
        return future.result()

    def check(self) -> None:
        """Raise Refused once the engine is closed."""
        if self.closed:
            raise Refused

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End these rows before the next step, because nobody waits for them."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            waiting = list(self._waiting)
            self._waiting = deque(job for job in waiting if not job.cancelled)
        for job in waiting:
            if job.cancelled:
                job.publish(CANCELLED)

    def close(self) -> None:
        """Take no more rows, refuse those that wait, and let `run` return once the others are done."""
        with self._changed:
            self.closed = True
            refused = self._waiting
            self._waiting = deque()
            self._changed.notify()
        for job in refused:
            job.publish(REFUSED)

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
                traceback.print_exc(file=sys.stderr)
                if not self._running:  # no batch could begin
                    self.take(len(self._waiting), wait=False)
            # After the error, which holds the batch's memory
            for job in list(self._running.values()):
                self._decode_alone(job)

    def _decode_alone(self, job: Job) -> None:
        """Go on with a row of a batch that failed: only the one that made it fail is to be lost."""
        try:
            if not job.row.finish_reason:
                self._decode(Waiting([job.row]), 1)
        except Exception:
            traceback.print_exc(file=sys.stderr)
        if job.row in self._running:
            self._end(job, job.row.finish_reason or LOST)

    def _wait(self) -> bool:
        """Wait for a row or a call; return whether there is one, or the engine was closed."""
        with self._changed:
            if not self._waiting:
                mx.clear_cache()  # memory that MLX keeps for new arrays
            # Wait one second at a time: Python may miss a signal that comes just before a wait.
            while not self._waiting and not self._calls and not self.closed:
                if not self._learn():
                    self._changed.wait(1)
            return bool(self._waiting or self._calls)

    def _learn(self) -> bool:
        """Train the draft model for a moment, while others may submit; return whether there was something to do."""
        learner = self.decoder.learner
        if not learner:
            return False
        self._changed.release()
        try:
            return bool(learner.idle())
        finally:
            self._changed.acquire()

    def _run_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _decode(self, source: Source, batch_size: int) -> None:
        """Decode until no row is left."""
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
