"""`auto` against the best fixed length and an oracle, on texts replayed with scripted costs: from the first
prompt on, in batches, and with what an earlier run has measured."""

import random

import numpy as np
import pytest
from helpers.replay import KNOWN, Machine, Replay, Text, rate, texts

from benchmarks.limits import least_seconds
from speculative.schedule import CHECKS, FIRST, AdaptiveSchedule, Costs, FixedSchedule

# By the tokens of a target call, near what docs/benchmarks.md and docs/tried.md have measured.
BLIS = [(1, 1), (2, 1.1), (4, 1.17), (8, 1.25), (16, 1.9), (24, 2.6), (36, 3.4), (72, 6), (600, 48)]
EARLIER = [(1, 1), (2, 1.15), (3, 1.25), (4, 1.35), (5, 1.5), (6, 1.6), (8, 1.9), (13, 2.5)]
EARLIER += [(17, 3), (36, 5.4), (72, 10), (600, 80)]
OPENBLAS = [(1, 1), (2, 1.15), (8, 1.4), (16, 1.8), (36, 2.6), (72, 4.4), (600, 36)]
GPU = [(1, 1), (64, 1.3), (1000, 5)]
MACHINES = {
    "t5-base, t5-small": Machine(BLIS, 0.27, reading=3),
    "t5-base, tiny draft": Machine(OPENBLAS, 0.02, reading=3),
    "t5-large, t5-small": Machine(EARLIER, 0.11, reading=3),
    "GPU": Machine(GPU, 0.02, reading=1),
}
# As measured for paragraphs eight side by side, where drafting loses a tenth to a fifth.
CLOSE = Machine([(1, 1), (8, 2), (16, 3.1), (24, 3.9), (32, 4.6), (72, 8.5), (600, 65)], 0.42, 3)
EVERY = tuple(KNOWN)


def measured(machine: Machine, rows: int = 1) -> Costs:
    """What an earlier run may have left."""
    by_length = {k: machine.step(rows, k) for k in (0, 1, 2, 3, 4, 5, 6, 8, 12, 16)}
    reading = machine.reading * machine.draft / 20
    return Costs({rows: ({0: machine.step(rows, 0)}, by_length)}, reading)


def best_fixed(machine: Machine, known: list[str], rows: int = 1) -> float:
    return max(rate(machine, FixedSchedule(k), known, rows) for k in (*range(9), 10, 12, 16, 24))


def oracle(machine: Machine, known: list[str]) -> float:
    """The rate of drafts of which all pass, of the best lengths."""
    by_length = [machine.step(1, k) for k in range(33)]
    passes = [np.array([token.isupper() for token in text]) for text in known]
    return sum(map(len, known)) / sum(least_seconds(of_text, by_length) for of_text in passes)


@pytest.mark.parametrize("known_costs", [False, True])
def test_the_first_twelve_prompts(known_costs):
    """On average over machines and kinds of text more than the best fixed length, which knows the texts."""
    shares = []
    for machine in MACHINES.values():
        machine = Machine(machine.products, machine.draft)  # what steps alone take
        for kinds in (EVERY, *((kind,) for kind in EVERY)):
            for seed in range(3):
                known = texts(kinds, 12, seed)
                costs = measured(machine) if known_costs else None
                auto = rate(machine, AdaptiveSchedule(32128, costs), known, seed=seed)
                shares.append(auto / best_fixed(machine, known))
    assert np.mean(shares) >= (1.06 if known_costs else 1.03) and min(shares) >= 0.9


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("name", MACHINES)
def test_texts_after_the_first_36(name, late):
    """Drafts that stop where the draft model is unsure, also where that is known a token later, as on a GPU."""
    machine, of_best, of_oracle = Machine(MACHINES[name].products, MACHINES[name].draft), [], []
    for seed in range(2):
        schedule = AdaptiveSchedule(32128)
        rate(machine, schedule, texts(EVERY, 36, seed), seed=seed, late=late)
        known = texts(EVERY, 36, seed + 9)
        auto = rate(machine, schedule, known, seed=seed, late=late)
        of_best.append(auto / best_fixed(machine, known))
        of_oracle.append(auto / oracle(machine, known))
    assert np.mean(of_best) >= 1.08 and np.mean(of_oracle) >= 0.74


@pytest.mark.parametrize("name", MACHINES)
def test_batches_after_three(name):
    """From the fourth batch of eight on 0.95 of the best fixed length, 0 included, and 0.97 of plain."""
    machine, of_best, of_plain = MACHINES[name], [], []
    for seed in range(4):
        schedule = AdaptiveSchedule(32128)
        rate(machine, schedule, texts(EVERY, 24, seed), 8, seed)
        known = texts(EVERY, 24, seed + 9)
        auto = rate(machine, schedule, known, 8, seed)
        of_best.append(auto / best_fixed(machine, known, 8))
        of_plain.append(auto / rate(machine, FixedSchedule(0), known, 8))
    assert np.mean(of_best) >= 0.95 and np.mean(of_plain) >= 0.97


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("alone", ["a text before", "costs"])
def test_what_one_row_has_shown_is_not_taken_for_what_eight_cost(name, alone):
    """Six batches of eight, after one text alone or with the costs of one row at a time."""
    machine, shares = MACHINES[name], []
    for seed in range(4):
        schedule = AdaptiveSchedule(32128, measured(machine) if alone == "costs" else None)
        if alone != "costs":
            rate(machine, schedule, texts(EVERY, 1, seed + 50), 1, seed)
        known = texts(EVERY, 48, seed)
        shares.append(rate(machine, schedule, known, 8, seed) / best_fixed(machine, known, 8))
    assert np.mean(shares) >= 0.96


