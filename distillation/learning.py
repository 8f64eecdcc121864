"""A draft model that makes itself while the work runs: it learns from texts that are finished, and trains where the work that is
left pays for it. Online speculative decoding (Liu et al. 2023, arXiv 2310.07177) and Aurora (2026, arXiv 2602.06932) do so on
servers.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from checkpoints.folder import read_json
from common.errors import InputError
from common.reporting import reporter
from decoder import load
from distillation.batches import TrainingBatch
from distillation.evaluation import CallCosts, Evaluation, evaluate, finished
from distillation.texts import TrainingText
from distillation.training import BATCH, CACHE_SHARE, Training, new_draft
from families import distilled
from families.ram import available
from speculative.cache import CrossCache
from speculative.cached_model import CachedModel
from speculative.draft import Candidate
from speculative.drafting import Drafter, DrafterAround
from speculative.model import TokenLists
from speculative.row import Row, Stats

FIRST = 64  # texts to learn from at first; then again whenever they have doubled
MANY = 3  # times as much work must be left before it is tried what training takes
MAX_TEXTS = 4096  # the latest, to learn from
EPOCHS = 10
MAX_STEPS = 400
TRIED = 3  # steps after which the seconds of training are known
DEEPER = 2.5  # how much longer its later steps take
EXPECTED = 0.5  # accuracy of a first draft model
FALLING = 0.75  # what is left of its errors once the texts have doubled
WORSE = 0.7  # of the tokens a call: the texts are of another kind
SLICE_SECONDS = 0.3  # of training at a time, in a server
MAX_SLOW = 3  # pieces in a row that take longer: a single one may be chance
COPIES = 5  # of the draft model's weights, in float32, that training takes


def draft_folder(model: Path) -> Path:
    """The usual folder of a converted model's draft model."""
    return model.with_name(f"{model.name}-draft")


def trained_draft(folder: Path, model: Any, layers: int = 1) -> Any:
    """The draft model of `model` in a folder; None if there is none. InputError if there is something else."""
    if not folder.exists() or not any(folder.iterdir()):
        return None
    config = folder / "config.json"
    if not config.exists() or read_json(config).get("model_type") != distilled.KIND:
        raise InputError(f"{folder} is something else: remove it, or choose another folder")
    draft, _ = load(folder)
    count = len(draft.layers)
    if count != layers:
        raise InputError(f"{folder} has --layers {count}: say so, or choose another --output")
    return draft.for_target(model)


