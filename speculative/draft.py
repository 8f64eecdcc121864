"""The data of a step: candidates, plan, draft and result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np


@dataclass(frozen=True)
class Candidate:
    """Tokens that a drafter could propose for a row.

    kind: groups candidates with similar acceptance; a new kind starts from the kinds that share its beginning,
        up to a comma
    most: how many tokens it has
    copy: returns the first n of them; None for a draft model
    unread: how many tokens the draft model has to read before it can draft
    forced: the first of its tokens, which a grammar forces
    """

    kind: str
    most: int
    copy: Callable[[int], Sequence[int]] | None = None
    unread: int = 0
    forced: tuple[int, ...] = ()

    @property
    def modelled(self) -> bool:
        """Whether it is a draft model's; only these take time before the target's call."""
        return self.copy is None


@dataclass(frozen=True)
class Plan:
    """What to draft in a step: for each row one of its candidates, and at most how many tokens of it."""

    candidates: list[Candidate | None]  # None: nothing is drafted for the row
    limits: np.ndarray  # [B]
    # Whether to stop, given confidences [B, n] of the first tokens and how many tokens each row has
    stop: Callable[[np.ndarray, int], bool] | None = None
    idle_next: bool = False  # nothing is drafted, and probably nothing in the next step
    learns: bool = False  # the schedule wants to observe the step

    @property
    def modelled(self) -> np.ndarray:
        """The rows [B] that a draft model drafts for."""
        return np.array([c is not None and c.modelled for c in self.candidates], bool)

    @property
    def unread(self) -> int:
        """How many tokens the draft model has to read before it can draft."""
        return sum(c.unread for c in self.candidates if c is not None)

    def only(self, rows: np.ndarray) -> "Plan":
        """The plan for the rows where `rows` [B] is true, and nothing for the others."""
        candidates = [c if row else None for c, row in zip(self.candidates, rows, strict=True)]
        return Plan(candidates, np.where(rows, self.limits, 0), stop=self.stop)


@dataclass(frozen=True)
class Draft:
    """What a drafter proposed for B rows."""

    tokens: mx.array  # [B, k]
    lengths: np.ndarray  # [B], how many of a row's tokens count
    q: mx.array | None = None  # [B, k, V'], their distributions; None: they were certain
    certain: np.ndarray | None = None  # [B, k], certain tokens, where q is ignored
    # [B, n]: how sure a draft model is of the first ones, p / (p + the best other token's p); negative where a
    # token ends the text, 0 where a row has none; None: unknown.
    confidence: np.ndarray | None = None
    prefill_seconds: float = 0.0  # of the draft model, before it could draft


def no_draft(batch_size: int) -> Draft:
    return Draft(mx.zeros((batch_size, 0), mx.int32), np.zeros(batch_size, np.int32))


@dataclass
class Step:
    """What was planned, what was drafted, how many drafted tokens of each row are in its text, and its times."""

    plan: Plan
    draft: Draft
    accepted: list[int]
    seconds: float = 0.0  # without the draft model's prefill

    @property
    def prefill_seconds(self) -> float:
        """Until the draft model had read what it lacked."""
        return self.draft.prefill_seconds


def plain_step(batch_size: int) -> Step:
    """A step for which nothing was drafted."""
    plan = Plan([None] * batch_size, np.zeros(batch_size, np.int32))
    return Step(plan, no_draft(batch_size), [0] * batch_size)
