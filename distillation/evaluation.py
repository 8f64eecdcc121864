"""Evaluation of a draft model on held-out texts, and the speed-up to expect from it on this machine."""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from distillation.batches import SLICE, TrainingBatch, drafts
from speculative.timing import call_timer

T = TypeVar("T")
LENGTHS = (4, 8)  # drafted tokens
WHOLE_DRAFTS = 4  # batches in which drafts of these lengths are evaluated


@dataclass(frozen=True)
class CallCosts:
    """Costs of drafting on this machine, in plain steps."""

    target: dict[int, float]  # of a target call, by how many drafted tokens it verifies
    draft: float  # of a drafted token

    @classmethod
    def measured(cls, draft: Any, target: Any, prompt: Sequence[int], rows: int) -> "CallCosts":
        target_call = call_timer(target, prompt, rows)
        draft_call = call_timer(draft, prompt, rows)

        def seconds(call: Callable[[int], float], width: int = 1) -> float:
            return min(call(width) for _ in range(4))  # the first one is slower

        step = seconds(target_call)
        target_costs = {k: seconds(target_call, 1 + k) / step for k in LENGTHS}
        return cls(target_costs, seconds(draft_call) / step)


@dataclass(frozen=True)
class Evaluation:
    """accuracy:  share of the tokens that are right as the first of a draft
    per_call:  tokens of a target call, by how many are drafted
    agreement: share of the texts' tokens that are the target's own choice
    """

    accuracy: float
    per_call: dict[int, float]
    agreement: float

    @classmethod
    def of_accuracy(cls, accuracy: float) -> "Evaluation":
        """What to expect if each drafted token is right as often as the first."""
        per_call = {k: sum(accuracy**i for i in range(k + 1)) for k in LENGTHS}
        return cls(accuracy, per_call, 1.0)

    def speedup(self, costs: CallCosts) -> float:
        """The best of these lengths and of none."""
        gains = [n / (costs.target[k] + k * costs.draft) for k, n in self.per_call.items()]
        return max(1.0, *gains)


def evaluate(
    draft: Any, target: Any, batches: Sequence[TrainingBatch]
) -> Generator[None, None, Evaluation]:
    """Evaluate drafts from each token of texts that are known; those of all lengths in a few batches only. Yields after each
    batch; returns the evaluation (see `finished`)."""
    right = tokens = agreed = whole_tokens = 0
    calls = dict.fromkeys(LENGTHS, 0)
    every = math.ceil(len(batches) / WHOLE_DRAFTS)
    for i, batch in enumerate(batches):
        counted = batch.drafted(0)
        agreed += (_best(target, batch.head_input) == batch.labels)[counted].sum()
        whole = i % every == 0
        hits = [  # by depth: [B, T], whether the label there is drafted right
            (_best(draft, states) == batch.labels) & batch.drafted(depth)
            for depth, states in enumerate(drafts(draft, batch, max(LENGTHS) if whole else 1))
        ]
        right += hits[0].sum()
        tokens += counted.sum()
        if whole:
            whole_tokens += counted.sum()
            for row, labelled in enumerate(counted):
                for length in LENGTHS:
                    calls[length] += _calls(hits, row, labelled, length)
        yield
    per_call = {length: float(whole_tokens / n) for length, n in calls.items()}
    return Evaluation(float(right / tokens), per_call, float(agreed / tokens))


def finished(work: Generator[None, None, T]) -> T:
    """What work returns that goes on piece by piece."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def _best(model: Any, states: mx.array) -> np.ndarray:
    """The likeliest token [B, T] after states [B, T, D]."""
    B, T, D = states.shape
    flat = states.reshape(1, B * T, D)
    parts = [mx.argmax(model.logits(flat[:, i : i + SLICE]), -1) for i in range(0, B * T, SLICE)]
    return np.array(mx.concatenate(parts, axis=1)).reshape(B, T)


def _calls(hits: Sequence[np.ndarray], row: int, labelled: np.ndarray, length: int) -> int:
    """The number of target calls for a row's text. labelled [T]: whether a token's label is of the text."""
    places = np.flatnonzero(labelled)
    start = places[0]
    calls = 0
    while start <= places[-1]:
        accepted = 0
        while accepted < length and hits[accepted][row, start + accepted]:
            accepted += 1
        start += accepted + 1
        calls += 1
    return calls
