"""The texts that a run has finished and learns from, and when it is time to look whether to train on them."""

import math

from apps.distillation.texts import TrainingText

FIRST = 64  # texts to learn from at first; then again whenever they have doubled
CHECKED = 8  # the latest texts, of each FIRST, on which the draft model is checked
WORSE = 0.7  # of its accuracy on some before: these are of another kind
MAX_TEXTS = 4096  # the latest, to learn from


class KeptTexts:
    """The latest texts. They are looked at after each FIRST of them, and trained on whenever they have doubled."""

    def __init__(self) -> None:
        self.texts: list[TrainingText] = []
        self.count = 0  # of this kind so far
        self._next_look: float = FIRST  # at that many
        self._next_training = FIRST
        self._best_accuracy = 0.0  # of a draft model on the latest

    def add(self, text: TrainingText) -> None:
        self.texts.append(text)
        del self.texts[:-MAX_TEXTS]
        self.count += 1

    @property
    def are_due(self) -> bool:
        return self.count >= self._next_look

    def begin_anew(self, accuracy: float) -> bool:
        """Whether these are texts of another kind, as the draft model drafts the latest CHECKED, with this accuracy, much
        worse than some before; then only the latest are kept."""
        self._best_accuracy = max(self._best_accuracy, accuracy)
        if accuracy >= WORSE * self._best_accuracy:
            return False
        del self.texts[:-FIRST]
        self.count = self._next_training = len(self.texts)
        self._best_accuracy = 0.0
        return True

    def take(self) -> list[TrainingText]:
        """The texts to train on, if they have doubled; otherwise none. The next look is FIRST texts later."""
        self._next_look = self.count + FIRST
        if self.count < self._next_training:
            return []
        self._next_training = 2 * self.count
        return [*self.texts]

    def retry(self) -> None:
        self._next_look = self._next_training = self.count

    def close(self) -> None:
        self._next_look = math.inf
