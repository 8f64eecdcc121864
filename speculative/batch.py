"""Rows decoded side by side, whatever a step is: how they come, and what their steps take."""

import time
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from speculative.cached_model import CachedModel, Model
from speculative.row import Row


class RowBatch:
    """What the speculative step (decoder.py) and the step of a beam search (beams.py) share."""

    def __init__(self, model: Model, ranks: Any):
        """ranks: the processes that share the target; see distributed/ranks.py."""
        self.ranks = ranks
        self.target = CachedModel(model, ranks.share)
        self.rows: list[Row] = []
        self._model = model

    @property
    def preparing_seconds(self) -> float:
        """What steps have taken so far until a draft model had read what it lacked."""
        return 0.0

    def read(self, new: Sequence[int]) -> None:
        """Read the prompts of the rows at these indices, which have just begun."""
        raise NotImplementedError

    def step(self) -> Any:
        """Decode every unfinished row on; what `observe` wants to know of it."""
        raise NotImplementedError

    def observe(self, step: Any, seconds: float, preparing: float, done: Sequence[Row]) -> None:
        """Learn from what a step took and which rows it finished."""

    def admit(self, fresh: Sequence[Row]) -> None:
        """Read the prompts of new rows, in the place of finished rows or beside those that there are."""
        began = time.perf_counter()
        free = (b for b, row in enumerate(self.rows) if row.finish_reason)
        new = [b for b, _ in zip(chain(free, range(len(self.rows), 1 << 30)), fresh, strict=False)]
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
        """A step, and what it took; the rows that it finished."""
        live = [row for row in self.rows if not row.finish_reason]
        began, prepared = time.perf_counter(), self.preparing_seconds
        step = self.step()
        preparing = self.preparing_seconds - prepared
        seconds = time.perf_counter() - began - preparing
        sharing = with_others(live)
        for row in sharing:
            row.stats.target_calls += 1
            row.stats.seconds += seconds / len(sharing)
            row.stats.preparing_seconds += preparing / len(sharing)
        done = [row for row in live if row.finish_reason]
        self.observe(step, seconds, preparing, done)
        return done


def with_others(rows: Iterable[Row]) -> list[Row]:
    """Rows, each followed by those that take its next best texts."""
    return [each for row in rows for each in (row, *row.others)]
