"""The forecast: does the work that is left pay for training a draft model? From what was measured, and nothing else."""

import math
from dataclasses import dataclass

from apps.distillation.evaluation import Evaluation
from speculative.step.timing import CallTimes

LOOK = 64  # texts: evaluating a draft model takes about as long as decoding so many
FITTED = 32  # texts of which training would make what a draft model is that is only fitted
FALLING = 0.75  # share of the errors that is left once the texts have doubled
DEEPER = 2  # how much longer a step of training takes in the mean than one of the first


@dataclass(frozen=True)
class Measured:
    # Of the run
    rows: int = 1  # that are decoded together
    texts_left: float = 0.0  # as far as is known; inf: the run does not end, as a server's
    seconds_left: float = 0.0  # with the draft model as it is
    # Of the training that is to begin or to go on
    texts: int = 0
    steps: int = 0
    step_seconds: float = 0.0  # of one of the first steps; 0: not known
    # Of the draft model as it is
    evaluation: Evaluation | None = None  # None: not known
    learned_from: int = FITTED  # texts
    times: CallTimes | None = None  # known with the evaluation


def pays(measured: Measured) -> bool:
    """Whether to begin training, or to go on with it."""
    m = measured
    if math.isinf(m.texts_left):
        return True
    if not (m.evaluation and m.times):
        return m.texts_left >= LOOK * m.rows
    errors_left = FALLING ** math.log2(m.texts / m.learned_from)
    now = m.evaluation.speedup(m.times)
    later = m.evaluation.improved(errors_left).speedup(m.times)
    saved = m.seconds_left * (1 - now / later)
    return saved > m.steps * DEEPER * m.step_seconds
