"""A draft model that makes itself while the work runs: it learns from finished texts, where the work that is left pays for it.
Online speculative decoding (Liu et al. 2023, arXiv 2310.07177) and Aurora (2026, arXiv 2602.06932) do so on servers."""

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from apps.distillation.batches import TrainingBatch
from apps.distillation.evaluation import Evaluation, accuracy, call_times
from apps.distillation.folder import save, trained_draft
from apps.distillation.texts import TrainingText
from apps.distillation.training import BATCH, CACHE_SHARE, Training, new_draft
from speculative.common.errors import InputError, first_line
from speculative.common.reporting import reporter
from speculative.models import distilled
from speculative.models.ram import available
from speculative.step.row import Row, Stats
from speculative.step.timing import CallTimes

FIRST = 64  # texts to learn from at first; then again whenever they have doubled
CHECKED = 8  # the latest texts, of each FIRST, on which the draft model is checked
WORSE = 0.7  # of its accuracy on some before: these are of another kind
FASTER = 1.1  # the speed-up for which a draft model that is only fitted is used
MAX_TEXTS = 4096  # the latest, to learn from
EPOCHS = 10
MAX_STEPS = 400
TRIED = 3  # steps after which the seconds of training are known
DEEPER = 2  # how much longer its steps take in the mean
FITTED = 32  # texts of which training would make what a draft model is that is only fitted
FALLING = 0.75  # share of the errors that is left once the texts have doubled
SERVER_BATCH = 4  # texts of a step
SLICE_SECONDS = 0.3  # of training at a time, in a server
MAX_SLOW = 3  # pieces in a row that take longer: a single one may be chance
COPIES = 5  # of the draft model's weights, in float32, that training takes


