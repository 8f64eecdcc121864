"""How many tokens to draft in a round: a fixed number, or the one that pays best.

The rule of `Measured`. A round that drafts k tokens yields 1 + sum_{i=1..k} h_1 h_2 ... h_i tokens on
average, where h_i is the share of i-th drafted tokens that pass when all before them did; for a
constant h this is the geometric sum of Leviathan et al. 2023 (arXiv 2211.17192, section 3.3), whose
choice of k assumes that checking k tokens costs what one costs, which few machines do. Rounds follow
each other, so in the long run tokens per second are expected tokens over expected seconds of a round
(renewal-reward theorem). That quotient is maximised, with both parts measured in this process:

- h_i per kind of offer, by the product-limit estimate (Kaplan and Meier 1958: a draft that passed
  whole says nothing of the token after it; what is drafted beyond a text's end did not pass), old evidence decayed;
- the seconds of a round by number of rows and of drafted tokens, draft and target together, between
  the synchronisations that rounds have anyway. What has not been measured is interpolated.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from speculative.lookup import Offer

LENGTHS = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64])
"""The lengths to choose from; far apart where a token more or less makes little difference."""

FIRST = (4, 0, 4)  # lengths of the first rounds; two points tell the most about the others
EXPLORE = 24  # rounds after which one is spent on another length, to measure it
RETRY = 64  # rounds of plain decoding after which one drafts, since it may have come to pay
LOGITS = 1 << 26  # logits of one verification at most: 256 MB in float32


@dataclass(frozen=True)
class Plan:
    """What to draft in a round: for each row one of its offers, and how many tokens of it."""

    offers: list[Offer | None]  # None: nothing is drafted for the row
    lengths: np.ndarray  # [B]

    @property
    def longest(self) -> tuple[int, int]:
        """The longest draft of the draft model, and of all."""
        modelled = [n for o, n in zip(self.offers, self.lengths, strict=True) if _is_model(o)]
        return int(max(modelled, default=0)), int(self.lengths.max())


def _kind(offer: Offer) -> tuple[bool, str]:
    return offer.modelled, offer.kind


def _is_model(offer: Offer | None) -> bool:
    return offer is not None and offer.modelled


def _plan(offers: Sequence[Offer | None], room: Sequence[int], most: Sequence[int]) -> Plan:
    lengths = [min(o.most, r, m) if o else 0 for o, r, m in zip(offers, room, most, strict=True)]
    meant = [o if n > 0 else None for o, n in zip(offers, lengths, strict=True)]
    return Plan(meant, np.array(lengths, np.int32))


class Fixed:
    """Always this number of tokens, of each row's first offer."""

    def __init__(self, num_draft: int):
        self._num_draft = num_draft

    def plan(self, offers: Sequence[Sequence[Offer]], room: Sequence[int]) -> Plan:
        """The plan for rows with these offers, the best first, and room for so many tokens."""
        first = [of_row[0] if of_row else None for of_row in offers]
        return _plan(first, room, [self._num_draft] * len(first))

    def observe(self, plan: Plan, accepted: Sequence[int], seconds: float) -> None:
        """What came of a plan: how many drafted tokens of each row are in its text (what follows its
        end is not, and was drafted in vain), and how long the round took."""


class Acceptance:
    """The chances of the drafted tokens of one kind of offer."""

    FADING = 0.99  # the weight of evidence after a round, of any kind: what failed is tried again
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
        """Expected tokens of a round for 0, 1, 2, ... drafted ones."""
        overall = self.overall(prior)
        share = (self._passed + self.WEIGHT * overall) / (self._tried + self.WEIGHT)
        return np.concatenate([[1.0], 1 + np.cumsum(np.cumprod(share))])

    def __add__(self, other: "Acceptance") -> "Acceptance":
        both = Acceptance()
        both._tried, both._passed = self._tried + other._tried, self._passed + other._passed
        return both


class Seconds:
    """How long a round takes by number of drafted tokens."""

    KEPT = 5  # measurements of a length
    SLOPE = 0.2  # the first guess: a drafted token costs so much of a plain round

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
        """Whether a round that drafted has been measured."""
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


