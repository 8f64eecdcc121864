"""How many tokens to draft in a step: a fixed number, or the one that pays best.

The rule of `AdaptiveSchedule`. A step that drafts k tokens yields 1 + sum_{i=1..k} h_1 h_2 ... h_i tokens
on average, where h_i is the share of i-th drafted tokens that pass when all before them did; for a
constant h this is the geometric sum of Leviathan et al. 2023 (arXiv 2211.17192, section 3.3), whose
choice of k assumes that checking k tokens costs what one costs, which few machines do. Steps follow
each other, so in the long run tokens per second are expected tokens over expected seconds of a step
(renewal-reward theorem). That quotient is maximised, with both parts measured in this process:

- h_i per kind of candidate, by the product-limit estimate (Kaplan and Meier 1958: a draft that passed
  whole says nothing of the token after it; what is drafted beyond a text's end did not pass), old
  evidence decayed;
- the seconds of a step by number of rows and of drafted tokens, draft and target together, between
  the synchronisations that steps have anyway. What has not been measured is interpolated.

What a draft model reads before it can draft for a row (its prompt, and what was decoded without it) is
no part of a step. It is measured apart, and paid only where what drafting saves on the rest of a text,
as long as texts have been, is more.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

import numpy as np

from speculative.lookup import Candidate

LENGTHS = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64])
"""The lengths to choose from; far apart where a token more or less makes little difference."""

FIRST = (4, 0, 4)  # lengths of the first steps; two points tell the most about the others
EXPLORE = 24  # steps after which one is spent on another length, to measure it
RETRY = 64  # steps of plain decoding after which one drafts, since it may have come to pay
LOGITS = 1 << 26  # logits of one verification at most: 256 MB in float32


@dataclass(frozen=True)
class Plan:
    """What to draft in a step: for each row one of its candidates, and how many tokens of it."""

    candidates: list[Candidate | None]  # None: nothing is drafted for the row
    lengths: np.ndarray  # [B]

    @property
    def longest(self) -> tuple[int, int]:
        """The longest draft of the draft model, and of all."""
        modelled = [n for c, n in zip(self.candidates, self.lengths, strict=True) if _is_model(c)]
        return int(max(modelled, default=0)), int(self.lengths.max())

    @property
    def unread(self) -> int:
        """How many tokens the draft model has to read before it can do its part."""
        return sum(c.unread for c in self.candidates if c is not None)

    def only(self, rows: np.ndarray) -> "Plan":
        """The plan for the rows where `rows` [B] is true, and nothing for the others."""
        kept = [c if row else None for c, row in zip(self.candidates, rows, strict=True)]
        return Plan(kept, np.where(rows, self.lengths, 0))


class Schedule(Protocol):
    """What says how much to draft."""

    learns: bool  # whether it wants to be told what came of its plans

    def plan(self, candidates: Sequence[Sequence[Candidate]], room: Sequence[int]) -> Plan:
        """The plan for rows with these candidates, the likeliest first, and room for so many drafted
        tokens; -1: the row is finished."""
        ...

    def observe(
        self,
        plan: Plan,
        accepted: Sequence[int],
        seconds: float,
        preparing: float = 0.0,
        ended: Sequence[int] = (),
    ) -> None:
        """What came of a plan: how many drafted tokens of each row are in its text (what follows its
        end is not, and was drafted in vain), how long the step took, and before it the draft model to
        read what it lacked, and the lengths of the texts that ended."""
        ...


def _kind(candidate: Candidate) -> tuple[bool, str]:
    return candidate.modelled, candidate.kind


def _is_model(candidate: Candidate | None) -> bool:
    return candidate is not None and candidate.modelled


def _plan(candidates: Sequence[Candidate | None], room: Sequence[int], most: Sequence[int]) -> Plan:
    limits = zip(candidates, room, most, strict=True)
    lengths = [max(0, min(c.most, r, m)) if c else 0 for c, r, m in limits]
    meant = [c if n > 0 else None for c, n in zip(candidates, lengths, strict=True)]
    return Plan(meant, np.array(lengths, np.int32))


class FixedSchedule:
    """Always this number of tokens, of each row's first candidate."""

    learns = False

    def __init__(self, num_draft: int):
        self._num_draft = num_draft

    def plan(self, candidates: Sequence[Sequence[Candidate]], room: Sequence[int]) -> Plan:
        first = [of_row[0] if of_row else None for of_row in candidates]
        return _plan(first, room, [self._num_draft] * len(first))

    def observe(self, plan, accepted, seconds, preparing=0.0, ended=()) -> None:
        pass


