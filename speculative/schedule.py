"""How many tokens to draft in a step: a fixed number, or as many as pay.

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

That is the length of drafts that are copied, and whether a draft model is asked. One that is asked goes on as long
as it is sure enough of its tokens for that rate: see speculative/confidence.py.

What a draft model reads before it can draft for a row (its prompt, and what was decoded without it) is
no part of a step. It is measured apart, and paid only where what drafting saves on the rest of a text,
as long as texts have been, is more.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Protocol

import numpy as np

from speculative.confidence import Calibration, Stop, stop_where_it_pays
from speculative.estimates import LENGTHS, Acceptance, Reading, Seconds, low_median
from speculative.lookup import Candidate

FIRST = (4, 0, 4)  # lengths of the first steps; two points tell the most about the others
FIRST_OF_MANY = (0, 2, 0)  # of rows side by side, where a step that drafts in vain is dear
FAR = 4  # times as many rows, and what steps cost tells nothing
SAMPLE = 4  # one row in so many is drafted for where that is only tried
EXPLORE = 24  # steps after which one is spent on another length, to measure it
# Steps of plain decoding until drafting is tried once more: at first, of rows side by side, and most, as they double.
RETRY, RETRY_OF_MANY, RETRY_AT_MOST = 16, 128, 256
# So many times what plain decoding gives have drafts to promise for rows side by side. The best of many estimates
# promises too much (Smith and Winkler 2006, "The optimizer's curse"); one row's drafts, which stop where the draft
# model is unsure, give more than lengths alone promise.
MARGIN = 1.1
CHECKS = 3  # first steps to compare with what is known of costs
AGREE = 1.3  # how far they may be off
LOGITS = 1 << 26  # logits of one verification at most: 256 MB in float32


@dataclass(frozen=True)
class Plan:
    """What to draft in a step: for each row one of its candidates, and how many tokens of it."""

    candidates: list[Candidate | None]  # None: nothing is drafted for the row
    lengths: np.ndarray  # [B]
    stop: Stop | None = None  # None: a draft model drafts all of them
    confidence: np.ndarray | None = None  # [B, n], of the first drafted tokens; None: unknown
    again: bool = False  # nothing is drafted, and nothing in the next step, as far as can be told

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
        return Plan(kept, np.where(rows, self.lengths, 0), stop=self.stop)

    def as_drafted(self, lengths: np.ndarray | None, confidence: np.ndarray | None) -> "Plan":
        """What has become of it, where the drafter stopped before."""
        return self if lengths is None else Plan(self.candidates, lengths, confidence=confidence)


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
        hindsight: Sequence[tuple[Candidate, int, bool]] = (),
    ) -> None:
        """What came of a plan: how many drafted tokens of each row are in its text (what follows its
        end is not, and was drafted in vain), how long the step took, and before it the draft model to
        read what it lacked, the lengths of the texts that ended, and what would have come of other
        candidates: see `Drafter.hindsight`."""
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


@dataclass(frozen=True)
class Costs:
    """What steps take: seconds by the number of drafted tokens, without and with the draft model, for each
    number of rows; and what the draft model takes to read a token, or None."""

    steps: dict[int, tuple[dict[int, float], dict[int, float]]]
    reading: float | None = None


class FixedSchedule:
    """Always this number of tokens, of each row's first candidate."""

    learns = False

    def __init__(self, num_draft: int):
        self._num_draft = num_draft

    def plan(self, candidates: Sequence[Sequence[Candidate]], room: Sequence[int]) -> Plan:
        first = [of_row[0] if of_row else None for of_row in candidates]
        plan = _plan(first, room, [self._num_draft] * len(first))
        return replace(plan, again=self._num_draft == 0)

    def observe(self, plan, accepted, seconds, preparing=0.0, ended=(), hindsight=()) -> None:
        pass


class OwnLengths:
    """A schedule, but for rows that ask for a number of their own."""

    def __init__(self, schedule: Schedule, own: Callable[[], Sequence[int | str]]):
        """own: what each row asks for, a number or "auto"."""
        self._schedule, self._own, self.learns = schedule, own, schedule.learns
        self.observe = schedule.observe

    def plan(self, candidates: Sequence[Sequence[Candidate]], room: Sequence[int]) -> Plan:
        plan = self._schedule.plan(candidates, room)
        chosen, lengths, stop = list(plan.candidates), plan.lengths.tolist(), plan.stop
        for b, number in enumerate(self._own()):
            if not isinstance(number, str):
                chosen[b], lengths[b] = next(iter(candidates[b]), None), number
                stop = stop and stop.after(number)
        return replace(_plan(chosen, room, lengths), stop=stop)


