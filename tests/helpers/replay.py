"""Texts replayed: what of them the draft model knew, with scripted costs in the place of models."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from speculative.batch import decode
from speculative.lookup import UNBOUNDED, Candidate
from speculative.row import Waiting
from speculative.schedule import Schedule

# For each of 24 held-out texts of a kind, decoded greedily by the embedded pair's target: 1 where the draft
# model's most probable next token is the text's. A draft from a place passes up to the next 0.
KNOWN = {
    "number": """
101001 011101101 1001100 01010101 110111011101 011100111 010110111 01001 101001 011111110111 01
11111111 10110111 101111110111 111111 00110110111101 0111010101 011 01110111 1101110 01 001101
0111 01
""".split(),
    "sentence": """
11111011101111111111111 111111111111111111111111 111111111111111111111 1111111111111111111111
1111111011111 11111111111111111 1111111111111111111111 1111111111111111111111111
111111111111111111 11111111111111 1111111111111111111 1111111111111111111111 1111111111111111111
11111111111111111111111 1111111111111111 11111111110111111111 11111111111111111111
111111111111111 111111111011111111 11111111111111111111111111 11111111111111
111111111111111111111 11111111111111111 111111111111111111111
""".split(),
    "repair": """
11001011101101001111111 111111100111 111111111111 1111011111111 10011110111111 11111111111
0010000100111011111 1111011011111101110101 111110111111 111011100011111111111
100101111110111111111 110111111111111001111011111 11011111100111110100000101 111111111111
1101111011111 11111111111 1101111111111100111111 111000111111100111111111
1111111111110101111011111 110011011111111110011011011111 11110100011111111011111
111100111001000111101111 1110101111111100010111111 1111111111111
""".split(),
}


def texts(kinds: Sequence[str], number: int, seed: int) -> list[str]:
    """So many of these kinds, in any order."""
    known = [text for kind in kinds for text in KNOWN[kind]]
    random.Random(seed).shuffle(known)
    return known[:number]


@dataclass(frozen=True)
class Machine:
    """What things cost, in steps of one row."""

    products: Sequence[tuple[int, float]]  # a target call by its tokens, of all rows together
    draft: float  # a token of the draft model, for one row
    reading: float = (
        0.0  # a prompt for the target; for the draft model as much less as its token is
    )

    def call(self, tokens: int) -> float:
        return float(np.interp(tokens, *zip(*self.products, strict=True)))

    def step(self, rows: int, drafted: int) -> float:
        return self.call(rows * (1 + drafted)) + drafted * self.draft * self.call(rows)


@dataclass(eq=False)
class Text:
    """A row: how far it is, and what `decode` wants to know of it."""

    known: str
    at: int = 0
    fared: str = "new"
    unread: int = 20
    finish_reason: str | None = None


class Replay:
    """A batch of texts, for `decode`. `seconds` is what it took."""

    PROMPT = 20  # tokens

    def __init__(self, machine: Machine, schedule: Schedule, seed: int = 0):
        self.machine, self.schedule, self.rows = machine, schedule, []
        self.seconds, self._noise = 0.0, random.Random(seed)

    def admit(self, fresh: Sequence[Text]) -> None:
        free = [b for b, row in enumerate(self.rows) if row.finish_reason]
        for row in fresh:
            if free:
                self.rows[free.pop(0)] = row
            else:
                self.rows.append(row)
        self.seconds += self.machine.reading * len(fresh)

    def select(self, indices: Sequence[int]) -> None:
        self.rows = [self.rows[b] for b in indices]
        self.seconds += 0.03 * len(self.rows)

    def advance(self) -> list[Text]:
        live = [row for row in self.rows if not row.finish_reason]
        candidates = [
            []
            if row.finish_reason
            else [Candidate(f"model, {row.fared}", UNBOUNDED, unread=row.unread)]
            for row in self.rows
        ]
        plan = self.schedule.plan(
            candidates, [-1 if row.finish_reason else 100 for row in self.rows]
        )
        lengths = plan.lengths.tolist()
        accepted = [self._decode(row, k) for row, k in zip(self.rows, lengths, strict=True)]
        done = [row for row in live if row.finish_reason]
        reading = self.machine.reading * self.machine.draft * plan.unread / self.PROMPT
        seconds = self.machine.step(len(self.rows), max(lengths))
        self.seconds += seconds + reading
        # What is measured is off by some per cent, and now and then by far.
        off = 1 + abs(self._noise.gauss(0, 0.03)) + (self._noise.random() < 0.02)
        ended = [len(row.known) for row in done]
        self.schedule.observe(plan, accepted, seconds * off, reading, ended)
        return done

    def _decode(self, row: Text, drafted: int) -> int:
        if row.finish_reason:
            return 0
        passed = 0
        while row.known[row.at + passed : row.at + passed + 1] == "1" and passed < drafted:
            passed += 1
        row.at += passed + 1
        if drafted:
            row.unread = 0
            row.fared = "none" if not passed else "whole" if passed == drafted else "part"
        if row.at >= len(row.known):
            row.finish_reason = "stop"
        return passed


def rate(
    machine: Machine, schedule: Schedule, known: Sequence[str], rows: int = 1, seed: int = 0
) -> float:
    """Tokens per second, so many side by side."""
    replay = Replay(machine, schedule, seed)
    list(decode(replay, Waiting([Text(text) for text in known]), rows))
    return sum(map(len, known)) / replay.seconds