class OwnLengths:
    """A schedule, but for rows that ask for a number of their own."""

    def __init__(self, schedule: Schedule, own: Callable[[], Sequence[int | str]]):
        """own: what each row asks for, a number or "auto"."""
        self._schedule, self._own, self.learns = schedule, own, schedule.learns
        self.observe = schedule.observe

    def plan(self, candidates: Sequence[Sequence[Candidate]], room: Sequence[int]) -> Plan:
        plan = self._schedule.plan(candidates, room)
        chosen, lengths = list(plan.candidates), plan.lengths.tolist()
        for b, number in enumerate(self._own()):
            if not isinstance(number, str):
                chosen[b], lengths[b] = next(iter(candidates[b]), None), number
        return _plan(chosen, room, lengths)


class Acceptance:
    """The chances of the drafted tokens of one kind of candidate."""

    FADING = 0.99  # the weight of evidence after a step, of any kind: what failed is tried again
    PRIOR, WEIGHT = 0.7, 2.0  # the first guess, worth so many tokens of evidence

    def __init__(self):
        self._tried = np.zeros(LENGTHS[-1])
        self._passed = np.zeros(LENGTHS[-1])

    def fade(self) -> None:
        self._tried *= self.FADING
        self._passed *= self.FADING

    def update(self, accepted: int, rejected: bool) -> None:
        """A draft of which `accepted` tokens passed and the next one, if `rejected`, did not."""
        self._tried[: accepted + rejected] += 1
        self._passed[:accepted] += 1

    def overall(self, prior: float = PRIOR) -> float:
        """The chance of a drafted token, wherever in its draft."""
        return (self._passed.sum() + self.WEIGHT * prior) / (self._tried.sum() + self.WEIGHT)

    def tokens(self, prior: float = PRIOR) -> np.ndarray:
        """Expected tokens of a step for 0, 1, 2, ... drafted ones."""
        overall = self.overall(prior)
        share = (self._passed + self.WEIGHT * overall) / (self._tried + self.WEIGHT)
        return np.concatenate([[1.0], 1 + np.cumsum(np.cumprod(share))])

    def __add__(self, other: "Acceptance") -> "Acceptance":
        both = Acceptance()
        both._tried, both._passed = self._tried + other._tried, self._passed + other._passed
        return both


class Seconds:
    """How long a step takes by number of drafted tokens."""

    KEPT = 5  # measurements of a length
    SLOPE = 0.2  # the first guess: a drafted token costs so much of a plain step

    def __init__(self):
        self._measured: dict[int, deque[float]] = {}

    def add(self, length: int, seconds: float) -> None:
        self._measured.setdefault(length, deque(maxlen=self.KEPT)).append(seconds)

    def like(self) -> "Seconds":
        """A copy that new measurements soon outweigh."""
        copy = Seconds()
        for length, seconds in self._measured.items():
            copy.add(length, _low_median(seconds))
        return copy

    @property
    def drafted(self) -> bool:
        """Whether a step that drafted has been measured."""
        return any(self._measured)

    @property
    def reach(self) -> int:
        """The longest draft worth a guess."""
        return max(8, 2 * max(self._measured, default=0))

    def expected(self) -> np.ndarray:
        """Seconds for each of LENGTHS: measured, between two measured ones, or beyond them."""
        lengths = sorted(self._measured)
        seconds = np.array([_low_median(self._measured[length]) for length in lengths])
        # One measurement may be off; checking fewer tokens never takes longer.
        seconds = np.minimum.accumulate(seconds[::-1])[::-1]
        slope = self.SLOPE * seconds[0] / (1 + self.SLOPE * lengths[0])
        if len(lengths) > 1:
            slope = (seconds[-1] - seconds[0]) / (lengths[-1] - lengths[0])
        beyond = np.maximum(LENGTHS - lengths[-1], 0) * slope
        before = np.maximum(lengths[0] - LENGTHS, 0) * slope
        return np.interp(LENGTHS, lengths, seconds) + beyond - before


