"""Drafting in texts of a given form: what the form forces, beside what another drafter proposes.

A form that forces tokens leaves the target no choice there, so they cost no model and nearly always pass. (Where the
vocabulary can write the same text in other tokens, the target may prefer those.)
"""

from collections.abc import Sequence
from dataclasses import replace

from speculative.draft import FORCED, Candidate
from speculative.drafting import CombinedDrafter, Drafter
from speculative.grammar import LOOKAHEAD
from speculative.model import TokenLists
from speculative.row import Row


class FormDrafter(CombinedDrafter):
    """Offers the tokens that a row's form forces, and cuts another drafter's copies where the form forbids them."""

    def __init__(self, inner: Drafter):
        super().__init__(Drafter(), inner)

    def candidates(self, contexts: TokenLists) -> list[list[Candidate]]:
        offered = super().candidates(contexts)
        for b, row in enumerate(self._batch):
            if row.grammar and not row.finish_reason:
                offered[b] = _fitting(row, offered[b])
        return offered


def _fitting(row: Row, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The tokens that a row's form forces, as a candidate, and those candidates that the row can use."""
    assert row.grammar
    max_length = min(row.room - 1, LOOKAHEAD)
    forced = row.grammar.forced(row.generated, max_length)
    fitting = []
    if forced:
        fitting.append(Candidate(FORCED, len(forced), lambda n: forced[:n]))
    for candidate in candidates:
        if candidate.copy:
            tokens = candidate.copy(min(candidate.max_length, max_length))
            allowed = row.grammar.passing(row.generated, tokens)
            if allowed > len(forced):
                fitting.append(replace(candidate, max_length=allowed))
        else:
            fitting.append(candidate)
    return fitting
