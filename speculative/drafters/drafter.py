"""The interface of drafters, which propose the next tokens for the target to verify."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from speculative.models.contract import TokenLists
from speculative.step.cached_model import CachedModel
from speculative.step.draft import Candidate, Draft, Plan
from speculative.step.row import Row
from speculative.step.sampling import Greedy, Sampler


class Drafter:
    """The interface of all drafters; this one proposes nothing, which is plain decoding, but can copy. contexts: each row's
    tokens so far, the model's prefix first; a finished row has none."""

    _batch: Sequence[Row] = ()

    def follow(self, target: CachedModel) -> None:
        """Called once, before `admit`: the model that verifies the drafts."""

    def admit(self, batch: Sequence[Row], new: Sequence[int]) -> None:
        """`batch` holds all rows from now on; those at the indices `new` have just begun."""
        self._batch = list(batch)

    def select(self, indices: Sequence[int]) -> None:
        """Go on with these rows only."""
        self._batch = [self._batch[b] for b in indices]

    def candidates(self, contexts: TokenLists) -> list[list[Candidate]]:
        """The candidates for each row, likeliest first."""
        return [[] for _ in contexts]

    def draft(self, contexts: TokenLists, plan: Plan, sampler: Greedy | Sampler) -> Draft:
        """Propose up to plan.limits [B] tokens, on the device, from each row's candidate in the plan: here copies."""
        tokens = np.zeros((len(contexts), plan.limits.max()), np.int32)
        for b, candidate in enumerate(plan.candidates):
            if candidate and candidate.copy:
                length = int(plan.limits[b])
                tokens[b, :length] = candidate.copy(length)
        return Draft(mx.array(tokens), plan.limits)

    def keep(self, n: np.ndarray) -> None:
        """n [B]: how many of its last proposals each row kept."""

    def learn(self, done: Sequence[Row]) -> None:
        """Learn from rows that have finished."""
