"""Timing models' calls."""

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.models.contract import Model

_TOKEN = 7  # any token: only the time matters
_DRAFTED = 5  # tokens per timed draft


@dataclass(eq=False)
class CallTimes:
    """The seconds of model calls. Target and draft model take turns, as in a step: neither finds its own data in the caches."""

    target: Model
    draft: Model | None
    prompt: Sequence[int]
    widths: Sequence[int]  # tokens of a row in a target call
    rows: int = 1
    chained: int = 1  # target calls, each of which needs the last one's result

    def __post_init__(self):
        models = [model for model in (self.target, self.draft) if model]
        self._caches = [(model, model.start([self.prompt] * self.rows)) for model in models]
        self._seconds = defaultdict[object, list[float]](list)
        self.measure()  # warms up
        self._seconds.clear()

    def measure(self) -> None:
        for width in self.widths:
            target, *draft = self._caches
            for cached in draft:
                self._seconds["draft"].append(_seconds(*cached, 1, _DRAFTED))
            self._seconds[width].append(_seconds(*target, width, self.chained))

    def __getitem__(self, name: object) -> float:
        """Median seconds of a target call on `name` tokens or of a "draft" token."""
        return statistics.median(self._seconds[name])

    def step(self, drafted: int) -> float:
        """Seconds of a step that drafts and verifies so many tokens."""
        verifying = np.interp(drafted + 1, self.widths, [self[width] for width in self.widths])
        return float(verifying) + (drafted * self["draft"] if drafted else 0.0)


def _seconds(model: Model, cache: Any, width: int, chained: int) -> float:
    """The seconds of a decoder call on `width` tokens of each row, or of each of `chained` calls."""
    began = time.perf_counter()
    rows = len(cache.lengths)
    tokens = mx.full((rows, width), _TOKEN)
    for _ in range(chained):
        positions = (cache.lengths[:, None] + np.arange(width)).astype(np.int32)
        tokens = mx.argmax(model.decode(tokens, positions, cache), axis=-1)
    mx.eval(tokens)
    cache.keep(np.zeros(rows, int))
    return (time.perf_counter() - began) / chained
