"""Drafting in texts of a given form: first what the form forces, then what another drafter proposes.

A form that forces tokens leaves the target no choice there, so they cost no model and nearly always pass. (Where the
vocabulary can write the same text in other tokens, the target may prefer those.)
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import mlx.core as mx
import numpy as np

from speculative.draft import Candidate, Draft, Plan
from speculative.drafting import Drafter, DrafterAround
from speculative.grammar import LOOKAHEAD
from speculative.model import TokenLists
from speculative.row import Row
from speculative.sampling import Greedy, Sampler

FORCED = "forced"  # the drafter of what a form forces alone, and a state


class FormDrafter(DrafterAround):
    """Puts the tokens that a row's form forces in front of a draft model's, and cuts copies where the form forbids
    them. The other drafter knows nothing of forms: its rows go on with the forced tokens, as if these were committed.
    """

    def __init__(self, inner: Drafter):
        super().__init__(inner)
        self._forced = np.zeros(0, np.int32)  # [B], forced tokens in the last draft
        self._limits = np.zeros(0, np.int32)  # [B], how many more the other drafter could add

    def candidates(self, contexts: TokenLists) -> list[list[Candidate]]:
        offered = super().candidates(contexts)
        for b, row in enumerate(self._batch):
            if row.grammar and not row.finish_reason:
                offered[b] = _fitting(row, offered[b])
        return offered

    def draft(self, contexts: TokenLists, plan: Plan, sampler: Greedy | Sampler) -> Draft:
        forced = [
            candidate.forced[:limit] if candidate else ()
            for candidate, limit in zip(plan.candidates, plan.limits.tolist(), strict=True)
        ]
        self._forced = np.array([len(tokens) for tokens in forced], np.int32)
        self._limits = plan.limits - self._forced
        if not self._forced.any():
            return self._inner.draft(contexts, plan, sampler)
        inner_plan = replace(plan, limits=self._limits)
        modelled = plan.modelled & (self._limits > 0)
        if not modelled.any():
            return _joined(forced, self._inner.draft(contexts, inner_plan, sampler), 0)
        ahead = [
            row.followed_by(tokens) if tokens else row
            for row, tokens in zip(self._batch, forced, strict=True)
        ]
        if plan.stop:
            certain = int(self._forced[modelled].max())
            inner_plan = replace(inner_plan, stop=partial(_stop_behind, certain, plan.stop))
        draft = self._inner.draft(
            [row.context for row in ahead], inner_plan, sampler.for_rows(ahead, self._forced)
        )
        return _joined(forced, draft, int(self._forced[modelled].min()))

    def keep(self, n: np.ndarray) -> None:
        self._inner.keep(np.where(self._limits > 0, n - self._forced, 0))


def _fitting(row: Row, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that a row can use of these, and what its form forces alone."""
    assert row.grammar
    most = min(row.room - 1, LOOKAHEAD)
    forced = tuple(row.grammar.forced(row.generated, most))
    fitting = []
    for candidate in candidates:
        if candidate.copy:
            tokens = candidate.copy(min(candidate.max_length, most))
            allowed = row.grammar.passing(row.generated, tokens)
            if allowed > len(forced):
                fitting.append(replace(candidate, max_length=allowed))
        elif forced:
            state = f"{candidate.state}, {FORCED}"
            fitting.append(replace(candidate, state=state, forced=forced))
        else:
            fitting.append(candidate)
    if forced:
        fitting.append(Candidate(FORCED, len(forced), lambda n: forced[:n], forced=forced))
    return fitting


def _stop_behind(certain: int, stop: Callable, confidence: np.ndarray, drafted: int) -> bool:
    """Stop as another rule does, in a draft with so many certain tokens in front."""
    front = np.ones((len(confidence), certain))
    return stop(np.hstack([front, confidence]), drafted + certain)


def _joined(forced: Sequence[Sequence[int]], draft: Draft, common: int) -> Draft:
    """A draft with each row's forced tokens in front of its own.

    common: how many of them are forced in all rows with a draft model's tokens
    """
    counts = np.array([len(tokens) for tokens in forced])[:, None]
    front = np.zeros((len(forced), counts.max()), np.int32)
    for b, tokens in enumerate(forced):
        front[b, : len(tokens)] = tokens
    F, K = front.shape[1], draft.tokens.shape[1]
    lengths = counts[:, 0] + draft.lengths
    # What stands in each place [B, k]: a column of `front`, or of the draft, which comes behind it.
    place = np.arange(lengths.max())
    column = np.where(place < counts, place, np.minimum(F - counts + place, F + K - 1))
    index = mx.array(column)
    tokens = mx.concatenate([mx.array(front).astype(draft.tokens.dtype), draft.tokens], axis=1)
    q = None
    certain = None
    if draft.q is not None:
        q = mx.pad(draft.q, [(0, 0), (F, 0), (0, 0)])
        q = mx.take_along_axis(q, index[..., None], axis=1)
        certain = np.zeros((len(forced), K), bool) if draft.certain is None else draft.certain
        certain = np.take_along_axis(np.hstack([front >= 0, certain]), column, axis=1)
    confidence = draft.confidence
    if confidence is not None:
        n = confidence.shape[1]
        columns = np.minimum(column[:, : common + n], F + n - 1)
        confidence = np.take_along_axis(
            np.hstack([np.ones(front.shape), confidence]), columns, axis=1
        )
    return replace(
        draft,
        tokens=mx.take_along_axis(tokens, index, axis=1),
        lengths=lengths,
        q=q,
        certain=certain,
        confidence=confidence,
    )
