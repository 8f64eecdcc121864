"""How many tokens are drafted, on simulated machines: `auto` drafts where that pays, and not where it does not."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from speculative.drafters.prompt_lookup import UNBOUNDED
from speculative.step.draft import Candidate, Draft, Step
from speculative.step.schedule import LOGITS, PATIENCE, Schedule, Stop

COPY = Candidate("copy", UNBOUNDED, lambda n: [0] * n, "match 4+")
MODEL = Candidate("model", UNBOUNDED)

# What checking T tokens costs in units of one, by (T, cost) points.
MACHINES = {
    "M1": [(1, 1), (2, 2), (520, 4)],
    "M4 Pro": [(1, 1), (4, 1.47), (8, 2.69), (65, 20.1), (520, 160)],
    "free": [(1, 1), (520, 1)],
}
REPLAYS = Path(__file__).parent / "schedule_replay.json"  # decisions by "machine, rows' numbers"
COPIES = [COPY, Candidate("copy", 20, lambda n: [1] * n, "match 1")]
MODELS = [MODEL, replace(MODEL, state="whole"), replace(MODEL, state="none", missing=30)]
CHANCES = dict(zip(COPIES + MODELS, [0.95, 0.2, 0.7, 0.9, 0.4], strict=True))


def take(plan, chance, confidence=0.9) -> Step:
    """What comes of a plan of which the tokens of a candidate pass with chance(candidate)."""
    limits, drafted, modelled = plan.limits, int(plan.limits.max()), plan.modelled
    confidences = np.zeros((len(limits), 0))
    for i in range(1, drafted if plan.stop else 0):
        confidences = np.column_stack(
            [confidences, np.where(modelled & (i <= limits), confidence, 0)]
        )
        if plan.stop(confidences, i):
            drafted = i
            break
    lengths = np.where(modelled, np.minimum(limits, drafted), limits)
    accepted = []
    for candidate, length in zip(plan.candidates, lengths.tolist(), strict=True):
        passed = 0
        while passed < length and random.random() < chance(candidate):
            passed += 1
        accepted.append(passed)
    return Step(plan, Draft(None, lengths, confidence=confidences), accepted)


class Simulation:
    """Steps of rows that never end, on a machine whose timings are noisy, with a slow first step."""

    def __init__(
        self,
        machine: str,
        draft_cost: float = 0.1,
        rows: int = 1,
        candidates=(MODEL,),
        confidence=0.9,
    ):
        random.seed(0)
        self.machine, self.draft_cost, self.rows = machine, draft_cost, rows
        self.candidates, self.confidence = [list(candidates)] * rows, confidence
        self.schedule = Schedule(32128)
        self.steps: list[Step] = []

    def run(self, steps: int, chance, wanted=None) -> float:
        """Tokens per second over so many steps; `chance`: a number, or by the candidate."""
        tokens, total = 0, 0.0
        for _ in range(steps):
            plan = self.schedule.plan(self.candidates, [1000] * self.rows, wanted)
            step = take(plan, chance if callable(chance) else lambda c: chance, self.confidence)
            longest, modelled = int(step.draft.lengths.max()), plan.modelled.any()
            points = zip(*MACHINES[self.machine], strict=True)
            seconds = (
                np.interp(self.rows * (1 + longest), *points) + modelled * longest * self.draft_cost
            )
            noise = 1 + abs(random.gauss(0, 0.03)) if self.steps else 5
            step.seconds = seconds * noise
            if plan.learns:
                self.schedule.observe(step)
            self.steps.append(step)
            tokens, total = tokens + sum(step.accepted) + self.rows, total + seconds
        return tokens / total

    def lengths(self, last: int) -> list[int]:
        return [int(step.draft.lengths.max()) for step in self.steps[-last:]]


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("chance", [0.05, 0.75, 0.95])
def test_it_is_about_as_fast_as_the_best_fixed_length(machine, rows, chance):
    simulation = Simulation(machine, rows=rows)
    rate = simulation.run(300, chance)
    fixed = [simulation.run(100, chance, [k] * rows) for k in (0, 1, 2, 4, 8, 16, 32)]
    assert rate >= 0.85 * max(fixed) and rate >= 0.95 * fixed[0]


@pytest.mark.parametrize(("draft_cost", "chance"), [(0.1, 0.0), (2.0, 1.0)])
def test_hopeless_drafts_are_given_up_and_tried_again_ever_less_often(draft_cost, chance):
    """Whether nothing passes, or drafting takes longer than it saves."""
    simulation = Simulation("M4 Pro", draft_cost)
    simulation.run(40 + 8 * PATIENCE, chance)
    tries = np.flatnonzero(simulation.lengths(8 * PATIENCE))
    assert 2 <= len(tries) <= 8 * PATIENCE / 25
    assert (np.diff(tries)[1:] >= np.diff(tries)[:-1]).all() or chance == 0


def test_drafting_is_taken_up_when_it_has_come_to_pay():
    simulation = Simulation("free")
    simulation.run(200, 0.0)
    simulation.run(4 * PATIENCE, 0.95)
    assert np.median(simulation.lengths(40)) >= 4


@pytest.mark.parametrize(("copied", "modelled"), [(0.95, 0.5), (0.1, 0.9)])
def test_the_better_candidate_of_a_row_is_taken(copied, modelled):
    simulation = Simulation("free", candidates=[COPY, MODEL])
    simulation.run(200, lambda candidate: modelled if candidate is MODEL else copied)
    kinds = [step.plan.candidates[0] for step in simulation.steps[100:]]
    assert kinds.count(COPY if copied > modelled else MODEL) > 85


def test_a_copy_that_failed_at_first_is_taken_up_where_it_would_have_passed():
    """What would have passed is seen while the draft model is asked."""
    schedule, copied = Schedule(32128), []
    for _ in range(60):
        plan = schedule.plan([[COPY, MODEL]], [1000])
        candidate = plan.candidates[0]
        right = candidate is MODEL or len(copied) > 1
        copied += [candidate] if candidate is COPY else []
        step = take(plan, lambda c, right=right: 0.9 * right)
        step.offered = [[COPY, MODEL]]
        step.gained = [[0] * (step.accepted[0] + 1)]
        modelled = 0.1 * plan.modelled.any()
        step.seconds = 1 + (0.05 + modelled) * plan.limits.max()
        schedule.observe(step)
    assert len(copied) > 25


def test_a_draft_model_that_is_dear_to_read_is_not_read():
    """Reading takes as long as 50 plain steps and texts have 12 tokens: drafting loses, though a step with
    drafts is twice as fast. Now and then it is tried all the same."""
    for reading, drafts in ((50.0, False), (1.0, True)):
        schedule, drafted = Schedule(50), []
        for step in range(200):
            fresh = step % 6 == 0
            candidate = Candidate("model", UNBOUNDED, missing=40 if fresh else 0)
            plan = schedule.plan([[candidate]], [30])
            draft = Draft(
                None, plan.limits, prefill_seconds=reading if fresh and plan.limits.any() else 0.0
            )
            k = int(plan.limits[0])
            ended = [12] if step % 6 == 5 else []
            schedule.observe(Step(plan, draft, [k], 1 + 0.05 * k), ended)
            if fresh and step > 20:
                drafted.append(k > 0)
        assert np.mean(np.array(drafted) == drafts) > 0.9


def test_any_order_of_steps_can_be_planned_for():
    """Batches of changing size, rows of every room, with and without candidates, from the first step on."""
    for seed in range(100):
        rng, schedule = random.Random(seed), Schedule(32128)
        for _ in range(12):
            room = [rng.choice((-1, 0, 1, 3, 50)) for _ in range(rng.choice((1, 2, 3, 9)))]
            choices = [MODEL, Candidate("copy", rng.choice((1, 3, 20)), list, "match 1")]
            candidates = [rng.sample(choices, rng.randint(0, 2)) if r > 0 else [] for r in room]
            plan = schedule.plan(candidates, room)
            each = zip(candidates, plan.candidates, plan.limits, room, strict=True)
            for of_row, candidate, n, r in each:
                if candidate is None:
                    assert n == 0
                else:
                    assert candidate in of_row and 0 < n <= min(candidate.max_length, r)
            accepted = [rng.randint(0, n) for n in plan.limits]
            schedule.observe(Step(plan, Draft(None, plan.limits), accepted, rng.random()))


def decisions(name: str) -> list[str]:
    """Each row's drafter (its first letter) and limit, and the longest draft, in steps drawn from a seed."""
    random.seed(0)
    machine, *numbers = name.split(", ")
    schedule, made = Schedule(32128), []
    for i in range(240 // len(numbers)):
        wanted = numbers[i // 20 % len(numbers) :]  # all rows at first
        room = [random.randrange(-1, 40) for _ in wanted]
        offered = [random.sample([*CHANCES], 2) for _ in wanted]
        plan = schedule.plan(offered, room, wanted)
        step = take(plan, CHANCES.get, np.array([random.random() ** 0.2 for _ in wanted]))
        longest = step.draft.lengths.max()
        chosen = zip(plan.candidates, plan.limits, strict=True)
        limits = [f"{c.drafter[0]}{n}" if c else "-" for c, n in chosen]
        made.append(f"{' '.join(limits)}: {longest}")
        missing = sum(c.missing for c in plan.candidates if c)
        step.draft = replace(step.draft, prefill_seconds=0.2 * missing)
        step.offered, step.gained = offered, [[0] * (n + 1) for n in step.accepted]
        seconds = np.interp(len(wanted) * (1 + longest), *zip(*MACHINES[machine], strict=True))
        seconds += 0.1 * longest * plan.modelled.any()
        step.seconds = seconds * (1 + 0.1 * random.random())
        schedule.observe(step, [12 for left in room if left < 0])
    return made


def test_it_decides_what_it_decided_before():
    """Record anew, with `PYTHONPATH=. python tests/step/test_schedule.py`, only a change that was meant and measured."""
    for name, recorded in json.loads(REPLAYS.read_text()).items():
        assert decisions(name) == recorded, name


def test_a_large_vocabulary_bounds_the_length():
    schedule = Schedule(250_112)
    for _ in range(40):
        plan = schedule.plan([[COPY]] * 32, [1000] * 32)
        schedule.observe(Step(plan, Draft(None, plan.limits), plan.limits.tolist(), 1.0))
        assert 32 * 250_112 * (plan.limits.max() + 1) <= LOGITS


def test_steps_without_drafts_are_foreseen_unless_something_may_be_copied():
    modelled, copied = Simulation("M4 Pro", 2.0), Simulation("M4 Pro", candidates=[COPY])
    modelled.run(400, 0.0)
    foreseen = [step.plan.idle_next for step in modelled.steps]
    drafts = [step.plan.limits[0] > 0 for step in modelled.steps]
    assert not any(idle and drafted for idle, drafted in zip(foreseen, drafts[1:], strict=False))
    assert sum(foreseen) > 300 and any(drafts[20:])
    assert Schedule(100).plan([[COPY]], [500], [0]).idle_next
    copied.run(60, 0.0)  # what may be copied changes with every token
    assert not any(step.plan.idle_next for step in copied.steps)


# ---------------------------------------------------------------------------------------------
# Rows with a number of their own


def test_a_row_may_ask_for_a_number_of_its_own():
    copied = Candidate("copied", 9, list)
    candidates = [[MODEL], [copied, MODEL], [MODEL], [copied], [], [MODEL]]
    plan = Schedule(100).plan(candidates, [20, 20, 20, 6, 20, -1], [4, 2, 0, 8, 8, 5])
    assert plan.limits.tolist() == [4, 2, 0, 6, 0, 0]
    assert plan.candidates == [MODEL, copied, None, copied, None, None]


@pytest.mark.parametrize(("copied", "modelled"), [(0.95, 0.5), (0.3, 0.95)])
def test_a_fixed_number_goes_to_the_better_candidate(copied, modelled):
    simulation = Simulation("free", candidates=[COPY, MODEL])
    simulation.run(60, lambda c: modelled if c is MODEL else copied, [8])
    kinds = [step.plan.candidates[0] for step in simulation.steps[20:]]
    assert kinds.count(COPY if copied > modelled else MODEL) > 35
    assert simulation.lengths(60) == [8] * 60


def test_rows_of_their_own_numbers_get_them_and_others_draft_beside_them():
    """Though no step is plain, where plain steps would be tried first; nor does one stop early."""
    simulation = Simulation("free", 0.01, rows=2, confidence=0.01)
    simulation.run(40, 0.95, ["auto", 12])
    lengths = np.array([step.draft.lengths for step in simulation.steps])
    assert (lengths[:, 1] == 12).all() and np.median(lengths[:, 0]) > 2


# ---------------------------------------------------------------------------------------------
# When a draft model stops


def test_rows_are_added_up_and_an_end_ends_its_row():
    stop = Stop(min_passes=np.array([0.7, 0.7, 0.7, np.inf]), gamma=1.0, chance=0.5)
    assert not stop(np.array([[0.9], [0.8]]), 1)
    assert stop(np.array([[0.9], [0.4]]), 1)
    assert stop(np.array([[0.9], [-0.8]]), 1)  # nothing follows
    assert stop(np.array([[0.9], [0.0]]), 1)  # takes no part
    assert stop(np.array([[0.9], [0.8]]), 2)  # the second tokens are not known yet
    assert stop(np.ones((2, 9)), 9)  # as long as a draft may be
    beside = Stop(min_passes=np.array([0.7, 0.7, 0.7, 0.3]), gamma=1.0, chance=0.5)
    assert beside(np.array([[0.6]]), 1) and not beside(np.array([[0.9, 1, 1]]), 3)


def test_what_confidence_is_worth_is_learned():
    """A draft model that is too sure of itself stops sooner."""
    gammas = []
    for chance in (0.95, 0.6):
        simulation = Simulation("free", 0.02, confidence=0.95)
        simulation.run(200, chance)
        gammas.append(simulation.schedule.plan([[MODEL]], [1000]).stop.gamma)
    right, too_sure = gammas
    assert 0.6 < right < 1.5 and too_sure > 4


if __name__ == "__main__":
    anew = {name: decisions(name) for name in json.loads(REPLAYS.read_text())}
    REPLAYS.write_text(json.dumps(anew, indent=0) + "\n")
