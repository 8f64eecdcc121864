"""Decoding rows of tokens in tests: with any model and drafter, in batches, without text."""

import random
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from decoder import Batch
from speculative.drafters.draft_model import ModelDrafter
from speculative.drafters.drafter import Drafter
from speculative.drafters.prompt_lookup import PromptLookup
from speculative.step.beams import BeamRow
from speculative.step.driver import Driver
from speculative.step.options import Options
from speculative.step.row import Row, Stats
from speculative.step.sampling import RowSeeds
from speculative.step.schedule import Schedule


class Fixed(Schedule):
    """So many tokens, whatever the rows want."""

    def __init__(self, num_draft: int):
        super().__init__(vocab_size=100)
        self.num_draft = num_draft

    def plan(self, candidates, room, wanted=None):
        return super().plan(candidates, room, [self.num_draft] * len(room))


class Stopping(Fixed):
    """Drafts a number of tokens, or fewer: as soon as of fewer rows than `least` all is expected to pass."""

    def __init__(self, num_draft: int, least: float):
        super().__init__(num_draft)
        self._least = least

    def plan(self, candidates, room, wanted=None):
        return replace(super().plan(candidates, room), stop=self._stop)

    def _stop(self, confidence, drafted) -> bool:
        return bool(np.maximum(confidence, 0).prod(axis=1).sum() <= self._least)


class RashSchedule(Fixed):
    """Nothing in two steps of three, and then a promise that the next is alike, which it may not be."""

    def __init__(self):
        super().__init__(0)
        self._rng = random.Random(0)

    def plan(self, candidates, room, wanted=None):
        self.num_draft = self._rng.choice((0, 0, 0, 0, 3, 7))
        return replace(super().plan(candidates, room), idle_next=self.num_draft == 0)


class Waiting:
    """A source with all its rows from the start."""

    def __init__(self, rows: Iterable[Row]):
        self._rows = list(rows)[::-1]

    def take(self, count: int, wait: bool) -> list[Row]:
        return [self._rows.pop() for _ in range(min(count, len(self._rows)))]


def new_rows(model, prompts, options: Options) -> list[Row]:
    seed = RowSeeds(options.seed)
    kind = BeamRow if options.num_beams > 1 else Row
    return [
        kind.begin(prompt, options, model.prefix(prompt), model.config, seed=seed(prompt))
        for prompt in prompts
    ]


def new_driver(model, drafter: Drafter | None, options: Options, schedule=None) -> Driver:
    """The driver of an empty batch that drafts as the options say."""
    if schedule is None:
        schedule = Schedule(model.config.vocab_size) if drafter else Fixed(0)
    return Driver(Batch(model, drafter or Drafter(), options, schedule))


def start(model, drafter, prompts, **options) -> Driver:
    """The driver of a batch that has read all prompts."""
    settings = Options(**options)
    driver = new_driver(model, drafter, settings)
    driver.admit(new_rows(model, prompts, settings))
    return driver


def finish(driver: Driver) -> list[Row]:
    """The batch's rows, decoded to their ends."""
    while not all(row.finish_reason for row in driver.batch.rows):
        driver.advance()
    return driver.batch.rows


def decode_with(model, drafter, prompts, batch_size=None, schedule=None, **options) -> list[Row]:
    """The decoded rows, in the order of their prompts; batch_size None: all side by side."""
    settings = Options(**options)
    rows = new_rows(model, prompts, settings)
    driver = new_driver(model, drafter, settings, schedule)
    finished = list(driver.decode(Waiting(rows), batch_size or len(rows)))
    assert sorted(map(id, finished)) == sorted(map(id, rows))
    return rows


def total(rows) -> Stats:
    return sum((row.stats for row in rows), Stats())


def partial_steps(rows, num_draft: int) -> int:
    """How many steps kept some of the drafted tokens and dropped others."""
    lengths = total(rows).accepted_lengths
    return sum(count for length, count in lengths.items() if 0 < length < num_draft)


def ragged_prompts(count: int, vocab_size: int, longest: int = 20) -> list[list[int]]:
    rng = random.Random(0)
    lengths = (rng.randint(1, longest) for _ in range(count))
    return [[rng.randrange(3, vocab_size) for _ in range(length)] for length in lengths]


def drafters(draft) -> dict[str, Drafter]:
    """Every drafter, by the name that tests give it; `draft` is the draft model."""
    return {
        "lookup": PromptLookup(),
        "both": ModelDrafter(draft, lookup=PromptLookup()),
        "model": ModelDrafter(draft),
    }