class Measured:
    """The number of tokens that gives the most tokens per second, by what rounds have shown so far.
    Keep one for a pair of models as long as the process lives."""

    def __init__(self, vocab_size: int, agreed: Callable[[float], float] = float):
        """agreed: the seconds that count, given this process's; see `ranks`."""
        self._vocab_size, self._agreed = vocab_size, agreed
        self._acceptance: dict[tuple[bool, str], Acceptance] = defaultdict(Acceptance)
        # By rows: of rounds without and with the draft model.
        self._seconds: dict[int, tuple[Seconds, Seconds]] = {}
        self._rounds = 0
        self._detours = cycle((-1, 1, -len(LENGTHS)))  # in LENGTHS: one shorter, one longer, none

    def plan(self, offers: Sequence[Sequence[Offer]], room: Sequence[int]) -> Plan:
        """As `Fixed.plan`; where a row has several offers, of the one that gives the most."""
        rows = len(offers)
        if self._rounds < len(FIRST):
            first = [of_row[0] if of_row else None for of_row in offers]
            return _plan(first, room, [FIRST[self._rounds]] * rows)
        copying, asking = self._costs(rows)
        tokens = self._tokens(offers)

        def rate(offer: Offer) -> float:
            cost = copying + asking if _is_model(offer) else copying
            return (tokens[_kind(offer)][np.minimum(LENGTHS, offer.most)] / cost).max()

        chosen = [max(of_row, key=rate, default=None) for of_row in offers]
        gains = np.zeros((2, len(LENGTHS)))  # drafted tokens that pass, copied and modelled ones
        for offer, most in zip(chosen, room, strict=True):
            if offer:
                useful = np.minimum(LENGTHS, min(offer.most, most))
                gains[int(_is_model(offer))] += tokens[_kind(offer)][useful] - 1
        live = sum(most >= 0 for most in room)
        s, t = self._best(rows, live, gains, copying, asking)
        return _plan(chosen, room, [LENGTHS[s if _is_model(o) else t] for o in chosen])

    def _tokens(self, offers: Sequence[Sequence[Offer]]) -> dict[tuple[bool, str], np.ndarray]:
        """Expected tokens by kind. A kind that is new is expected to do as the others of its
        drafter."""
        priors = [
            sum(
                (a for (m, _), a in self._acceptance.items() if m == modelled), Acceptance()
            ).overall()
            for modelled in (False, True)
        ]
        kinds = {_kind(offer) for of_row in offers for offer in of_row}
        return {kind: self._acceptance[kind].tokens(priors[kind[0]]) for kind in kinds}

    def _best(
        self, rows: int, live: int, gains: np.ndarray, copying: np.ndarray, asking: np.ndarray
    ) -> tuple[int, int]:
        """Indices into LENGTHS: how much of the draft model and how much in all. A round costs
        asking[s] + copying[t] with s <= t, as rows that copy may use the width that others need."""
        copied, modelled = gains
        every = np.arange(len(LENGTHS))
        if not modelled.any():
            s, t = np.zeros_like(every), every
        elif not copied.any():
            s, t = every, every
        else:
            s, t = np.triu_indices(len(LENGTHS))
        reach = max(seconds.reach for seconds in self._seconds[rows])
        limit = min(reach, max(0, LOGITS // (rows * self._vocab_size) - 1))
        last = int(np.searchsorted(LENGTHS, limit, side="right")) - 1
        rates = (live + modelled[s] + copied[t]) / (asking[s] + copying[t])
        best = int(np.argmax(np.where(t <= last, rates, 0)))
        s, t = int(s[best]), int(t[best])
        if t == 0 and self._rounds % RETRY == 0:
            return min(2, last), min(2, last)
        if t and self._rounds % EXPLORE == 0:
            step = next(self._detours)
            s, t = (max(0, min(i + step, last)) if i else 0 for i in (s, t))
        return s, t

    def _costs(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Seconds for each of LENGTHS: of a round, and of asking the draft model besides."""
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

    def observe(self, plan: Plan, accepted: Sequence[int], seconds: float) -> None:
        """As `Fixed.observe`."""
        self._rounds += 1
        for acceptance in self._acceptance.values():
            acceptance.fade()
        outcomes = zip(plan.offers, plan.lengths.tolist(), accepted, strict=True)
        for offer, length, passed in outcomes:
            if offer:
                self._acceptance[_kind(offer)].update(passed, passed < length)
        self._time(len(plan.offers), *plan.longest, float(self._agreed(seconds)))

    def _time(self, rows: int, modelled: int, longest: int, seconds: float) -> None:
        if 0 < modelled < longest:
            return  # the sum of two costs that it does not tell apart
        without, with_model = self._seconds.setdefault(rows, (Seconds(), Seconds()))
        if not modelled:
            without.add(longest, seconds)
        if modelled or not longest:
            with_model.add(longest, seconds)