def _low_median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


class Reading:
    """What the draft model takes to read a token, and how long texts are, over which that is paid."""

    def __init__(self):
        self._seconds: deque[float] = deque(maxlen=5)  # a token
        self._texts: deque[int] = deque(maxlen=16)

    def add(self, tokens: int, seconds: float, texts: Sequence[int]) -> None:
        """So many tokens were read in so many seconds, and texts of these lengths have ended."""
        self._texts.extend(texts)
        if tokens:
            self._seconds.append(seconds / tokens)

    def pays(self, unread: int, saved: float, room: int) -> bool:
        """Whether reading so many tokens pays where drafting saves so many seconds a token."""
        if not unread or not self._seconds:
            return True
        left = min(float(room), float(np.mean(self._texts or [room])))
        return unread * _low_median(self._seconds) < left * saved


class AdaptiveSchedule:
    """The number of tokens that gives the most tokens per second, by what steps have shown so far.
    Keep one for a pair of models, a drafter and a distribution."""

    learns = True

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size
        self._acceptance: dict[tuple[bool, str], Acceptance] = defaultdict(Acceptance)
        # By rows: of steps without and with the draft model.
        self._seconds: dict[int, tuple[Seconds, Seconds]] = {}
        self._steps = 0
        self._detours = cycle((-1, 1, -len(LENGTHS)))  # in LENGTHS: one shorter, one longer, none
        self._reading = Reading()

    def plan(self, candidates: Sequence[Sequence[Candidate]], room: Sequence[int]) -> Plan:
        """Where a row has several candidates, of the one that gives the most."""
        rows = len(candidates)
        candidates = [c if r > 0 else [] for c, r in zip(candidates, room, strict=True)]
        if self._steps < len(FIRST) or not self._seconds:
            first = [of_row[0] if of_row else None for of_row in candidates]
            return _plan(first, room, [FIRST[self._steps % len(FIRST)]] * rows)
        copying, asking = self._costs(rows)
        tokens = self._tokens(candidates)

        def rate(candidate: Candidate) -> float:
            cost = copying + asking if _is_model(candidate) else copying
            return (tokens[_kind(candidate)][np.minimum(LENGTHS, candidate.most)] / cost).max()

        def best_lengths() -> tuple[int, int, np.ndarray, np.ndarray]:
            # Drafted tokens that pass, copied and modelled ones.
            gains = np.zeros((2, len(LENGTHS)))
            for candidate, most in zip(chosen, room, strict=True):
                if candidate:
                    useful = np.minimum(LENGTHS, min(candidate.most, most))
                    gains[int(_is_model(candidate))] += tokens[_kind(candidate)][useful] - 1
            return self._best(rows, sum(most >= 0 for most in room), gains, copying, asking)

        chosen = [max(of_row, key=rate, default=None) for of_row in candidates]
        s, t, rates, without_model = best_lengths()
        if s and not self._retries:
            saved = 1 / rates[without_model].max() - 1 / rates.max()  # seconds a token
            dear = [
                b
                for b, c in enumerate(chosen)
                if c and not self._reading.pays(c.unread, saved, room[b])
            ]
            for b in dear:
                rest = [c for c in candidates[b] if not _is_model(c)]
                chosen[b] = max(rest, key=rate, default=None)
            if dear:
                s, t, *_ = best_lengths()
        s, t = self._detour(rows, s, t)
        return _plan(chosen, room, [LENGTHS[s if _is_model(c) else t] for c in chosen])

    def _tokens(
        self, candidates: Sequence[Sequence[Candidate]]
    ) -> dict[tuple[bool, str], np.ndarray]:
        """Expected tokens by kind. A kind that is new is expected to do as the others of its
        drafter."""
        priors = [
            sum(
                (a for (m, _), a in self._acceptance.items() if m == modelled), Acceptance()
            ).overall()
            for modelled in (False, True)
        ]
        kinds = {_kind(candidate) for of_row in candidates for candidate in of_row}
        return {kind: self._acceptance[kind].tokens(priors[kind[0]]) for kind in kinds}

    def _best(
        self, rows: int, live: int, gains: np.ndarray, copying: np.ndarray, asking: np.ndarray
    ) -> tuple[int, int, np.ndarray, np.ndarray]:
        """Indices into LENGTHS: how much of the draft model and how much in all. A step costs
        asking[s] + copying[t] with s <= t, as rows that copy may use the width that others need.

        And the tokens per second of all choices, and which of them do without the draft model."""
        copied, modelled = gains
        every = np.arange(len(LENGTHS))
        if not modelled.any():
            s, t = np.zeros_like(every), every
        elif not copied.any():
            s, t = every, every
        else:
            s, t = np.triu_indices(len(LENGTHS))
        rates = (live + modelled[s] + copied[t]) / (asking[s] + copying[t])
        rates = np.where(t <= self._longest(rows), rates, 0)
        best = int(np.argmax(rates))
        return int(s[best]), int(t[best]), rates, s == 0

    def _longest(self, rows: int) -> int:
        """The index of the longest of LENGTHS that is worth a guess and fits into memory."""
        reach = max(seconds.reach for seconds in self._seconds[rows])
        limit = min(reach, max(0, LOGITS // (rows * self._vocab_size) - 1))
        return int(np.searchsorted(LENGTHS, limit, side="right")) - 1

    @property
    def _retries(self) -> bool:
        """Whether what does not pay is tried all the same in this step."""
        return self._steps % RETRY == 0

    def _detour(self, rows: int, s: int, t: int) -> tuple[int, int]:
        """The indices to use: now and then others than the best, to learn what they give."""
        last = self._longest(rows)
        if t == 0 and self._retries:
            return min(2, last), min(2, last)
        if t and self._steps % EXPLORE == 0:
            step = next(self._detours)
            s, t = (max(0, min(i + step, last)) if i else 0 for i in (s, t))
        return s, t

    def _costs(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Seconds for each of LENGTHS: of a step, and of asking the draft model besides."""
        if rows not in self._seconds:
            nearest = min(self._seconds, key=lambda known: abs(np.log(known / rows)))
            without, with_model = self._seconds[nearest]
            self._seconds[rows] = without.like(), with_model.like()
        without, with_model = self._seconds[rows]
        if not with_model.drafted:
            copying = without.expected()
            return copying, 0.5 * Seconds.SLOPE * copying[0] * LENGTHS
        modelling = with_model.expected()
        copying = without.expected() if without.drafted else modelling
        return copying, np.maximum(modelling - copying, 0)

    def observe(self, plan, accepted, seconds, preparing=0.0, ended=()) -> None:
        self._steps += 1
        self._reading.add(plan.unread, preparing, ended)
        for acceptance in self._acceptance.values():
            acceptance.fade()
        outcomes = zip(plan.candidates, plan.lengths.tolist(), accepted, strict=True)
        for candidate, length, passed in outcomes:
            if candidate:
                self._acceptance[_kind(candidate)].update(passed, passed < length)
        self._time(len(plan.candidates), plan.longest, seconds)

    def _time(self, rows: int, lengths: tuple[int, int], seconds: float) -> None:
        modelled, longest = lengths
        if 0 < modelled < longest:
            return  # the sum of two costs that it does not tell apart
        without, with_model = self._seconds.setdefault(rows, (Seconds(), Seconds()))
        if not modelled:
            without.add(longest, seconds)
        if modelled or not longest:
            with_model.add(longest, seconds)
