"""The forecast whether the rest of a run pays for training its draft model: a table of cases."""

import math
from dataclasses import dataclass, replace

import pytest

from apps.distillation.evaluation import Evaluation
from apps.distillation.forecast import FITTED, Measured, pays


@dataclass
class Times:
    """A call of the target takes a second, however many tokens it verifies."""

    drafting: float = 0.0  # seconds for a drafted token

    def step(self, drafted: int) -> float:
        return 1 + self.drafting * drafted


HALF = Evaluation.of_accuracy(0.5)  # with 8 drafted 2.0 times plain; once they double, 2.6
KNOWN = Measured(
    texts_left=1000,
    seconds_left=1000,
    texts=64,
    steps=40,
    step_seconds=1,
    evaluation=HALF,
    times=Times(),
)

CASES = {
    # Nothing is known of the draft model: to evaluate it takes as long as 64 texts of each row
    "few are left": (Measured(texts_left=63), False),
    "enough are left": (Measured(texts_left=64), True),
    "of rows together many must be left": (Measured(texts_left=511, rows=8), False),
    "of rows together enough are left": (Measured(texts_left=512, rows=8), True),
    # It saves a quarter of 1,000 seconds, for 40 steps of one second, in the mean of two
    "a long run": (KNOWN, True),
    "a short run": (replace(KNOWN, seconds_left=300), False),
    "slow steps": (replace(KNOWN, step_seconds=4), False),
    "slow steps, not yet measured": (replace(KNOWN, step_seconds=0), True),
    "many steps": (replace(KNOWN, steps=160), False),
    "few texts left of many seconds": (replace(KNOWN, texts_left=10), True),
    "hardly more texts than it has learned from": (replace(KNOWN, learned_from=60), False),
    "all right": (replace(KNOWN, evaluation=Evaluation.of_accuracy(1.0)), False),
    "nothing right": (replace(KNOWN, evaluation=Evaluation.of_accuracy(0.0)), True),
    "drafting costs too much": (replace(KNOWN, times=Times(2.0)), False),
    # A server's work does not end
    "a server": (Measured(texts_left=math.inf), True),
    "a server with slow steps": (replace(KNOWN, texts_left=math.inf, step_seconds=99), True),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_trained_for_if_the_rest_pays_for_it(case):
    measured, expected = CASES[case]
    assert pays(measured) is expected


def test_doubled_texts_leave_three_quarters_of_the_errors():
    """So the seconds from which on training pays are known."""
    for doublings in (1, 3):
        texts = FITTED * 2**doublings
        later = Evaluation.of_accuracy(1 - 0.5 * 0.75**doublings)
        share = 1 - HALF.speedup(Times()) / later.speedup(Times())
        enough = KNOWN.steps * 2 / share
        for factor, expected in ((0.98, False), (1.02, True)):
            measured = replace(KNOWN, texts=texts, seconds_left=factor * enough)
            assert pays(measured) is expected
