"""Rows decoded together: how they join and leave a batch, and what their steps cost."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import mlx.core as mx

from speculative.cached_model import CachedModel, Model
from speculative.draft import Step
from speculative.row import Row

CLEARED = 256  # steps after which MLX gives back the memory it keeps, as in mlx-lm


class RowBatch:
    """The base of speculative decoding (decoder.py) and beam search (beams.py)."""

    def __init__(self, model: Model, ranks: Any):
        """ranks: the processes that share the target; see distributed/ranks.py."""
        self.ranks = ranks
        self.target = CachedModel(model, ranks.share)
        self.rows: list[Row] = []
        self._model, self._steps = model, 0

    def read(self, new: Sequence[int]) -> None:
        """Read the prompts of the new rows at these indices."""
        raise NotImplementedError

    def step(self) -> Step | None:
        """Decode every unfinished row further; return what was drafted, or None."""
        raise NotImplementedError

    def observe(self, step: Any, seconds: float, done: Sequence[Row]) -> None:
        """Learn from a step, its seconds (without the draft model's reading) and the rows it finished."""

    def admit(self, fresh: Sequence[Row]) -> None:
        """Read the prompts of new rows. They replace finished rows first, then widen the batch."""
        began = time.perf_counter()
        free = [b for b, row in enumerate(self.rows) if row.finish_reason]
        new = [*free, *range(len(self.rows), len(self.rows) + len(fresh))][: len(fresh)]
        for b, row in zip(new, fresh, strict=True):
            self.rows[b : b + 1] = [row]
        admitted = with_others(fresh)
        for row in admitted:
            row.begin(row.tokens or self._model.prefix(row.prompt), self.target.config)
        self.read(new)
        self.target.wait()
        now = time.perf_counter()
        tokens = sum(len(row.prompt) for row in admitted)
        for row in admitted:
            row.started = now
            row.stats.encoding_seconds = (now - began) * len(row.prompt) / tokens

    def select(self, indices: Sequence[int]) -> None:
        """Go on with these rows only."""
        self.rows = [self.rows[b] for b in indices]

    def advance(self) -> list[Row]:
        """Take a step and record its cost; return the rows that it finished."""
        live = [row for row in self.rows if not row.finish_reason]
        began = time.perf_counter()
        step = self.step()
        preparing = step.draft.preparing_seconds if step else 0.0
        seconds = time.perf_counter() - began - preparing
        if self._steps % CLEARED == 0:
            mx.clear_cache()
        self._steps += 1
        sharing = with_others(live)
        for row in sharing:
            row.stats.target_calls += 1
            row.stats.seconds += seconds / len(sharing)
            row.stats.preparing_seconds += preparing / len(sharing)
        done = [row for row in live if row.finish_reason]
        self.observe(step, seconds, done)
        return done


def with_others(rows: Iterable[Row]) -> list[Row]:
    """These rows, each followed by the rows for its next best texts."""
    return [each for row in rows for each in (row, *row.others)]


def decode(
    batch: RowBatch,
    source: Any,
    batch_size: int,
    watch: Callable[[Sequence[Row]], object] = lambda rows: None,
) -> Iterator[Row]:
    """Decode rows, at most `batch_size` together; yield each as soon as it finishes.

    Reading prompts takes about a step, however many there are. So new rows join once the idle time of finished rows
    adds up to a step of the whole batch (the economic order quantity, Harris 1913), or at once if there is room.
    If no row comes, the batch shrinks as soon as a quarter of it has finished.
    source: `take(count, wait)` returns up to `count` rows; with `wait` at least one, until no more will come
    watch: gets the batch's rows after each step, and may end some by setting finish_reason
    """
    idle = 0  # idle steps of finished rows since rows last joined
    while True:
        live = [b for b, row in enumerate(batch.rows) if not row.finish_reason]
        idle += len(batch.rows) - len(live)
        if not live or len(batch.rows) < batch_size or idle >= batch_size:
            fresh = source.take(batch_size - len(live), wait=not live)
            if fresh:
                batch.admit(fresh)
                idle = 0
            elif not live:
                return
            elif 4 * len(live) <= 3 * len(batch.rows):
                batch.select(live)
        finished = batch.advance()
        watch(batch.rows)
        yield from finished


class Waiting:
    """A source for `batch.decode` with all its rows from the start."""

    def __init__(self, rows: Iterable[Row]):
        self._rows = list(rows)[::-1]

    def take(self, count: int, wait: bool) -> list[Row]:
        return [self._rows.pop() for _ in range(min(count, len(self._rows)))]


class Prompts:
    """Rows for prompts. Reads up to `window` prompts that are available and gives the longest first."""

    def __init__(self, prompts: Iterable, make: Callable[[Any], list[Row]], window: int):
        """make: makes the rows of a prompt."""
        self._prompts, self._make, self._window = enumerate(prompts), make, window
        self._ready = getattr(prompts, "ready", lambda: True)
        self._waiting: list[Row] = []  # the shortest first
        self._ended = False
        # unfinished row -> (index of its prompt, its index within the prompt)
        self.index: dict[Row, tuple[int, int]] = {}

    def take(self, count: int, wait: bool) -> list[Row]:
        if len(self._waiting) < count:
            self._read(wait and not self._waiting)
        return [self._waiting.pop() for _ in range(min(count, len(self._waiting)))]

    def _read(self, wait: bool) -> None:
        found = 0
        while found < self._window and not self._ended:
            if not (self._ready() or (wait and not found)):
                break
            new = next(self._prompts, None)
            self._ended = new is None
            if new:
                rows = self._make(new[1])
                self._waiting += rows
                self.index |= {row: (new[0], i) for i, row in enumerate(rows)}
                found += 1
        self._waiting.sort(key=lambda row: self.index[row], reverse=True)
        self._waiting.sort(key=lambda row: len(row.prompt))
