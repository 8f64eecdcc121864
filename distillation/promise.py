"""What a draft model promises, measured on held-out texts."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from distillation.lessons import SLICE, Lesson, drafts

LENGTHS = (4, 8)  # drafted tokens
DEEP = 4  # lessons in which whole drafts are measured


@dataclass(frozen=True)
class Promise:
    """share:    of the tokens that are right as the first of a draft
    per_call: the tokens that a target call brings, by how many are drafted
    agrees:   the share of the texts' tokens that are the target's own choice
    """

    share: float
    per_call: dict[int, float]
    agrees: float

    def speedup(self, costs: "Costs") -> float:
        """At most, of these lengths and of none."""
        gains = [n / (costs.call[k] + k * costs.draft) for k, n in self.per_call.items()]
        return max(1.0, *gains)


def measure(draft: Any, target: Any, lessons: Sequence[Lesson]) -> Promise:
    """What a draft model drafts in texts that are known, from each of their tokens; whole drafts in a few lessons only,
    of all lengths."""
    right = tokens = agreed = deep_tokens = 0
    calls = dict.fromkeys(LENGTHS, 0)
    every = math.ceil(len(lessons) / DEEP)
    for i, lesson in enumerate(lessons):
        agreed += (_best(target, lesson.states) == lesson.labels)[lesson.drafted(0)].sum()
        hits = []  # by depth: [B, T], whether the label there is drafted right
        deep = i % every == 0
        for depth, states in enumerate(drafts(draft, lesson, max(LENGTHS) if deep else 1)):
            hits.append((_best(draft, states) == lesson.labels) & lesson.drafted(depth))
        right += hits[0].sum()
        tokens += lesson.drafted(0).sum()
        if deep:
            deep_tokens += lesson.drafted(0).sum()
            for length in LENGTHS:
                calls[length] += sum(_calls(lesson, hits, b, length) for b in range(len(hits[0])))
    per_call = {length: float(deep_tokens / n) for length, n in calls.items()}
    return Promise(float(right / tokens), per_call, float(agreed / tokens))


def _best(model: Any, states: mx.array) -> np.ndarray:
    """The likeliest token [B, T] after states [B, T, D]."""
    B, T, D = states.shape
    rows = states.reshape(1, B * T, D)
    parts = [mx.argmax(model.logits(rows[:, i : i + SLICE]), -1) for i in range(0, B * T, SLICE)]
    return np.array(mx.concatenate(parts, axis=1)).reshape(B, T)


def _calls(lesson: Lesson, hits: Sequence[np.ndarray], row: int, length: int) -> int:
    """How many target calls a row's text takes."""
    place, end = lesson.ends(row)
    calls = 0
    while place < end:
        accepted = 0
        while accepted < min(length, end - place) and hits[accepted][row, place + accepted]:
            accepted += 1
        place += accepted + 1
        calls += 1
    return calls


@dataclass(frozen=True)
class Costs:
    """What drafting costs here, in plain steps: a target call by how many drafted tokens it verifies, a drafted token."""

    call: dict[int, float]
    draft: float

    @classmethod
    def of(cls, draft: Any, target: Any, lesson: Lesson) -> "Costs":
        """Measured in the first row of a lesson."""

        def seconds(model: Any, width: int) -> float:
            cache = model.attend_to(lesson.encoded[:1], lesson.mask[:1])
            tokens = mx.zeros((1, width), mx.int32)
            best = float("inf")
            for _ in range(4):  # the first one is slower
                positions = np.arange(width, dtype=np.int32)[None]
                began = time.perf_counter()
                mx.eval(model.decode(tokens, positions, cache))
                best = min(best, time.perf_counter() - began)
                cache.keep(np.zeros(1, int))
            return best

        step = seconds(target, 1)
        return cls({k: seconds(target, 1 + k) / step for k in LENGTHS}, seconds(draft, 1) / step)