class Learner:
    """Holds the texts that are finished, and a draft model that learns from them. It lives as long as the decoder."""

    def __init__(self, target: Any, name: str, folder: Path, serves: bool = False):
        """name: of the target; serves: `idle` alone trains, whether it pays or not. InputError if it cannot be trained here."""
        trained = trained_draft(folder, target)
        self.draft = trained or new_draft(target)
        size = sum(weight.size for weight in distilled.own_weights(self.draft).values())
        if mx.get_active_memory() + 4 * COPIES * size > 0.9 * available():
            raise InputError("not enough memory to train a draft model")
        self.draft.learner = self
        self.version = 1 if trained else 0  # one more with every new set of weights
        # Characters of all prompts of the work, or its windows of sound; inf, not known: as much is left as was done
        self.total = math.inf
        self._target, self._name, self._folder = target, name, folder
        self._promised = self.draft.accuracy
        # The folder has no texts on which a draft model could be measured: an older version made it, or a server
        self._is_older = trained is not None and not (trained.held_out or serves)
        self._is_apart = False  # better for this run than the one in the folder, and worse for the texts of that one
        self._texts: list[TrainingText] = []
        self._count = 0  # texts of this kind so far
        self._next_check: float = FIRST  # at that many
        self._next_training = FIRST
        self._best_accuracy = 0.0  # of a check
        self._before = Stats()  # of texts without a trained draft model
        self._after = Stats()  # with one
        self._rows = 1  # that are decoded together
        self._done = 0  # as `total` counts
        self._began = time.perf_counter()
        # A time, and what was done then: since when the pace is measured
        self._since = self._began, 0
        self._paused = self._began  # the last time that the work stood still
        self._training_seconds = 0.0
        self._step_seconds = 0.0
        self._learned_from = FITTED  # texts
        self._evaluation: Evaluation | None = None  # of the draft model as it is
        self._times: CallTimes | None = None
        self._serves = serves
        self._batch = SERVER_BATCH if serves else BATCH
        self._slow = 0  # pieces in a row
        self._pieces: Iterator[Any] | None = None  # of training that has begun

    def learn(self, row: Row, seen: tuple[mx.array, mx.array]) -> None:
        """Take a row that finished, with what the target has seen of it (see `TrainingText`)."""
        self._done += len(row.prompt_text) or 1
        if len(row.generated) < 2:  # nothing, or a language that was detected
            return
        has_memory = mx.get_active_memory() < CACHE_SHARE * available()
        self._texts.append(TrainingText.from_row(row, seen if has_memory else None))
        del self._texts[:-MAX_TEXTS]
        self._count += 1
        if self.version:
            self._after += row.stats
        else:
            self._before += row.stats

    def train(self, rows: int) -> None:
        """Between the steps, of so many rows, of work that ends: train if it is time to look whether that pays, and it does."""
        self._rows = rows
        self._paused = time.perf_counter()
        if self._serves or not self._advance():
            return
        while self._advance():
            pass
        self._since = time.perf_counter(), self._done
        self._training_seconds += time.perf_counter() - self._paused

    def idle(self) -> bool:
        """While a server has nothing to do: train for one piece; return whether there was something to do."""
        began = time.perf_counter()
        has_trained = self._advance()
        is_slow = time.perf_counter() - began > SLICE_SECONDS
        self._slow = self._slow + 1 if is_slow else 0
        if self._slow == MAX_SLOW:  # begin again with fewer texts at a time
            self._slow = 0
            self._batch //= 2
            self._pieces = None
            self._next_check = self._next_training = self._count
            if not self._batch:
                self._stop("training takes too long here to go on between requests")
        return has_trained

    def _advance(self) -> bool:
        """Train for one piece; return whether there was something to do."""
        if not self._pieces and self._count < self._next_check:
            return False
        try:
            self._pieces = self._pieces or self._session([*self._texts])
            next(self._pieces)
        except StopIteration:
            self._pieces = None
        except Exception as error:  # whatever it is, the work goes on
            self._pieces = None
            self._stop(f"the draft model learns no more: {first_line(error)}")
        return True

    def _stop(self, reason: str) -> None:
        self._next_check = math.inf
        reporter.note(reason)

    def _session(self, texts: Sequence[TrainingText]) -> Iterator[Any]:
        """Train on these texts, piece by piece, if they have doubled or are of another kind, unless it does not pay."""
        texts = self._of_one_kind(texts)
        self._next_check = self._count + FIRST
        if self._count < self._next_training:
            return
        self._next_training = 2 * self._count
        left = self.total - self._done if math.isfinite(self.total) else self._done
        steps = min(MAX_STEPS, EPOCHS * len(texts) // BATCH) * BATCH // self._batch
        if not self._pays(len(texts), steps, left):
            return
        training = self._training(texts, steps)
        if not (self._times or self._serves):
            self._times = call_times(
                training.narrow_draft, self._target, texts[0].prompt, self._rows
            )
        pieces = training.pieces()
        while not training.best:
            yield next(pieces)
        self._evaluation = training.best
        if self._promised and training.best.accuracy > self._promised - 0.05:
            return
        while training.steps_done < TRIED and self._pays(len(texts), steps, left):
            began = time.perf_counter()
            yield next(pieces)
            self._step_seconds = time.perf_counter() - began
        if not self._pays(len(texts), steps, left):
            return
        yield from pieces
        self._evaluation = training.best
        self._learned_from = len(texts)
        self._promised = 0.0  # from now on more texts may make it better
        learned = f"learned from {len(texts)} texts in {training.seconds:.0f} s"
        kept = f"kept in {self._folder}"
        if self._is_apart:
            other = f"the one in {self._folder} may be better on the texts that it was made from"
            kept = f"for this run only: {other} (--distill FOLDER keeps both)"
        reporter.note(f"draft model: {learned}; {training.best}; {kept}")

    def _training(self, texts: Sequence[TrainingText], steps: int) -> Training:
        """Of the draft model as it is, in a copy. InputError if there is another one in the folder now."""
        draft = trained_draft(self._folder, self._target) or new_draft(self._target)
        if draft.layers != self.draft.layers:
            raise InputError(f"{self._folder} holds another draft model now")
        if self._is_apart:
            distilled.set_weights(draft, distilled.own_weights(self.draft))
        draft.held_out = self.draft.held_out  # of earlier runs
        draft.promised = self.draft.promised
        return Training(
            self._target, draft, texts, steps=steps, batch=self._batch, on_best=self._take
        )

    def _of_one_kind(self, texts: Sequence[TrainingText]) -> Sequence[TrainingText]:
        """These texts or, if the draft model drafts the latest much worse than some before, these alone, to begin anew."""
        if not self.version:
            return texts
        now = accuracy(self.draft, TrainingBatch.from_texts(self._target, texts[-CHECKED:]))
        self._best_accuracy = max(self._best_accuracy, now)
        if now >= WORSE * self._best_accuracy:
            return texts
        del self._texts[:-FIRST]
        self._count = self._next_training = len(self._texts)
        self._best_accuracy = 0.0
        self._learned_from = FITTED
        self._evaluation = None
        return [*self._texts]

    def _pays(self, texts: int, steps: int, left: float) -> bool:
        """Whether what is left, as `total` counts it, pays for these steps of training on so many texts, as far as is known:
        the seconds of a step are those of the last one, 0 before the first."""
        if self._serves:
            return True
        if not self._evaluation:  # to look takes about as long as to decode so many texts
            return left * self._count >= FIRST * self._rows * self._done
        assert self._times
        since, done = self._since
        seconds = left * (self._paused - since) / max(1, self._done - done)
        errors_left = FALLING ** math.log2(texts / self._learned_from)
        after = self._evaluation.improved(errors_left).speedup(self._times)
        gain = seconds * (1 - self._evaluation.speedup(self._times) / after)
        return gain > steps * DEEPER * self._step_seconds

    def _take(self, training: Training, evaluation: Evaluation) -> None:
        """Decode with a better draft model, and save it if it has been trained and not only fitted."""
        times = self._times
        if not training.steps_done and times and evaluation.speedup(times) < FASTER:
            return
        dtype = distilled.type_of(self._target)
        weights = distilled.stored_weights(training.draft, dtype)
        mx.eval(weights)  # what is lazy can only be computed by the thread that made it
        distilled.set_weights(self.draft, weights)
        self.version += 1
        self.draft.promised = training.draft.promised
        if training.steps_done:
            self._is_apart = training.is_worse or self._is_older
            held_out = training.held_out
            if self._serves:  # what others ask stays in memory
                held_out = []
            if not self._is_apart:
                save(training, self._name, self._folder, dtype, held_out)

    def report(self) -> None:
        """Say what came of it, if anything was decoded with it."""
        after, before = self._after, self._before
        if not after.tokens:
            return
        line = f"draft model: {after.tokens_per_call:.2f} tokens a call, {after.tokens_per_second:.1f} tokens/s"
        if before.tokens:
            seconds = time.perf_counter() - self._began
            pace = before.tokens_per_second
            plain = seconds - self._training_seconds - after.seconds + after.tokens / pace
            line += (
                f"; before it, {before.tokens_per_call:.2f} and {pace:.1f}; trained for {self._training_seconds:.0f} s; "
                f"{seconds:.0f} s in all, without it {plain:.0f} s (computed)"
            )
        reporter.note(line)