@pytest.mark.parametrize("name", MACHINES)
def test_a_draft_model_that_is_sure_and_wrong(name):
    """48 texts, one at a time, from the first step on."""
    machine, known = MACHINES[name], [text.lower() for text in texts(EVERY, 48, 0)]
    plain = rate(machine, FixedSchedule(0), known)
    for costs in (None, measured(machine)):
        assert rate(machine, AdaptiveSchedule(32128, costs), known) >= 0.97 * plain


@pytest.mark.parametrize("name", MACHINES)
def test_batches_where_drafting_is_in_vain(name):
    """Three batches of eight with a draft model that is never right, from the first step on."""
    machine, known = MACHINES[name], [text.lower() for text in texts(EVERY, 24, 0)]
    plain = rate(machine, FixedSchedule(0), known, 8)
    for costs, share in ((None, 0.96), (measured(machine, 8), 0.97)):
        assert rate(machine, AdaptiveSchedule(32128, costs), known, 8) >= share * plain


class SlowForAWhile(random.Random):
    """Noise of measurements: 12 steps of 40 take 0.6 longer than they should."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self._steps = 7 * seed

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        self._steps += 1
        return abs(super().gauss(mu, sigma)) + 0.6 * (self._steps % 40 < 12)


@pytest.mark.parametrize("machine", [*MACHINES.values(), CLOSE])
def test_batches_on_a_machine_that_is_slow_now_and_then(machine):
    """Plain steps that were measured while it was slow do not make drafts look well for long."""
    shares = []
    for seed in range(4):
        known = texts(EVERY, 24, seed) + texts(EVERY, 24, seed + 9)
        auto = rate(machine, AdaptiveSchedule(32128), known, 8, noise=SlowForAWhile(seed))
        shares.append(auto / best_fixed(machine, known, 8))
    assert np.mean(shares) >= 0.97 and min(shares) >= 0.93


def test_costs_of_another_run_are_used_and_kept():
    """The first steps need not explore, and what is handed on is what was given and measured."""
    machine = MACHINES["t5-base, tiny draft"]
    replay = Replay(machine, AdaptiveSchedule(32128, measured(machine)))
    replay.admit([Text("J" * 1000)])
    lengths = []
    for _ in range(5):
        at = replay.rows[0].at
        replay.advance()
        lengths.append(replay.rows[0].at - at - 1)
    assert lengths[0] > 0 and lengths == sorted(lengths)  # ever longer, as all pass
    costs = replay.schedule.costs()
    assert costs.steps[1][1].keys() >= measured(machine).steps[1][1].keys()
    assert AdaptiveSchedule(32128, costs).costs() == costs
    assert AdaptiveSchedule(32128).costs() is None


@pytest.mark.parametrize("off", [0.5, 2.0])
def test_costs_that_first_steps_do_not_bear_out_are_forgotten(off):
    machine = MACHINES["t5-base, tiny draft"]
    others = Machine([(n, off * cost) for n, cost in machine.products], machine.draft)
    for given, forgotten in ((measured(others), True), (measured(machine), False)):
        schedule = AdaptiveSchedule(32128, given)
        replay = Replay(machine, schedule)
        replay.admit([Text("J" * 100)])
        for _ in range(CHECKS):
            replay.advance()
        assert (schedule.costs() is None) == forgotten
        for _ in FIRST:
            replay.advance()
        for length, seconds in schedule.costs().steps[1][1].items():
            assert seconds < 1.3 * machine.step(1, length)


def advance(machine: Machine, schedule: AdaptiveSchedule, rows: int, steps: int) -> None:
    replay = Replay(machine, schedule)
    replay.admit([Text("J" * 200) for _ in range(rows)])
    for _ in range(steps):
        replay.advance()


def test_costs_are_checked_by_steps_of_as_many_rows():
    """Costs of one row that are wrong are forgotten though eight rows come first, of which nothing is known;
    costs of two, from which those of three are guessed, are not forgotten for what three take."""
    machine = MACHINES["t5-large, t5-small"]
    slower = Machine([(n, 3 * cost) for n, cost in machine.products], machine.draft)
    schedule = AdaptiveSchedule(32128, measured(slower))
    advance(machine, schedule, 8, 2 * CHECKS)
    assert schedule.costs().steps[1][0][0] == slower.step(1, 0)
    advance(machine, schedule, 1, CHECKS + len(FIRST))
    assert schedule.costs().steps[1][0][0] < 1.3 * machine.step(1, 0)

    machine = Machine([(n, n) for n in range(1, 200)], 0.1)
    schedule = AdaptiveSchedule(32128, measured(machine, 2))
    advance(machine, schedule, 3, CHECKS)
    assert 2 in schedule.costs().steps


def test_costs_are_kept_while_another_number_of_rows_is_explored():
    machine = MACHINES["t5-base, tiny draft"]
    schedule = AdaptiveSchedule(32128, measured(machine))
    advance(machine, schedule, 8, 1)
    assert schedule.costs() == measured(machine)
