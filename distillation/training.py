"""Training a draft model on its target's texts.

The loss is cross-entropy to the text and KL to the target's distribution (DistillSpec, Zhou et al. 2023, arXiv
2310.08461), on the texts' own rows of the vocabulary.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.optimizers as optimizers
import numpy as np
from tokenizers import Tokenizer

from common.errors import InputError
from distillation.lessons import SLICE, Lesson, drafts
from distillation.promise import LENGTHS, Costs, Promise, measure
from distillation.texts import Text, read_texts, split
from families import distilled
from families.ram import available
from text.memory import Pair
from transformer import EncoderDecoder

BATCH = 16  # texts
DEPTH = 3  # drafted tokens in training
RATE = 1e-3
WARM_UP = 50  # steps
PATIENCE = 3  # looks in a row that bring less than GAIN, after which the rate falls to 0 in half as many steps again
GAIN = 0.002
LOOK_SECONDS = 30
# Of the memory: while there is so much, the target need not see the same texts again
LESSON_MEMORY = 0.6


@dataclass(frozen=True)
class Look:
    """How far training is. share: of its way, 0 to 1; seconds: so far."""

    step: int
    seconds: float
    share: float
    promise: Promise
    speedup: float
    best: bool  # and so on disk


def loss(draft: Any, target: Any, lesson: Lesson, labels: np.ndarray, depth: int) -> mx.array:
    """The mean over all drafted tokens. labels [B, T]: the next tokens' columns in both models' logits."""
    width = lesson.states.shape[-1]
    place = np.flatnonzero(lesson.drafted(0))
    counts = np.stack([lesson.drafted(m).ravel()[place] for m in range(depth)])  # [depth, N]
    own = mx.stack([states.reshape(-1, width) for states in drafts(draft, lesson, depth)])
    total = mx.array(0.0)
    for i in range(0, len(place), SLICE):
        part = mx.array(place[i : i + SLICE])
        theirs = lesson.states.reshape(-1, width)[part]
        p = mx.softmax(target.logits(theirs[None])[0].astype(mx.float32), axis=-1)
        right = mx.array(labels.ravel()[place[i : i + SLICE]])[None, :, None]
        counted = mx.array(counts[:, i : i + SLICE])

        def of_slice(own: mx.array, p=p, right=right, counted=counted) -> mx.array:
            q = draft.logits(own).astype(mx.float32)  # [depth, N, V]
            hit = mx.take_along_axis(q, right, axis=2)[..., 0]
            return (counted * (2 * mx.logsumexp(q, axis=-1) - (p * q).sum(axis=-1) - hit)).sum()

        total = total + mx.checkpoint(of_slice)(own[:, part])
    return total / counts.sum()


def check_target(model: Any, layers: int | Sequence[int]) -> None:
    """InputError for a model without an encoder, or with fewer decoder layers."""
    if not isinstance(model, EncoderDecoder):
        raise InputError(
            "a decoder-only model has no encoder to draft from: use a public draft model (docs/models.md)"
        )
    count = len(model.decoder.layers)
    if isinstance(layers, int) and layers > count:
        raise InputError(f"the model has {count} decoder layers, not {layers}")


def distill(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    pairs: Iterable[Pair] | Sequence[Text],
    layers: int | Sequence[int] = 1,
    minutes: float = 30,
    steps: int | None = None,
    start: Any = None,
    on_look: Callable[[Look, Any], object] = lambda look, draft: None,
) -> Any:
    """Make a draft model of `model` from texts that it has written; return the best one on held-out texts.

    layers: how many decoder layers it has, copies of the target's from its last to its first, or which
    minutes: the most it may take; steps: this many instead
    start: a draft model of `model` to go on with
    on_look: called about every half minute, with the draft model as it is; look.best: better than all before
    InputError for a model without an encoder or with fewer layers, fewer than two texts that it can use, or NaN.
    """
    check_target(model, layers)
    each: list[Any] = list(pairs)
    given = all(isinstance(pair, Text) for pair in each)
    texts: list[Text] = each if given else read_texts(model, tokenizer, each)
    count = len(model.decoder.layers)
    if isinstance(layers, int):
        layers = np.linspace(count - 1, 0, layers).round().astype(int)[::-1].tolist()
    draft = start or distilled.from_target(model, layers)
    return _Training(model, draft, texts, on_look, start is not None).run(minutes * 60, steps)


@dataclass
class _Training:
    target: Any
    draft: Any
    texts: Sequence[Text]
    on_look: Callable[[Look, Any], object]
    resumes: bool  # goes on with a draft model that is trained already
    share: float = 0.0  # the greatest so far
    per_call: float = 0.0  # tokens a call of the best state
    vain: int = 0  # looks in a row that brought too little
    _lessons: dict[int, Lesson] = field(default_factory=dict)  # by the group's id

    def run(self, seconds: float, steps: int | None) -> Any:
        trained, held_out = split(self.texts)
        groups = _groups(trained)
        held_out = [Lesson.of(self.target, group) for group in _groups(held_out)]
        ids = sorted({token for text in self.texts for token in text.tokens[text.prefix :]})
        columns = np.zeros(self.target.config.vocab_size, np.int32)
        columns[ids] = np.arange(len(ids))
        target = self.target.narrowed(mx.array(ids))
        draft = self.draft.narrowed(mx.array(ids))  # shares its layers with the whole one
        weights = {k: x.astype(mx.float32) for k, x in distilled.own_weights(draft).items()}
        best = weights
        if self.resumes:
            promise = measure(self.draft, self.target, held_out)
            self.share = promise.share
            self.per_call = promise.per_call[max(LENGTHS)]
        costs = Costs.of(self.draft, self.target, held_out[0])

        def loss_of(weights: distilled.Weights, lesson: Lesson, depth: int) -> mx.array:
            distilled.set_weights(draft, weights)
            return loss(draft, target, lesson, columns[lesson.labels], depth)

        gradient = mx.value_and_grad(loss_of)
        optimizer = optimizers.AdamW(RATE, weight_decay=0.01)
        began = looked = time.perf_counter()
        look_seconds = 0.0
        plateau = 0  # the step from which the rate falls faster
        fall = 0.0  # by which its share falls in each step since
        for step, group in enumerate(_epochs(groups)):
            now = time.perf_counter()
            gone = step / steps if steps else (now - began) / seconds
            gone = min(1.0, gone + fall * (step - plateau))
            if step and (gone >= 1 or now - looked > max(LOOK_SECONDS, 10 * look_seconds)):
                distilled.set_weights(draft, weights)
                promise = measure(self.draft, self.target, held_out)
                if self._look(step, now - began, gone, promise, costs):
                    best = weights
                looked = time.perf_counter()
                look_seconds = looked - now
                if gone >= 1:
                    break
                if self.vain == PATIENCE and not plateau:
                    plateau = step
                    fall = 2 * (1 - gone) / step
            # Deeper tokens are right as rarely as the first ones in the beginning, and take longer.
            depth = DEPTH if plateau or gone > 1 / 3 else 1
            value, gradients = gradient(weights, self._lesson(group), depth)
            if not mx.isfinite(value).item():
                raise InputError(f"the loss is {value.item()} after {step} steps")
            gradients, _ = optimizers.clip_grad_norm(gradients, 1.0)
            optimizer.learning_rate = RATE * min((step + 1) / WARM_UP, 1 - gone)
            weights = optimizer.apply_gradients(gradients, weights)
            mx.eval(weights, optimizer.state)
        distilled.set_weights(self.draft, best)
        return self.draft

    def _look(self, step: int, seconds: float, gone: float, promise: Promise, costs: Costs) -> bool:
        """Report how far training is; return whether this is the best state so far."""
        self.vain = 0 if promise.share > self.share + GAIN else self.vain + 1
        self.share = max(self.share, promise.share)
        best = promise.per_call[max(LENGTHS)] > self.per_call
        self.per_call = max(self.per_call, promise.per_call[max(LENGTHS)])
        self.on_look(Look(step, seconds, gone, promise, promise.speedup(costs), best), self.draft)
        return best

    def _lesson(self, group: Sequence[Text]) -> Lesson:
        """The lesson of a group, kept for the next time while there is memory."""
        key = id(group)
        if key in self._lessons:
            return self._lessons[key]
        lesson = Lesson.of(self.target, group)
        if mx.get_active_memory() < LESSON_MEMORY * available():
            self._lessons[key] = lesson
        return lesson


def _groups(texts: Sequence[Text]) -> list[list[Text]]:
    """Batches of texts of similar length."""
    by_length = sorted(texts, key=lambda text: (len(text.tokens), len(text.prompt)))
    return [by_length[i : i + BATCH] for i in range(0, len(by_length), BATCH)]


def _epochs(groups: list[list[Text]]) -> Iterator[list[Text]]:
    """All groups in a random order, over and over."""
    rng = np.random.default_rng(0)
    while True:
        for i in rng.permutation(len(groups)):
            yield groups[i]
