"""Training a draft model on its target's texts.

The loss is cross-entropy to the text and KL to the target's distribution (DistillSpec, arXiv 2310.08461), on the texts' own
rows of the vocabulary, and the distance to the target's states (EAGLE, arXiv 2401.15077).
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import mlx.core as mx
import mlx.optimizers as optimizers
import numpy as np

from apps.distillation.batches import SLICE, ReadBatch, TrainingBatch, drafts, fit_mix
from apps.distillation.evaluation import LENGTHS, Evaluation, evaluate
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
        fault = "a decoder-only model has no encoder to draft from"
        raise InputError(f"{fault}: use a public draft model (docs/models.md)")
    count = len(target.decoder.layers)
    if layers > count:
        raise InputError(f"the model has {count} decoder layers, not {layers}")
    copied = np.linspace(count - 1, 0, layers).round().astype(int)[::-1]
    return distilled.from_target(target, copied.tolist())


@dataclass
class Training:
    """Trains a draft model, piece by piece. Iterate to train to the end, when it has its best weights: yields each evaluation
    on held-out texts, the first before any step. After one that `is_news` the draft model has weights better than all before.
    InputError for fewer than two texts."""

    target: EncoderDecoder
    draft: Any  # from `new_draft`, or one to train further
    texts: Sequence[TrainingText]
    minutes: float = 30  # at most; it ends earlier if it gains nothing
    steps: int | None = None  # so many instead of the minutes
    batch: int = BATCH  # texts of a step
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
        self._held_out = self._batched(self.held_out)
        self._earlier = self._batched(self.earlier)
        known = {text.order for text in self.earlier}
        new = [text for text in trained_texts if text.order not in known]
        trained = self._batched(new or trained_texts)
        self._batches = _epochs(trained)
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
        self._is_changed = not self._weights["mix.weight"].any()
        # What goes on before the next step
        self._fit: Iterator[mx.array | None] | None = None
        if self._is_changed:
            some = islice(self._batches, min(FIT * BATCH // self.batch, len(trained)))
            self._fit = fit_mix(self.draft, self.target, some)
        self._evaluation: Iterator[Evaluation | None] | None = self._evaluate()
        self._bad_evals = 0  # in a row
        self._began = time.perf_counter()
        self._eval_began = math.inf  # seconds of training; the first evaluation takes none
        self._next_eval = 0.0

    def _batched(self, texts: Sequence[TrainingText]) -> list[ReadBatch]:
        """Batches of texts of similar length."""
        by_length = sorted(texts, key=lambda text: (len(text.tokens), len(text.prompt)))
        firsts = range(0, len(texts), self.batch)
        return [_reader(self.target, by_length[i : i + self.batch]) for i in firsts]

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @property
    def is_done(self) -> bool:
        return self.progress == 1 and not self._evaluation

    def is_news(self, evaluation: Evaluation) -> bool:
        """Whether an evaluation is the best so far, and not of the draft model as it was given."""
        return evaluation is self.best and self._is_changed

    def __iter__(self) -> Iterator[Evaluation]:
        while not self.is_done:
            evaluation = self.advance()
            if evaluation:
                yield evaluation

    def advance(self) -> Evaluation | None:
        """Go on with one batch: fit to it, evaluate on it or train on it. Returns an evaluation once it is complete."""
        if self._fit:
            mix = next(self._fit)
            if mix is not None:
                self._weights["mix.weight"] = mix
                distilled.set_weights(self.narrow_draft, self._weights)
                self._fit = None
        elif self._evaluation:
            evaluation = next(self._evaluation)
            if evaluation:
                self._judge(evaluation)
            return evaluation
        else:
            self._step()
        return None

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
            self._evaluation = self._evaluate()

    def _evaluate(self) -> Iterator[Evaluation | None]:
        return evaluate(self.draft, self.target, self._held_out, self._earlier)

    def _judge(self, evaluation: Evaluation) -> None:
        """Go by an evaluation; after several bad ones few steps are left."""
        self._evaluation = None
        is_bad = self.best and evaluation.accuracy <= self.best.accuracy + GAIN
        self._bad_evals = self._bad_evals + 1 if is_bad else 0
        if self._bad_evals == PATIENCE:
            self.max_steps = min(self.max_steps, 1.5 * self.steps_done)
        longest = max(LENGTHS)
        if not self.best or evaluation.per_call[longest] >= self.best.per_call[longest]:
            self.best = evaluation
            self._best_weights = self._weights
            self.draft.promised = self.draft.promised or evaluation.earlier
            self.is_worse = evaluation.earlier < self.draft.promised - GAIN
        seconds = self.seconds
        self._next_eval = seconds + max(EVAL_SECONDS, 10 * (seconds - self._eval_began))
        if self.progress == 1:
            distilled.set_weights(self.draft, self._best_weights)

    def _loss(self, weights: distilled.Weights, batch: TrainingBatch, depth: int) -> mx.array:
        distilled.set_weights(self.narrow_draft, weights)
        labels = np.searchsorted(self._ids, batch.labels)
        return loss(self.narrow_draft, self._narrow_target, batch, labels, depth)


def _reader(target: Any, texts: Sequence[TrainingText]) -> ReadBatch:
    """What reads a batch. The target reads it again only if there was no memory to keep it."""
    kept: list[TrainingBatch] = []

    def read() -> TrainingBatch:
        if kept:
            return kept[0]
        batch = TrainingBatch.from_texts(target, texts)
        if mx.get_active_memory() < CACHE_SHARE * available():
            kept.append(batch)
        return batch

    return read


def _epochs(batches: Sequence[ReadBatch]) -> Iterator[TrainingBatch]:
    """Batches in a random order, over and over."""
    rng = np.random.default_rng(0)
    while True:
        for i in rng.permutation(len(batches)).tolist():
            yield batches[i]()
