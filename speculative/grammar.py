"""Texts in a given form: which tokens a grammar allows after a text, and what it forces.

A row has a matcher of its own. It is told no history: each question brings the whole text, and the matcher goes back to
what that shares with the last one, so rejected drafts, beams and replaced rows need no book-keeping.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Usual = Callable[[Sequence[int], bytes], list[int]]


class Matcher:
    """What a grammar allows. The engine is llguidance's LLMatcher, or whatever has its methods."""

    def __init__(self, start: Any, usual: Usual):
        """start: the engine before a text; it is copied.
        usual: the tokens with which a text usually goes on in these bytes."""
        self._start, self._usual = start, usual
        self._engine, self._text = start.deep_copy(), list[int]()

    def copy(self) -> "Matcher":
        """A matcher for another row."""
        return Matcher(self._start, self._usual)

    def go_to(self, text: Sequence[int]) -> bool:
        """Read this text; return whether the grammar allows all of it."""
        if (
            self._engine.is_error()
        ):  # it stays so, but the text may have left what was too much for it
            self._engine, self._text = self._start.deep_copy(), []
        text, known = list(text), len(self._text)
        if text[:known] != self._text:
            pairs = zip(text, self._text, strict=False)
            same = next((i for i, (new, old) in enumerate(pairs) if new != old), len(text))
            self._engine.rollback(known - same)
            known = same
        self._text = text[: known + self._engine.try_consume_tokens(text[known:])]
        return len(self._text) == len(text)

    def allowed(self, text: Sequence[int]) -> np.ndarray | None:
        """Which tokens may follow a text, boolean [V]; none of them after one that is not allowed itself. None: the
        engine has failed; this text is too much for it."""
        fits = self.go_to(text)
        bits = np.unpackbits(
            np.frombuffer(self._engine.compute_bitmask(), np.uint8), bitorder="little"
        )
        # An engine that fails allows the end of sequence and says nothing.
        if self._engine.is_error() or (
            self._engine.is_stopped() and not self._engine.is_accepting()
        ):
            return None
        return bits.astype(bool) & fits

    def passing(self, text: Sequence[int], tokens: Sequence[int]) -> int:
        """How many of these tokens may follow a text."""
        return self._engine.validate_tokens(list(tokens)) if self.go_to(text) else 0

    def forced(self, text: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens for what must follow a text, in the usual tokenization; the last may reach further."""
        if most < 1 or not self.go_to(text) or not (forced := self._engine.compute_ff_bytes()):
            return []
        tokens = self._usual(text, forced[: 64 * most])[
            :most
        ]  # a grammar may force a text without end
        return tokens[: self._engine.validate_tokens(tokens)]