class Learner:
    """Holds the texts that are finished, and a draft model that learns from them. It lives as long as the decoder.

    draft: to decode with, once `is_trained`; its weights are replaced by better ones
    total: characters of all prompts of the work, or its windows of sound; None: as much is left as was done
    version: how often the weights were replaced
    """

    def __init__(self, target: Any, name: str, folder: Path, serves: bool = False):
        """name: of the target; serves: `idle` alone trains. InputError for a model without an encoder, too little memory, or a
        folder with something else."""
        trained = trained_draft(folder, target)
        self.draft = trained or new_draft(target)
        size = sum(weight.size for weight in distilled.own_weights(self.draft).values())
        if mx.get_active_memory() + 4 * COPIES * size > 0.9 * available():
            raise InputError("not enough memory to train a draft model")
        self.is_trained = trained is not None
        self.total: float | None = None
        self.version = 0
        self._target, self._name, self._folder = target, name, folder
        self._promised = read_json(folder / "config.json").get("accuracy") if trained else None
        self._texts: list[TrainingText] = []
        self._new = 0  # texts since the last look
        self._next_look = FIRST
        self._recent = deque[Stats](maxlen=FIRST)
        self._best_rate = 0.0  # tokens a call
        self._rows = 1
        self._done = 0  # as `total` counts
        self._began = time.perf_counter()
        # A time, and what was done then: since when the pace is measured
        self._since = self._began, 0
        self._training_seconds = 0.0
        self._step_seconds = 0.0
        self._costs: CallCosts | None = None
        self._first_texts = 0
        self._before = Stats()  # of texts without a trained draft model
        self._after = Stats()  # with one
        self._batch = 4  # texts in a piece, in a server
        self._serves = serves
        self._slow = 0  # pieces in a row
        self._pieces: Iterator[None] | None = None
        self._stopped = False

    def drafter(self, inner: Drafter) -> Drafter:
        return LearningDrafter(inner, self)

    # What finishes

    def learn(self, rows: Sequence[tuple[Row, Any]], batch_size: int) -> None:
        """Take rows that finished, each with what the target has seen of it (see `TrainingText`)."""
        self._rows = batch_size
        for row, seen in rows:
            self._done += len(row.prompt_text) or 1
            if len(row.generated) < 2:  # nothing, or a language that was detected
                continue
            self._texts.append(replace(TrainingText.from_row(row), seen=seen))
            self._new += 1
            self._recent.append(row.stats)
            if self.is_trained:
                self._after += row.stats
            else:
                self._before += row.stats
        while len(self._texts) > MAX_TEXTS or (
            len(self._texts) > FIRST and mx.get_active_memory() > CACHE_SHARE * available()
        ):
            del self._texts[0]
        if rows and self.is_trained and len(self._recent) == FIRST:
            self._notice_change()

    def _notice_change(self) -> None:
        """Begin anew with the latest texts if drafts of these fare much worse."""
        rate = sum(each.tokens for each in self._recent) / sum(
            each.target_calls for each in self._recent
        )
        self._best_rate = max(self._best_rate, rate)
        if rate < WORSE * self._best_rate:
            del self._texts[:-FIRST]
            self._next_look = FIRST
            self._best_rate = 0.0
            self._recent.clear()

    # Training between the steps of work that ends

    def train(self) -> None:
        """Train if it is time to look whether that pays, and it does."""
        if self._serves or self._stopped or len(self._texts) < self._next_look:
            return
        began = time.perf_counter()
        try:
            self._look()
        except (InputError, OSError, RuntimeError, MemoryError) as error:
            self._stopped = True
            reporter.note(f"the draft model learns no more: {error}")
        self._training_seconds += time.perf_counter() - began
        self._since = time.perf_counter(), self._done

    def _look(self) -> None:
        left = self._left()
        self._next_look = 2 * len(self._texts)
        new, self._new = self._texts[-min(self._new, 2 * BATCH) :], 0
        if self.total is not None and not self._costs and left < MANY * self._done:
            return
        accuracy = 0.0
        if self.is_trained:
            batch = TrainingBatch.from_texts(self._target, new)
            accuracy = finished(evaluate(self.draft, self._target, [batch])).accuracy
        if self._promised and accuracy > self._promised - 0.05:
            return
        expected = max(EXPECTED, 1 - FALLING * (1 - accuracy), self._promised or 0.0)
        training = self._training(BATCH)
        if self._step_seconds and not self._pays(training, accuracy, expected):
            return
        for _ in self._run(training):
            if training.steps_done == TRIED and not self._step_seconds:
                self._costs = training.costs
                self._step_seconds = training.step_seconds
                if not self._pays(training, accuracy, expected):
                    return

    def _left(self) -> float:
        """What is left of the work, as `total` counts it."""
        return self._done if self.total is None else max(0.0, self.total - self._done)

    def _pays(self, training: Training, accuracy: float, expected: float) -> bool:
        """Whether what is left pays for training from this accuracy to the other."""
        assert self._costs and training.steps
        since, done = self._since
        seconds = self._left() * (time.perf_counter() - since) / max(1, self._done - done)
        before, after = (
            Evaluation.of_accuracy(each).speedup(self._costs) for each in (accuracy, expected)
        )
        return seconds * (1 - before / after) > training.steps * DEEPER * self._step_seconds

    def _training(self, batch: int) -> Training:
        draft = trained_draft(self._folder, self._target) if self.is_trained else None
        texts = [*self._texts]
        steps = min(MAX_STEPS, EPOCHS * len(texts) // BATCH) * BATCH // batch
        return Training(
            self._target,
            draft or new_draft(self._target),
            texts,
            steps=steps,
            resumes=draft is not None,
            batch=batch,
            rows=self._rows,
        )

    def _run(self, training: Training) -> Iterator[None]:
        """Train piece by piece; what is better is saved and decoded with."""
        texts = len(training.texts)
        for evaluation in training.pieces():
            if evaluation and training.best is evaluation:
                self._take(training, evaluation)
            yield
        best = training.best
        if best and self.version:
            self._promised = None  # from now on more texts may make it better
            self._costs = training.costs if self._costs else None
            calls = best.per_call[max(best.per_call)]
            reporter.note(
                f"draft model: learned from {texts} texts in {training.seconds:.0f} s; {best.accuracy:.0%} of held-out tokens right, "
                f"{calls:.1f} tokens a call"
            )

    def _take(self, training: Training, evaluation: Evaluation) -> None:
        """Save the draft model as it is, and decode with it."""
        dtype = distilled.type_of(self._target)
        accuracy = evaluation.accuracy
        distilled.save(training.draft, self._target, self._name, self._folder, dtype, accuracy)
        saved, _ = load(self._folder)
        distilled.set_weights(self.draft, saved.weights)
        self._first_texts = self._first_texts or len(training.texts)
        self.is_trained = True
        self.version += 1

    # Training while a server has nothing to do

    def idle(self) -> bool:
        """Train for one piece; return whether there was something to do."""
        if self._stopped or (not self._pieces and len(self._texts) < self._next_look):
            return False
        began = time.perf_counter()
        try:
            if not self._pieces:
                self._pieces = self._run(self._training(self._batch))
            ended = next(self._pieces, self) is self
        except (InputError, OSError, RuntimeError, MemoryError) as error:
            self._stopped = True
            reporter.note(f"the draft model learns no more: {error}")
            return False
        if ended:
            self._pieces = None
            self._next_look = 2 * len(self._texts)
        is_slow = time.perf_counter() - began > SLICE_SECONDS
        self._slow = self._slow + 1 if is_slow and not ended else 0
        if self._slow == MAX_SLOW:  # begin again with fewer texts at a time
            self._slow = 0
            self._pieces = None
            self._stopped = self._batch == 1
            self._batch //= 2
            if self._stopped:
                reporter.note("training takes too long here to go on between requests")
        return True

    def summary(self) -> str | None:
        """What came of it, in a line; None: nothing was trained."""
        after, before = self._after, self._before
        if not (self.is_trained and after.tokens):
            return None
        line = f"draft model: {after.tokens_per_call:.2f} tokens a call, {after.tokens / after.seconds:.1f} tokens/s"
        if not (before.tokens and self.version):
            return line
        pace = before.seconds / before.tokens
        seconds = time.perf_counter() - self._began
        plain = seconds - self._training_seconds - after.seconds + pace * after.tokens
        return (
            f"{line}; before it, {before.tokens_per_call:.2f} and {1 / pace:.1f}; trained for {self._training_seconds:.0f} s, "
            f"first on {self._first_texts} texts; {seconds:.0f} s in all, without it {plain:.0f} s (computed)"
        )


class LearningDrafter(DrafterAround):
    """Drafts as another drafter does, with a draft model only once its learner has trained it."""

    def __init__(self, inner: Drafter, learner: Learner):
        super().__init__(inner)
        self._learner = learner

    def follow(self, target: CachedModel) -> None:
        self._target = target
        super().follow(target)

    def candidates(self, contexts: TokenLists) -> list[list[Candidate]]:
        offered = super().candidates(contexts)
        if not self._learner.is_trained:
            return [[each for each in of_row if each.copy] for of_row in offered]
        # The schedule judges a better draft model anew.
        version = self._learner.version
        return [
            [
                each if each.copy else replace(each, drafter=f"{each.drafter} {version}")
                for each in of_row
            ]
            for of_row in offered
        ]

    def learn(self, done: Sequence[Row]) -> None:
        super().learn(done)
        self._learner.learn([(row, self._seen(row)) for row in done], len(self._batch))
        if not done:  # what has finished is in the journal by now
            self._learner.train()

    def _seen(self, row: Row) -> tuple[mx.array, mx.array]:
        """The encoder's output and the states of a row's tokens, which the target has at hand."""
        cache = self._target.cache
        assert isinstance(cache, CrossCache)
        b = self._batch.index(row)
        encoded, mask = cache.encoded([b])
        positions = np.tile(np.arange(len(row.tokens), dtype=np.int32), (len(self._batch), 1))
        states = cache.states(positions)
        assert states is not None
        seen = encoded[0][mx.array(np.flatnonzero(mask))], states[b]
        mx.eval(seen)
        return seen
