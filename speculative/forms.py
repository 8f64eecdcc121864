"""Candidates in texts of a given form: what the form forces, and what other drafters propose as far as it fits.

Forced tokens cost no model and nearly always pass: the target may only prefer other tokens for the same text.
"""

from collections.abc import Sequence
from dataclasses import replace

from speculative.draft import FORCED, Candidate
from speculative.grammar import LOOKAHEAD
from speculative.row import Row


def fitting(row: Row, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """A row's candidates as far as its form allows them, and first of all the tokens that it forces."""
    if not row.grammar or row.finish_reason or row.options.num_draft == 0:
        return candidates
    max_length = min(row.room - 1, LOOKAHEAD)
    forced = row.grammar.forced(row.generated, max_length)
    fits = []
    if forced:
        fits.append(Candidate(FORCED, len(forced), lambda n: forced[:n]))
    for candidate in candidates:
        allowed = candidate.max_length
        if candidate.copy:
            tokens = candidate.copy(min(allowed, max_length))
            allowed = row.grammar.passing(row.generated, tokens)
        if not candidate.copy or allowed > len(forced):
            fits.append(replace(candidate, max_length=allowed))
    return fits
