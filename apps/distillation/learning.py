"""A draft model that makes itself while the work runs: it learns from finished texts, where the work that is left pays for it.
Online speculative decoding (Liu et al. 2023, arXiv 2310.07177) and Aurora (2026, arXiv 2602.06932) do so on servers."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from apps.distillation.batches import TrainingBatch
from apps.distillation.evaluation import Evaluation, accuracy, call_times
from apps.distillation.folder import save, trained_draft
from apps.distillation.forecast import FITTED, Measured, pays
from apps.distillation.kept_texts import CHECKED, KeptTexts
from apps.distillation.texts import TrainingText
from apps.distillation.training import BATCH, CACHE_SHARE, Training, new_draft
from apps.distillation.work import Work
from speculative.common.errors import InputError, first_line
from speculative.common.reporting import reporter
from speculative.models import contract, distilled
from speculative.models.ram import available
from speculative.step.row import Row

FASTER = 1.1  # the speed-up for which a draft model that is only fitted is used
EPOCHS = 10
MAX_STEPS = 400
TRIED = 3  # steps after which the seconds of training are known
NEARLY = 0.05  # accuracy: a draft model that drafts so little worse than when it was made has nothing to learn
SERVER_BATCH = 4  # texts of a step
SLICE_SECONDS = 0.3  # of training at a time, in a server
MAX_SLOW = 3  # pieces in a row that take longer: a single one may be chance
COPIES = 5  # of the draft model's weights, in float32, that training takes


class Learner(contract.Learner):
    """A draft model that learns from the texts that are finished. It lives as long as the decoder."""

    def __init__(self, target: Any, name: str, folder: Path, serves: bool = False):
        """name: of the target; serves: `idle` alone trains, whether it pays or not. InputError if it cannot be trained here."""
        trained = trained_draft(folder, target)
        self.draft = trained or new_draft(target)
        size = sum(weight.size for weight in distilled.own_weights(self.draft).values())
        if mx.get_active_memory() + 4 * COPIES * size > 0.9 * available():
            raise InputError("not enough memory to train a draft model")
        self.draft.learner = self
        self.version = int(trained is not None)
        self._target = target
        self._name = name
        self._folder = folder
        self._serves = serves
        # The folder has no texts on which a draft model could be measured: a server made it
        self._is_unmeasured = trained is not None and not (trained.held_out or serves)
        self._is_apart = False  # better for this run than the one in the folder, and worse for the texts of that one
        self._texts = KeptTexts()
        self._work = Work()
        self._measured = Measured()
        self._training: Training | None = None  # that has begun
        self._batch = SERVER_BATCH if serves else BATCH
        self._slow = 0  # pieces in a row

    def finished(self, row: Row, seen: contract.Seen | None) -> None:
        self._work.done += len(row.prompt_text) or 1
        if len(row.generated) < 2:  # nothing, or a language that was detected
            return
        if mx.get_active_memory() >= CACHE_SHARE * available():
            seen = None
        self._texts.add(TrainingText.from_row(row, seen))
        self._work.add(row.stats, self.version > 0)

    def between_steps(self, rows: int) -> None:
        """Train to the end if it is time to look whether that pays, and it does."""
        self._work.pause(rows)
        if self._serves or not self._advance():
            return
        while self._advance():
            pass
        self._work.go_on()

    def idle(self) -> bool:
        began = time.perf_counter()
        has_trained = self._advance()
        is_slow = time.perf_counter() - began > SLICE_SECONDS
        self._slow = self._slow + 1 if is_slow else 0
        if self._slow == MAX_SLOW:  # begin again with fewer texts at a time
            self._slow = 0
            self._batch //= 2
            self._training = None
            self._texts.retry()
            if not self._batch:
                self._stop("training takes too long here to go on between requests")
        return has_trained

    def report(self) -> None:
        self._work.report()

    def _stop(self, reason: str) -> None:
        self._training = None
        self._texts.close()
        reporter.note(reason)

    def _advance(self) -> bool:
        """Train for one piece; return whether there was something to do."""
        if not (self._training or self._texts.are_due):
            return False
        try:
            if self._training:
                self._go_on(self._training)
            else:
                self._training = self._begin()
        except Exception as error:  # whatever it is, the work goes on
            self._stop(f"the draft model learns no more: {first_line(error)}")
        return True

    def _begin(self) -> Training | None:
        """Training on the texts that are kept, if they have doubled or are of another kind, unless it does not pay."""
        if self.version:
            latest = TrainingBatch.from_texts(self._target, self._texts.texts[-CHECKED:])
            if self._texts.begin_anew(accuracy(self.draft, latest)):
                self._measured = replace(self._measured, evaluation=None, learned_from=FITTED)
        texts = self._texts.take()
        left = self.total - self._work.done
        if math.isinf(self.total) and not self._serves:  # not known: as much as was done
            left = self._work.done
        self._measured = replace(
            self._measured,
            rows=self._work.rows,
            texts_left=left * self._texts.count / self._work.done,
            seconds_left=left * self._work.pace,
            texts=len(texts),
            steps=min(MAX_STEPS, EPOCHS * len(texts) // BATCH) * BATCH // self._batch,
        )
        if not (texts and pays(self._measured)):
            return None
        training = Training(
            self._target, self._copy(), texts, steps=self._measured.steps, batch=self._batch
        )
        if not (self._measured.times or self._serves):
            prompt = texts[0].prompt
            times = call_times(training.narrow_draft, self._target, prompt, self._work.rows)
            self._measured = replace(self._measured, times=times)
        return training

    def _copy(self) -> Any:
        """The draft model, to train further. InputError if there is another one in the folder now."""
        draft = trained_draft(self._folder, self._target) or new_draft(self._target)
        if draft.layers != self.draft.layers:
            raise InputError(f"{self._folder} holds another draft model now")
        if self._is_apart:
            distilled.set_weights(draft, distilled.own_weights(self.draft))
        draft.held_out = self.draft.held_out  # of earlier runs
        draft.promised = self.draft.promised
        return draft

    def _go_on(self, training: Training) -> None:
        """Train for one piece; end it if the first evaluation or one of the first steps shows that it does not pay."""
        steps_done = training.steps_done
        began = time.perf_counter()
        found = training.advance()
        if found and training.is_news(found):
            self._use(training, found)
        if found and not steps_done:
            self._measured = replace(self._measured, evaluation=found)
            made = self.draft.accuracy
            if not pays(self._measured) or (made and found.accuracy > made - NEARLY):
                self._training = None
        elif steps_done < training.steps_done <= TRIED:
            self._measured = replace(self._measured, step_seconds=time.perf_counter() - began)
            if not pays(self._measured):
                self._training = None
        elif training.is_done:
            self._training = None
            self._end(training)

    def _end(self, training: Training) -> None:
        texts = len(training.texts)
        self._measured = replace(self._measured, evaluation=training.best, learned_from=texts)
        self.draft.accuracy = 0.0  # from now on more texts may make it better
        learned = f"learned from {texts} texts in {training.seconds:.0f} s"
        kept = f"kept in {self._folder}"
        if self._is_apart:
            other = f"the one in {self._folder} may be better on the texts that it was made from"
            kept = f"for this run only: {other} (--distill FOLDER keeps both)"
        reporter.note(f"draft model: {learned}; {training.best}; {kept}")

    def _use(self, training: Training, evaluation: Evaluation) -> None:
        """Decode with a better draft model, and save it if it has been trained and not only fitted."""
        times = self._measured.times
        if not training.steps_done and times and evaluation.speedup(times) < FASTER:
            return
        dtype = distilled.type_of(self._target)
        weights = distilled.stored_weights(training.draft, dtype)
        mx.eval(weights)  # what is lazy can only be computed by the thread that made it
        distilled.set_weights(self.draft, weights)
        self.version += 1
        self.draft.promised = training.draft.promised
        if not training.steps_done:
            return
        self._is_apart = training.is_worse or self._is_unmeasured
        if not self._is_apart:
            # What others ask of a server stays in memory
            held_out = [] if self._serves else training.held_out
            save(training, self._name, self._folder, dtype, held_out)
