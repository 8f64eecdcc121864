"""Texts in a given form: which tokens a grammar allows after a text, what it forces, and which drafts fit.

A row has a matcher of its own. Each question brings the whole text, and the matcher goes back to what that shares with
the last one, so rejected drafts, beams and replaced rows need no book-keeping.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from speculative.models.contract import common_prefix
from speculative.step.draft import FORCED, Candidate

LOOKAHEAD = 64  # tokens, at most, that a grammar is asked about at once


class Matcher:
    """A grammar's rules for one text. Its engine is llguidance's LLMatcher, or has the same methods."""

    def __init__(self, start: Any, usual: Callable[[Sequence[int], bytes], list[int]]):
        """start: the engine before a text; it is copied.
        usual: the tokens with which a text usually goes on in these bytes."""
        self._start, self._usual = start, usual
        self._engine = start.deep_copy()
        self._text: list[int] = []

    def copy(self) -> "Matcher":
        return Matcher(self._start, self._usual)

    def go_to(self, text: Sequence[int]) -> bool:
        """Move to the end of this text, or as far as the grammar allows it; return whether it allows all of it."""
        if self._engine.is_error():  # it stays so, but this text may be another
            self._engine = self._start.deep_copy()
            self._text = []
        shared = len(common_prefix([self._text, text]))
        self._engine.rollback(len(self._text) - shared)
        length = shared + self._engine.try_consume_tokens(list(text[shared:]))
        self._text = list(text[:length])
        return length == len(text)

    def allowed(self, text: Sequence[int]) -> np.ndarray:
        """The tokens that may follow, boolean [V or a few more]: none of a wrong text, only ends if the engine failed."""
        fits = self.go_to(text)
        mask = self._engine.compute_bitmask()
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little").astype(bool)
        return bits & (fits or self._engine.is_error())

    def is_complete(self, text: Sequence[int]) -> bool:
        return self.go_to(text) and self._engine.is_accepting()

    def goes_on(self, text: Sequence[int]) -> bool:
        """Whether the tokens can write what has to follow a text, as far as the next one shows."""
        return bool(self.allowed(text).any()) and not self._engine.is_error()

    def passing(self, text: Sequence[int], tokens: Sequence[int]) -> int:
        """The number of these tokens that may follow a text."""
        return self._engine.validate_tokens(list(tokens)) if self.go_to(text) else 0

    def forced(self, text: Sequence[int], max_tokens: int) -> list[int]:
        """The first tokens of what must follow a text, which may have no end, in the usual tokenization."""
        if not self.go_to(text):
            return []
        # Of a copy: after this an llguidance that comes to a special token allows nothing.
        new = self._engine.deep_copy().compute_ff_bytes()
        tokens = self._usual(text, new[: 16 * max_tokens])[:max_tokens] if new else []
        return tokens[: self.passing(text, tokens)]

    def fitting(
        self, text: Sequence[int], candidates: Sequence[Candidate], max_length: int
    ) -> list[Candidate]:
        """Candidates to follow a text, as far as they fit, and first of all the tokens that must follow. These cost no model
        and nearly always pass: the target may only prefer other tokens for the same text."""
        max_length = min(max_length, LOOKAHEAD)
        forced = self.forced(text, max_length)
        fits = []
        if forced:
            fits.append(Candidate(FORCED, len(forced), lambda n: forced[:n]))
        for candidate in candidates:
            allowed = candidate.max_length
            if candidate.copy:
                allowed = self.passing(text, candidate.copy(min(allowed, max_length)))
            if not candidate.copy or allowed > len(forced):
                fits.append(replace(candidate, max_length=allowed))
        return fits