class AdaptiveSchedule:
    """As many tokens as give the most tokens per second, by what steps have shown so far.
    Keep one for a pair of models, a drafter and a distribution."""

    learns = True

    def __init__(self, vocab_size: int, costs: Costs | None = None):
        """costs: what steps took when the same models ran on this machine before."""
        self._vocab_size = vocab_size
        self._acceptance: dict[tuple[bool, str], Acceptance] = defaultdict(Acceptance)
        self._calibration = Calibration()
        # By rows: of steps without and with the draft model.
        self._seconds: dict[int, tuple[Seconds, Seconds]] = {}
        self._reading = Reading()
        if costs:
            self._take_over(costs)
        self._first: list[int] = []  # lengths to be tried before anything is chosen
        self._explored = 0  # the number of rows that these are for
        self._given = set(costs.steps if costs else ())  # numbers of rows of which costs were given
        self._unchecked = CHECKS if costs else 0  # steps still to compare with these
        self._ratios: list[float] = []
        self._steps = 0
        self._detours = cycle((-1, 1, -len(LENGTHS)))  # in LENGTHS: one shorter, one longer, none
        self._idle = 0  # steps without drafts
        self._vain = 0  # tries after such since drafting paid
        self._retries = False  # whether this step drafts though it does not seem to pay

    def costs(self) -> Costs | None:
        """What steps took, to be given to a schedule of the same models in another run; None: unknown."""
        steps = {
            rows: (without.known(), with_model.known())
            for rows, (without, with_model) in self._seconds.items()
            if not (self._first and rows == self._explored)
        }
        return Costs(steps, self._reading.seconds) if steps else None

    def _take_over(self, costs: Costs) -> None:
        for rows, (without, with_model) in costs.steps.items():
            self._seconds[rows] = Seconds(without, rows), Seconds(with_model, rows)
        self._reading = Reading(costs.reading)

    def plan(self, candidates: Sequence[Sequence[Candidate]], room: Sequence[int]) -> Plan:
        """Where a row has several candidates, of the one that gives the most."""
        rows = len(candidates)
        candidates = [c if r > 0 else [] for c, r in zip(candidates, room, strict=True)]
        if not self._first and self._nearest(rows) is None:
            self._explore(rows)
        if self._first:
            tried = [of_row[0] if of_row else None for of_row in candidates]
            return self._sample(tried, room, self._first[0])
        copying, asking = self._costs(rows)
        tokens = self._tokens(candidates)

        def rate(candidate: Candidate) -> float:
            cost = copying + asking if _is_model(candidate) else copying
            return (tokens[_kind(candidate)][np.minimum(LENGTHS, candidate.most)] / cost).max()

        def best_lengths(chosen: list) -> tuple[int, int, np.ndarray, np.ndarray]:
            # Drafted tokens that pass, copied and modelled ones.
            gains = np.zeros((2, len(LENGTHS)))
            for candidate, most in zip(chosen, room, strict=True):
                if candidate:
                    useful = np.minimum(LENGTHS, min(candidate.most, most))
                    gains[int(_is_model(candidate))] += tokens[_kind(candidate)][useful] - 1
            return self._best(rows, sum(most >= 0 for most in room), gains, copying, asking)

        wanted = [max(of_row, key=rate, default=None) for of_row in candidates]
        s, t, rates, without_model = best_lengths(wanted)
        chosen = list(wanted)
        if s:
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
                s, t, rates, _ = best_lengths(chosen)
        patience = min((RETRY if rows == 1 else RETRY_OF_MANY) << self._vain, RETRY_AT_MOST)
        self._retries = t == 0 and self._idle >= patience
        if self._retries:
            return self._sample(wanted, room, LENGTHS[min(2, self._longest(rows))])
        best, (s, t) = (s, t), self._detour(rows, s, t)
        stops = s > 0 and (s, t) == best
        most = self._longest(rows) if stops else s
        plan = _plan(chosen, room, [LENGTHS[most if _is_model(c) else t] for c in chosen])
        if stops:
            return replace(plan, stop=self._stop(plan, copying, asking, rates.max()))
        copies = any(not _is_model(c) for of_row in candidates for c in of_row)
        return replace(plan, again=t == 0 and not copies and self._idle + 1 < patience)

    def _explore(self, rows: int) -> None:
        self._explored = rows
        self._first = list(FIRST if rows == 1 else FIRST_OF_MANY)

    def _nearest(self, rows: int) -> int | None:
        """The number of rows closest to this one of which it is known what steps cost; None: it is far."""
        found = min(self._seconds, key=lambda known: abs(np.log(known / rows)), default=None)
        return found if found and 1 / FAR < found / rows < FAR else None

    def _sample(
        self, candidates: Sequence[Candidate | None], room: Sequence[int], length: int
    ) -> Plan:
        """So many tokens for one row in SAMPLE, those with the least to read."""
        known = [(c.unread, b) for b, c in enumerate(candidates) if c]
        few = {b for _, b in sorted(known)[: -(-len(candidates) // SAMPLE)]}
        tried = [c if b in few else None for b, c in enumerate(candidates)]
        at_no_cost = stop_where_it_pays(np.zeros(length + 1), 0.0, self._calibration)
        return replace(_plan(tried, room, [length] * len(room)), stop=at_no_cost)

    def _stop(self, plan: Plan, copying: np.ndarray, asking: np.ndarray, rate: float) -> Stop:
        """When the draft model is to stop beside rows that copy."""
        drafted = np.arange(plan.longest[0] + 1)
        both = zip(plan.candidates, plan.lengths, strict=True)
        copied = max((n for c, n in both if not _is_model(c)), default=0)
        checked = np.interp(np.maximum(drafted, copied), LENGTHS, copying)
        seconds = np.interp(drafted, LENGTHS, asking) + checked
        return stop_where_it_pays(seconds, rate, self._calibration)

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
        margin = MARGIN if rows > 1 else 1.0
        best = int(np.argmax(np.where(t > 0, rates / margin, rates)))
        return int(s[best]), int(t[best]), rates, s == 0

    def _longest(self, rows: int) -> int:
        """The index of the longest of LENGTHS that is worth a guess and fits into memory."""
        reach = max(seconds.reach for seconds in self._seconds[rows])
        limit = min(reach, max(0, LOGITS // (rows * self._vocab_size) - 1))
        return int(np.searchsorted(LENGTHS, limit, side="right")) - 1

    def _detour(self, rows: int, s: int, t: int) -> tuple[int, int]:
        """The indices to use: now and then others than the best, to learn what they give. A draft model that
        stops gives shorter drafts as it is."""
        if t and self._steps % EXPLORE == 0:
            step, last = next(self._detours), self._longest(rows)
            if step != -1 or not s:
                s, t = (max(0, min(i + step, last)) if i else 0 for i in (s, t))
        return s, t

    def _costs(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Seconds for each of LENGTHS: of a step, and of asking the draft model besides."""
        if rows not in self._seconds:
            nearest = self._nearest(rows)
            assert nearest  # or `plan` would have explored
            without, with_model = self._seconds[nearest]
            self._seconds[rows] = Seconds(without.known(), rows), Seconds(with_model.known(), rows)
        without, with_model = self._seconds[rows]
        if not with_model.drafted:
            copying = without.expected()
            return copying, 0.5 * Seconds.SLOPE * copying[0] * LENGTHS
        modelling = with_model.expected()
        copying = without.expected() if without.drafted else modelling
        return copying, np.maximum(modelling - copying, 0)

    def observe(self, plan, accepted, seconds, preparing=0.0, ended=(), hindsight=()) -> None:
        self._steps, self._first = self._steps + 1, self._first[1:]
        self._idle = 0 if plan.lengths.any() else self._idle + 1
        if self._retries:
            self._vain += 1
        elif plan.lengths.any():
            self._vain = 0
        self._reading.add(plan.unread, preparing, ended)
        for acceptance in self._acceptance.values():
            acceptance.fade()
        if plan.confidence is not None:
            self._calibration.fade()
        outcomes = zip(plan.candidates, plan.lengths.tolist(), accepted, strict=True)
        for b, (candidate, length, passed) in enumerate(outcomes):
            rejected = passed < length
            if plan.confidence is not None and _is_model(candidate):
                confidence = plan.confidence[b, :length]
                self._calibration.update(abs(confidence), passed)
                rejected = rejected or (confidence < 0).any()  # what would follow an end
            if candidate:
                self._acceptance[_kind(candidate)].update(passed, rejected)
        for candidate, passed, rejected in hindsight:
            self._acceptance[_kind(candidate)].update(passed, rejected)
        self._time(len(plan.candidates), plan.longest, seconds)

    def _time(self, rows: int, lengths: tuple[int, int], seconds: float) -> None:
        modelled, longest = lengths
        if 0 < modelled < longest:
            return  # the sum of two costs that it does not tell apart
        new = Seconds(rows=rows), Seconds(rows=rows)
        without, with_model = self._seconds.setdefault(rows, new)
        if not modelled:
            without.add(longest, seconds)
        if modelled or not longest:
            with_model.add(longest, seconds)
        given = with_model if modelled else without
        if self._unchecked and rows in self._given and given.guessed:
            self._check(rows, given, longest, seconds)

    def _check(self, rows: int, given: Seconds, length: int, seconds: float) -> None:
        """Forget what was given where the first steps take another time than that."""
        self._unchecked -= 1
        self._ratios.append(given.ratio(length, seconds))
        if not self._unchecked and not 1 / AGREE <= low_median(self._ratios) <= AGREE:
            for known, both in list(self._seconds.items()):
                measured = [seconds.forget_guess() for seconds in both]
                if not any(measured):
                    del self._seconds[known]
            self._reading = Reading()
            self._explore(rows)
