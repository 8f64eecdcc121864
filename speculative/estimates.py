"""What steps have shown: how many drafted tokens pass, how long a step takes, what reading a prompt costs.

LENGTHS are the numbers of drafted tokens that are told apart.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

LENGTHS = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32, 48, 64])
"""The lengths to choose from; far apart where a token more or less makes little difference. On Apple's
GPUs products take a step up behind 5, 10 and 15 rows: 4, 9 and 14 drafted tokens fill what is paid for."""


class Evidence:
    """How many drafted tokens were tried, all before them having passed, and how many passed, by class."""

    FADING = 0.99  # the weight of evidence after a step, of any kind: what failed is tried again
    PRIOR, DOUBT = 0.7, 2.0  # the first guess, worth so many tokens of evidence

    def __init__(self, classes: int):
        self._tried = np.zeros(classes)
        self._passed = np.zeros(classes)

    def fade(self) -> None:
        self._tried *= self.FADING
        self._passed *= self.FADING

    def overall(self, prior: float = PRIOR, worth: float = DOUBT) -> float:
        """The chance of a drafted token, of any class."""
        return (self._passed.sum() + worth * prior) / (self._tried.sum() + worth)


class Acceptance(Evidence):
    """The chances of the drafted tokens of one kind of candidate, by their places in a draft."""

    KIN = 16.0  # so many tokens of its own are worth as much as what its kin, and other places, came to

    def __init__(self):
        super().__init__(int(LENGTHS[-1]))

    def update(self, accepted: int, rejected: bool) -> None:
        """A draft of which `accepted` tokens passed and the next one, if `rejected`, did not."""
        self._tried[: accepted + rejected] += 1
        self._passed[:accepted] += 1

    def tokens(self, prior: float = Evidence.PRIOR) -> np.ndarray:
        """Expected tokens of a step for 0, 1, 2, ... drafted ones; prior: the chance among its kin."""
        overall = self.overall(prior, self.KIN)
        share = (self._passed + self.KIN * overall) / (self._tried + self.KIN)
        return np.concatenate([[1.0], 1 + np.cumsum(np.cumprod(share))])

    def __add__(self, other: "Acceptance") -> "Acceptance":
        both = Acceptance()
        both._tried, both._passed = self._tried + other._tried, self._passed + other._passed
        return both


class Seconds:
    """How long a step takes by number of drafted tokens.

    One row's: the median of the last ones. Of rows side by side, where a choice lasts longer: the fastest. What
    disturbs a step only makes it longer, for a step or a while, and what was measured in such a while would not be
    chosen, so not be measured again."""

    KEPT, KEPT_OF_MANY = 5, 15  # measurements of a length
    SLOPE = 0.2  # the first guess: a drafted token costs so much of a plain step
    LINE = 3.0  # the line's weight; that of n measurements is n squared
    OFF = 1.5  # how far it may draw

    def __init__(self, guess: Mapping[int, float] | None = None, rows: int = 1):
        """guess: seconds by length, of steps that are alike up to their speed: of another number of rows,
        or of another run."""
        self._guess = dict(guess or {})
        self._kept = self.KEPT if rows == 1 else self.KEPT_OF_MANY
        self._typical = low_median if rows == 1 else min
        self._measured: dict[int, deque[float]] = {}

    def add(self, length: int, seconds: float) -> None:
        self._measured.setdefault(length, deque(maxlen=self._kept)).append(seconds)

    def known(self) -> dict[int, float]:
        """Seconds by length: measured, or guessed and brought to the speed of what has been measured. One
        measurement alone does not outweigh a guess."""
        measured = {length: self._typical(seconds) for length, seconds in self._measured.items()}
        ratios = [self.ratio(length, seconds) for length, seconds in measured.items()]
        speed = low_median(ratios) if self._guess and ratios else 1.0
        guess = {length: speed * seconds for length, seconds in self._guess.items()}
        once = [k for k in guess.keys() & measured.keys() if len(self._measured[k]) == 1]
        return guess | measured | {k: min(guess[k], measured[k]) for k in once}

    def ratio(self, length: int, seconds: float) -> float:
        """Of these seconds to the guess for this length."""
        return seconds / float(self._line(self._guess, np.array(length))) if self._guess else 1.0

    def forget_guess(self) -> bool:
        """Go on with what has been measured; whether anything has."""
        self._guess = {}
        return bool(self._measured)

    @property
    def guessed(self) -> bool:
        """Whether there is a guess to compare measurements with."""
        return bool(self._guess)

    @property
    def drafted(self) -> bool:
        """Whether anything is known of a step that drafts."""
        return any(self._measured) or any(self._guess)

    @property
    def reach(self) -> int:
        """The longest draft worth a guess."""
        return max(8, 2 * max([*self._measured, *self._guess], default=0))

    def expected(self) -> np.ndarray:
        """Seconds for each of LENGTHS: known, between two known ones, or beyond them. As any measurement may be
        off, what is known by few is drawn to the straight line through all."""
        lengths, seconds = _never_shorter(self.known())
        if len(lengths) > 2:
            times = np.array([self._times(length) for length in lengths])
            ahead = lengths - (times @ lengths) / times.sum()
            slope = (times * ahead) @ seconds / ((times * ahead) @ ahead)
            line = (times @ seconds) / times.sum() + slope * ahead  # of least squares
            line = np.clip(line, seconds / self.OFF, seconds * self.OFF)
            seconds = (times**2 * seconds + self.LINE * line) / (times**2 + self.LINE)
        return self._line(dict(zip(lengths.tolist(), seconds.tolist(), strict=True)), LENGTHS)

    def _times(self, length: int) -> int:
        return (length in self._guess) + len(self._measured.get(length, ()))

    def _line(self, known: Mapping[int, float], at: np.ndarray) -> np.ndarray:
        lengths, seconds = _never_shorter(known)
        slope = self.SLOPE * seconds[0] / (1 + self.SLOPE * lengths[0])
        if len(lengths) > 1:
            slope = (seconds[-1] - seconds[0]) / (lengths[-1] - lengths[0])
        beyond = np.maximum(at - lengths[-1], 0) * slope
        before = np.maximum(lengths[0] - at, 0) * slope
        return np.interp(at, lengths, seconds) + beyond - before


def _never_shorter(known: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and seconds, in order. One measurement may be off; checking fewer tokens never takes longer."""
    lengths = np.array(sorted(known))
    seconds = np.array([known[length] for length in lengths.tolist()])
    return lengths, np.minimum.accumulate(seconds[::-1])[::-1]


def low_median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


class Reading:
    """What the draft model takes to read a token, and how long texts are, over which that is paid."""

    def __init__(self, guess: float | None = None):
        """guess: seconds a token."""
        self._guess = guess
        self._seconds: deque[float] = deque(maxlen=5)  # a token
        self._texts: deque[int] = deque(maxlen=16)

    def add(self, tokens: int, seconds: float, texts: Sequence[int]) -> None:
        """So many tokens were read in so many seconds, and texts of these lengths have ended."""
        self._texts.extend(texts)
        if tokens:
            self._seconds.append(seconds / tokens)

    @property
    def seconds(self) -> float | None:
        """A token's; None where nothing has been read."""
        return low_median(self._seconds) if self._seconds else self._guess

    def pays(self, unread: int, saved: float, room: int) -> bool:
        """Whether reading so many tokens pays where drafting saves so many seconds a token."""
        if not unread or self.seconds is None:
            return True
        left = min(float(room), float(np.mean(self._texts or [room])))
        return unread * self.seconds < left * saved
