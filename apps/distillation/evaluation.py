"""Evaluation of a draft model on held-out texts, and the speed-up to expect from it on this machine."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from apps.distillation.batches import SLICE, ReadBatch, TrainingBatch, drafts
from speculative.step.timing import CallTimes

LENGTHS = (4, 8)  # drafted tokens
WHOLE_DRAFTS = 4  # batches in which drafts of these lengths are evaluated


def call_times(draft: Any, target: Any, prompt: Sequence[int], rows: int = 1) -> CallTimes:
    """The costs of drafting on this machine, for `Evaluation.speedup`."""
    times = CallTimes(target, draft, prompt, (1, *(1 + length for length in LENGTHS)), rows)
    for _ in range(3):
        times.measure()
    return times


@dataclass(frozen=True)
class Evaluation:
    accuracy: float  # share of the tokens that are right as the first of a draft
    per_call: dict[int, float]  # tokens of a target call, by how many are drafted
    agreement: float  # share of the texts' tokens that are the target's own choice
    earlier: float = 0.0  # accuracy on the texts that were held out before; 0: there are none

    def __str__(self) -> str:
        calls = ", ".join(f"{n:.1f} with {k} drafted" for k, n in self.per_call.items())
        return f"{self.accuracy:.1%} of held-out tokens right, {calls} a call"

    @classmethod
    def of_accuracy(cls, accuracy: float) -> "Evaluation":
        """The evaluation to expect if each drafted token is right as often as the first."""
        per_call = {k: sum(accuracy**i for i in range(k + 1)) for k in LENGTHS}
        return cls(accuracy, per_call, 1.0)

    def improved(self, errors_left: float) -> "Evaluation":
        """The evaluation to expect once only this share of the errors is left."""
        k = min(LENGTHS)
        accuracies = np.linspace(0, 1, 101)
        per_call = [Evaluation.of_accuracy(a).per_call[k] for a in accuracies]
        accuracy = float(np.interp(self.per_call[k], per_call, accuracies))
        return Evaluation.of_accuracy(1 - errors_left * (1 - accuracy))

    def speedup(self, times: CallTimes) -> float:
        """The best of these lengths and of none."""
        gains = [n * times.step(0) / times.step(k) for k, n in self.per_call.items()]
        return max(1.0, *gains)


def evaluate(
    draft: Any, target: Any, held_out: Sequence[ReadBatch], earlier: Sequence[ReadBatch] = ()
) -> Iterator[Evaluation | None]:
    """Evaluate drafts from each token; those of all lengths in a few batches only. Yields None after each batch, and then what
    it has found."""
    counts: Counter = Counter()
    for i, read in enumerate(held_out):
        is_whole = i % math.ceil(len(held_out) / WHOLE_DRAFTS) == 0
        counts += _counts(draft, target, read(), is_whole)
        yield None
    before: Counter = Counter()
    for read in earlier:
        before += _counts(draft, target, read(), False)
        yield None
    yield Evaluation(
        counts["right"] / counts["tokens"],
        {length: counts["in whole drafts"] / counts[length] for length in LENGTHS},
        counts["agreed"] / counts["tokens"],
        before["right"] / max(1, before["tokens"]),
    )


def _counts(draft: Any, target: Any, batch: TrainingBatch, is_whole: bool) -> Counter:
    """Tokens of a batch, by what they are, and target calls by how many tokens are drafted."""
    drafted = batch.drafted(0)
    agreed = (_best(target, batch.head_input) == batch.labels)[drafted]
    depth = max(LENGTHS) if is_whole else 1
    # By depth, [B, T]: whether the draft from a token has the right label there
    hits = [
        np.roll((_best(draft, states) == batch.labels) & batch.drafted(n), -n, axis=1)
        for n, states in enumerate(drafts(draft, batch, depth))
    ]
    tokens = int(drafted.sum())
    counts: Counter = Counter(tokens=tokens, right=int(hits[0].sum()), agreed=int(agreed.sum()))
    if is_whole:
        counts["in whole drafts"] = tokens
        accepted = np.cumprod(hits, axis=0)
        for length in LENGTHS:
            counts[length] = _calls(accepted[:length].sum(axis=0), drafted)
    return counts


def accuracy(draft: Any, batch: TrainingBatch) -> float:
    """The share of a batch's tokens that are right as the first of a draft."""
    right = _best(draft, drafts(draft, batch, 1)[0]) == batch.labels
    return float(right[batch.drafted(0)].mean())


def _best(model: Any, states: mx.array) -> np.ndarray:
    """The likeliest token [B, T] after states [B, T, D]."""
    B, T, D = states.shape
    flat = states.reshape(1, B * T, D)
    parts = [mx.argmax(model.logits(flat[:, i : i + SLICE]), -1) for i in range(0, B * T, SLICE)]
    return np.array(mx.concatenate(parts, axis=1)).reshape(B, T)


def _calls(accepted: np.ndarray, counted: np.ndarray) -> int:
    """The number of target calls for the tokens [B, T] that are counted, if so many of a draft from each are accepted."""
    calls = 0
    for of_row, labelled in zip(accepted, counted, strict=True):
        start, end = np.flatnonzero(labelled)[[0, -1]]
        while start <= end:
            start += of_row[start] + 1
            calls += 1
    return calls
