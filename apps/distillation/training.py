"""Training a draft model on its target's texts.

The loss is cross-entropy to the text and KL to the target's distribution (DistillSpec, arXiv 2310.08461), on the texts' own
rows of the vocabulary, and the distance to the target's states (EAGLE, arXiv 2401.15077).
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import mlx.core as mx
import mlx.optimizers as optimizers
import numpy as np

from apps.distillation.batches import SLICE, MixFit, ReadBatch, TrainingBatch, drafts
from apps.distillation.evaluation import LENGTHS, Evaluation, Evaluator
from apps.distillation.texts import TrainingText, split
from speculative.common.errors import InputError
from speculative.models import distilled
from speculative.models.encoder_decoder import EncoderDecoder
from speculative.models.ram import available

BATCH = 16  # texts
STATE_LOSS = 16.0  # weight of the states' relative squared error
DEPTH = 3  # drafted tokens in training
RATE = 0.08  # learning rate, over the model's width
FIT = 16  # batches at most to fit `mix` to
WARM_UP = 50  # steps, but a fifth of all at most
PATIENCE = 3  # bad evaluations in a row, after which it ends in half as many steps again
GAIN = 0.002  # of accuracy, below which an evaluation is bad
EVAL_SECONDS = 30
CACHE_SHARE = 0.6  # of the memory, up to which what the target has seen of texts is kept


def loss(draft: Any, target: Any, batch: TrainingBatch, labels: np.ndarray, depth: int) -> mx.array:
    """The mean over all drafted tokens. labels [B, T]: the next tokens' columns in both models' logits."""
    width = batch.head_input.shape[-1]
    drafted = np.flatnonzero(batch.drafted(0))
    counts = np.stack([batch.drafted(m).ravel()[drafted] for m in range(depth)])  # [depth, N]
    states = mx.stack([each.reshape(-1, width) for each in drafts(draft, batch, depth)])
    all_target_states = batch.head_input.reshape(-1, width)
    square = (all_target_states[mx.array(drafted)].astype(mx.float32) ** 2).mean()
    total = mx.array(0.0)
    for i in range(0, len(drafted), SLICE):
        part = mx.array(drafted[i : i + SLICE])
        target_states = all_target_states[part]
        p = mx.softmax(target.logits(target_states[None])[0].astype(mx.float32), axis=-1)
        right = mx.array(labels.ravel()[drafted[i : i + SLICE]])[None, :, None]
        counted = mx.array(counts[:, i : i + SLICE])
        apart = ((states[:, part] - target_states) ** 2).mean(axis=-1) / square  # [depth, N]
        total = total + STATE_LOSS * (counted * apart).sum()

        def of_slice(states: mx.array, p=p, right=right, counted=counted) -> mx.array:
            q = draft.logits(states).astype(mx.float32)  # [depth, N, V]
            hit = mx.take_along_axis(q, right, axis=2)[..., 0]
            return (counted * (2 * mx.logsumexp(q, axis=-1) - (p * q).sum(axis=-1) - hit)).sum()

        total = total + mx.checkpoint(of_slice)(states[:, part])
    return total / counts.sum()


def new_draft(target: Any, layers: int = 1) -> Any:
    """A draft model to train, with copies of so many of the target's decoder layers, from its last to its first.
    InputError for a target without an encoder, or with fewer layers."""
    if not isinstance(target, EncoderDecoder):
        raise InputError(
            "a decoder-only model has no encoder to draft from: use a public draft model (docs/models.md)"
        )
    count = len(target.decoder.layers)
    if layers > count:
        raise InputError(f"the model has {count} decoder layers, not {layers}")
    copied = np.linspace(count - 1, 0, layers).round().astype(int)[::-1]
    return distilled.from_target(target, copied.tolist())


@dataclass
class Training:
    """Trains a draft model, piece by piece. Iterate to train to the end, when it has its best weights: yields each evaluation
    on held-out texts, the first before any step. InputError for fewer than two texts."""

    target: EncoderDecoder
    draft: Any  # from `new_draft`, or one to train further
    texts: Sequence[TrainingText]
    minutes: float = 30  # at most; it ends earlier if it gains nothing
    steps: int | None = None  # so many instead of the minutes
    batch: int = BATCH  # texts of a step
    # Called whenever the weights in `draft` are better than all before
    on_best: Callable[["Training", Evaluation], None] = lambda training, evaluation: None
    is_worse: bool = field(default=False, init=False)  # at its best, on the draft's `held_out`
    steps_done: int = field(default=0, init=False)
    progress: float = field(default=0.0, init=False)  # 0 to 1
    best: Evaluation | None = field(default=None, init=False)

    def __post_init__(self):
        if self.steps:
            self.minutes = math.inf
        self.max_steps = self.steps or math.inf
        trained_texts, self.held_out = split(self.texts)
        array_prompt = self.target.array_prompt
        self.earlier = [TrainingText(array_prompt(x), *rest) for x, *rest in self.draft.held_out]
        self._held_out = _read_once(self.target, _batches(self.held_out, self.batch))
        self._earlier = _read_once(self.target, _batches(self.earlier, self.batch))
        known = {text.order for text in self.earlier}
        new = [text for text in trained_texts if text.order not in known]
        trained = _batches(new or trained_texts, self.batch)
        self._batches = _epochs(self.target, trained)
        self._ids = sorted({token for text in self.texts for token in text.tokens[text.prefix :]})
        self._narrow_target = self.target.narrowed(mx.array(self._ids))
        # It shares its layers with the full one, and scores the texts' tokens only, as in use.
        self.narrow_draft = self.draft.narrowed(mx.array(self._ids))
        weights = distilled.own_weights(self.narrow_draft)
        self._weights = {name: x.astype(mx.float32) for name, x in weights.items()}
        self._best_weights = self._weights
        self._rate = RATE / len(self._weights["mix.weight"])
        self._optimizer = optimizers.AdamW(self._rate, weight_decay=0.01)
        self._gradient = mx.value_and_grad(self._loss)
        self._mix = MixFit(self.draft, self.target)
        self._to_fit = 0  # batches
        if not self._weights["mix.weight"].any():
            self._to_fit = min(FIT * BATCH // self.batch, len(trained))
        self._is_changed = bool(self._to_fit)
        # Evaluations that go on, and what takes the result
        self._evaluators = [(self._evaluator(self._held_out), self._judge)]
        self._bad_evals = 0  # in a row
        self._began = time.perf_counter()
        self._eval_began = math.inf  # seconds of training; the first evaluation takes none
        self._next_eval = 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @property
    def is_done(self) -> bool:
        return self.progress == 1 and not self._evaluators

    def __iter__(self) -> Iterator[Evaluation]:
        while not self.is_done:
            evaluation = self.advance()
            if evaluation:
                yield evaluation

    def advance(self) -> Evaluation | None:
        """Go on with one batch: fit to it, evaluate on it or train on it. Returns an evaluation once it is complete."""
        if self._to_fit:
            self._fit()
        elif self._evaluators:
            return self._evaluate()
        else:
            self._step()
        return None

    def _fit(self) -> None:
        self._mix.add(next(self._batches))
        self._to_fit -= 1
        if not self._to_fit:
            self._weights["mix.weight"] = self._mix.weights()
            distilled.set_weights(self.narrow_draft, self._weights)

    def _step(self) -> None:
        """Train on the next batch, then perhaps evaluate. InputError if the loss is not finite."""
        # Deeper tokens are right as rarely as the first ones in the beginning, and take longer.
        depth = DEPTH if self.progress > 1 / 3 else 1
        value, gradients = self._gradient(self._weights, next(self._batches), depth)
        if not mx.isfinite(value).item():
            raise InputError(f"the loss is {value.item()} after {self.steps_done} steps")
        gradients, _ = optimizers.clip_grad_norm(gradients, 1.0)
        factor = min((self.steps_done + 1) / min(WARM_UP, self.max_steps / 5), 1 - self.progress)
        self._optimizer.learning_rate = self._rate * factor
        self._weights = self._optimizer.apply_gradients(gradients, self._weights)
        mx.eval(self._weights, self._optimizer.state)
        self.steps_done += 1
        self._is_changed = True
        seconds = self.seconds
        self.progress = min(1, max(self.steps_done / self.max_steps, seconds / 60 / self.minutes))
        if self.progress == 1 or seconds > self._next_eval:
            self._eval_began = seconds
            distilled.set_weights(self.narrow_draft, self._weights)
            self._evaluators = [(self._evaluator(self._held_out), self._judge)]

    def _evaluator(self, batches: Sequence[ReadBatch]) -> Evaluator:
        return Evaluator(self.draft, self.target, batches)

    def _evaluate(self) -> Evaluation | None:
        evaluator, take = self._evaluators[0]
        found = evaluator.advance()
        if not found:
            return None
        del self._evaluators[0]
        take(found)
        if self._evaluators:
            return None
        return self._conclude()

    def _judge(self, evaluation: Evaluation) -> None:
        """Take an evaluation on held-out texts; after several bad ones few steps are left."""
        self._latest = evaluation
        best = self.best
        is_bad = best and evaluation.accuracy <= best.accuracy + GAIN
        self._bad_evals = self._bad_evals + 1 if is_bad else 0
        if self._bad_evals == PATIENCE:
            self.max_steps = min(self.max_steps, 1.5 * self.steps_done)
        longest = max(LENGTHS)
        if not best or evaluation.per_call[longest] >= best.per_call[longest]:
            self.best = evaluation
            self._best_weights = self._weights
            if self.earlier:
                self._evaluators.append((self._evaluator(self._earlier), self._compare))

    def _compare(self, earlier: Evaluation) -> None:
        """Take an evaluation on the draft's `held_out`."""
        self.draft.promised = self.draft.promised or earlier.accuracy
        self.is_worse = earlier.accuracy < self.draft.promised - GAIN

    def _conclude(self) -> Evaluation:
        if self.best is self._latest and self._is_changed:
            self.on_best(self, self.best)
        seconds = self.seconds
        self._next_eval = seconds + max(EVAL_SECONDS, 10 * (seconds - self._eval_began))
        if self.progress == 1:
            distilled.set_weights(self.draft, self._best_weights)
        return self._latest

    def _loss(self, weights: distilled.Weights, batch: TrainingBatch, depth: int) -> mx.array:
        distilled.set_weights(self.narrow_draft, weights)
        labels = np.searchsorted(self._ids, batch.labels)
        return loss(self.narrow_draft, self._narrow_target, batch, labels, depth)


def _batches(texts: Sequence[TrainingText], size: int) -> list[list[TrainingText]]:
    """Batches of texts of similar length."""
    by_length = sorted(texts, key=lambda text: (len(text.tokens), len(text.prompt)))
    return [by_length[i : i + size] for i in range(0, len(by_length), size)]


def _read_once(target: Any, groups: Sequence[Sequence[TrainingText]]) -> list[ReadBatch]:
    return [cache(partial(TrainingBatch.from_texts, target, texts)) for texts in groups]


def _epochs(target: Any, groups: Sequence[Sequence[TrainingText]]) -> Iterator[TrainingBatch]:
    """Batches in a random order, over and over. The target reads one again only if there was no memory to keep it."""
    rng = np.random.default_rng(0)
    kept: dict[int, TrainingBatch] = {}
    while True:
        for i in rng.permutation(len(groups)).tolist():
            batch = kept.get(i) or TrainingBatch.from_texts(target, groups[i])
            if mx.get_active_memory() < CACHE_SHARE * available():
                kept[i] = batch
            yield batch
