"""The data of a step: candidates, plan, draft and result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np

FORCED = "forced"  # the drafter of what a row's form forces


@dataclass(frozen=True)
class Candidate:
    """Tokens that a drafter could propose for a row."""

    drafter: str
    max_length: int
    copy: Callable[[int], Sequence[int]] | None = None  # the first n of them; None: a draft model's
    # Groups a drafter's candidates with similar acceptance; a new group starts from the drafter's mean
    state: str = ""
    missing: int = 0  # tokens that the draft model has to read before it can draft

    @property
    def origin(self) -> str:
        """Its tokens' origin: see row.ORIGINS."""
        if self.drafter == FORCED:
            return FORCED
        return "lookup" if self.copy else "draft_model"


@dataclass(frozen=True)
class Plan:
    """The draft to make in a step: for each row one of its candidates, and at most how many tokens of it."""

    candidates: list[Candidate | None]  # None: nothing is drafted for the row
    limits: np.ndarray  # [B]
    # Whether to stop, given confidences [B, n] of the first tokens and how many tokens each row has
    stop: Any = None
    idle_next: bool = False  # nothing is drafted, and probably nothing in the next step
    learns: bool = False  # the schedule wants to observe the step

    @property
    def modelled(self) -> np.ndarray:
        """The rows [B] that a draft model drafts for."""
        return np.array([c is not None and c.copy is None for c in self.candidates], bool)

    def only(self, drafting: np.ndarray) -> "Plan":
        """The plan for the rows where `drafting` [B] is true, and nothing for the others."""
        return replace(self, limits=np.where(drafting, self.limits, 0))


@dataclass(frozen=True)
class Draft:
    tokens: mx.array  # [B, k]
    lengths: np.ndarray  # [B], how many of a row's tokens count
    q: mx.array | None = None  # [B, k, V'], their distributions; None: all tokens are certain
    certain: np.ndarray | None = None  # [B, k], certain tokens, where q is ignored
    # [B, n]: how sure a draft model is of the first ones, p / (p + the best other token's p); negative where a
    # token ends the text, 0 where a row has none; None: unknown.
    confidence: np.ndarray | None = None
    prefill_seconds: float = 0.0  # of the draft model, before it could draft


def no_plan(batch_size: int, **others: Any) -> Plan:
    """A plan to draft nothing. others: its other fields"""
    return Plan([None] * batch_size, np.zeros(batch_size, np.int32), **others)


def no_draft(batch_size: int) -> Draft:
    return Draft(mx.zeros((batch_size, 0), mx.int32), np.zeros(batch_size, np.int32))


@dataclass
class Step:
    """The candidates, plan and draft of a step, what each row gained, and the step's times."""

    plan: Plan
    draft: Draft
    accepted: list[int] = field(default_factory=list)  # by row: drafted tokens in its text
    seconds: float = 0.0  # without the draft model's prefill
    offered: Sequence[Sequence[Candidate]] = ()  # by row: all its candidates
    gained: list[list[int]] = field(default_factory=list)  # by row: the new tokens of its text
