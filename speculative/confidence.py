"""When a draft model is to stop: the rule, and what its confidence is worth.

The confidence of a drafted token is p / (p + q), where p is the probability that the draft model gave it and q
that of the best other one. (By replay as telling as p, within 2 %; and it needs no sum over the vocabulary.) It
tells more of the token than its kind or place does, but only once the token has been drafted, so that a draft is
worth going on with, or not, token by token. In the long run tokens per second, r, are the most where a step goes on
as long as what it is yet expected to bring is more than r times the seconds which that takes (Dinkelbach 1967, on
the quotient of tokens and seconds): for one more token

    a(c_1) a(c_2) ... a(c_k) a > r (C(k + 1) - C(k))

where a(c) is the share of tokens of confidence c that passed, a that of all, and C(k) the seconds of a step that
drafts k. Products of matrices become dearer in steps, so more tokens than one are looked at as well. Rows side by
side share a step's seconds, and what their drafts are expected to bring is added up.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from speculative.estimates import Evidence


class Calibration(Evidence):
    """The chances of a draft model's tokens, by confidence."""

    EDGES = np.array([0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.997])  # of the classes
    GUESS = (np.append(0, EDGES) + np.append(EDGES, 1)) / 2  # at first, right as often as it thinks
    WORTH = 4.0  # tokens of evidence that this is worth

    def __init__(self):
        super().__init__(len(self.GUESS))

    def update(self, confidence: np.ndarray, accepted: int) -> None:
        """Tokens of these confidences were drafted; the first `accepted` passed, the next one did not."""
        tried = np.searchsorted(self.EDGES, confidence[: accepted + 1], side="right")
        np.add.at(self._tried, tried, 1)
        np.add.at(self._passed, tried[:accepted], 1)

    def chance(self, confidence: np.ndarray) -> np.ndarray:
        share = (self._passed + self.WORTH * self.GUESS) / (self._tried + self.WORTH)
        return share[np.searchsorted(self.EDGES, confidence, side="right")]


@dataclass(frozen=True)
class Stop:
    """Whether to stop, in one step."""

    least: np.ndarray  # [k + 1], by drafted tokens: of how many rows all has to be expected to pass
    chance: Callable[[np.ndarray], np.ndarray]  # of passing, by confidence
    mean: float  # the chance of a token whose confidence is not known yet

    def __call__(self, confidence: np.ndarray, drafted: int) -> bool:
        """After so many tokens a row, of the first of which the confidences are known, [B, n]: negative where
        a token ends the text, and 0 where a row has none."""
        known = confidence.shape[1]
        passes = np.where(confidence > 0, self.chance(confidence), 0).prod(axis=1).sum()
        return bool(passes * self.mean ** (drafted - known) <= self.least[drafted])

    def after(self, drafted: int) -> "Stop":
        """The same, but never before so many tokens."""
        least = np.full(max(len(self.least), drafted + 1), np.inf)
        least[: len(self.least)] = self.least
        least[:drafted] = 0
        return replace(self, least=least)


def stop_where_it_pays(seconds: np.ndarray, rate: float, calibration: Calibration) -> Stop:
    """seconds [k + 1]: of a step, by drafted tokens; rate: tokens per second, of all rows."""
    mean = calibration.overall()
    drafted = np.arange(len(seconds))
    more = drafted - drafted[:, None]  # [k + 1, k + 1]: from so many to so many
    brought = mean * (1 - mean ** np.maximum(more, 1)) / (1 - mean)  # where all so far passes
    needed = np.where(more > 0, rate * (seconds - seconds[:, None]) / brought, np.inf)
    return Stop(needed.min(axis=1), calibration.chance, mean)
