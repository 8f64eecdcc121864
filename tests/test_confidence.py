"""When a draft model is to stop: the rule against the best of all rules, and what confidence comes to be worth."""

import random
from functools import cache

import numpy as np
import pytest

from speculative.confidence import Calibration, Stop, stop_where_it_pays

SURE = (0.2, 0.6, 0.93, 0.9985)  # of a draft model that is right as often as it thinks


def learned(chances: dict[float, float]) -> Calibration:
    """What 20,000 tokens teach; chances: that a token passes, by confidence."""
    calibration, rng = Calibration(), random.Random(0)
    for _ in range(20_000):
        confidence = rng.choice(list(chances))
        calibration.update(np.array([confidence]), int(rng.random() < chances[confidence]))
    return calibration


def gain(seconds: np.ndarray, rate: float, stop: Stop | None = None) -> float:
    """How many tokens more a step brings than `rate` for its seconds: by a rule, or by the best of all, which
    knows what is best from any draft on."""

    @cache
    def further(counts: tuple[int, ...]) -> float:
        drafted = sum(counts)
        if drafted == len(seconds) - 1:
            return 0.0
        confidence = np.repeat(SURE, counts)[None]
        if stop and stop(confidence, drafted):
            return 0.0
        own = confidence.prod() * np.mean(SURE) - rate * (seconds[drafted + 1] - seconds[drafted])
        then = [further((*counts[:i], n + 1, *counts[i + 1 :])) for i, n in enumerate(counts)]
        value = own + np.mean(then)
        return value if stop else max(0.0, value)

    return further((0,) * len(SURE))


@pytest.mark.parametrize("rate", [0.8, 1.2, 1.6])
@pytest.mark.parametrize("form", ["a line", "steps", "dear at first"])
def test_the_rule_is_near_the_best_of_all(form, rate):
    drafted = np.arange(13)
    seconds = {
        "a line": 1 + 0.1 * drafted,
        "steps": 1 + 0.03 * drafted + 0.4 * (drafted // 5),
        "dear at first": 1 + 0.3 * np.sqrt(drafted),
    }[form]
    stop = stop_where_it_pays(seconds, rate, learned({c: c for c in SURE}))
    assert gain(seconds, rate, stop) >= 0.95 * gain(seconds, rate) - 0.01


def test_what_confidence_is_worth_is_learned():
    """At first as much as it says."""
    assert np.allclose(Calibration().chance(np.array([0.1, 0.6, 0.96])), [0.15, 0.6, 0.965])
    found = learned({0.2: 0.5, 0.6: 0.1, 0.93: 0.7}).chance(np.array([0.2, 0.6, 0.93, 0.85]))
    assert np.allclose(found, [0.5, 0.1, 0.7, 0.85], atol=0.02)


def test_rows_are_added_up_and_an_end_ends_its_row():
    stop = Stop(np.array([0, 1.5, 1.5, 1.5]), lambda confidence: abs(confidence), 0.5)
    assert not stop(np.array([[0.9], [0.8]]), 1)
    assert stop(np.array([[0.9], [0.4]]), 1)
    assert stop(np.array([[0.9], [-0.8]]), 1)  # nothing follows
    assert stop(np.array([[0.9], [0.0]]), 1)  # takes no part
    assert stop(np.array([[0.9], [0.8]]), 2)  # the second tokens are not known yet
    assert not stop.after(2)(np.array([[0.1]]), 1) and stop.after(2)(np.array([[0.1]]), 2)
    assert not stop.after(9)(np.full((1, 8), 0.1), 8) and stop.after(9)(np.ones((1, 9)), 9)
