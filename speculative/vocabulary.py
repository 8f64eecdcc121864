"""A draft model that scores fewer tokens: those of the texts at hand. What it never proposes, the target still writes.

Zhao et al. 2025 (FR-Spec, arXiv 2502.14856) and Goel et al. 2025 (VocabTrim, arXiv 2506.22694) keep frequent tokens
of one language. Here they are given, or learned from the texts of this run, for each target language apart.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

RARE = 0.1  # a set is made once no more tokens than that are expected to be new
LEAST = 1000  # tokens that have to be written before
MISSES = 32  # it is made again after so many tokens that it lacked


@dataclass(frozen=True)
class Narrowed:
    """A model that scores some tokens only."""

    model: Any
    tokens: frozenset[int]
    ids: mx.array  # these tokens, in the order of its logits
    vocab_size: int

    def widened(self, logits: mx.array) -> mx.array:
        """Logits [B, V] of all tokens, -inf but for those that the model scores, from its own [B, n]."""
        wide = mx.full((len(logits), self.vocab_size), -mx.inf, logits.dtype)
        wide[:, self.ids] = logits
        return wide


class DraftVocabulary:
    """What a draft model is to score: given tokens, or those that the target has written so far."""

    def __init__(
        self,
        model: Any,
        size: int,
        tokens: Collection[int] | None = None,
        complete: Callable[[Collection[int]], Collection[int]] = lambda tokens: tokens,
    ):
        """size: ids from here on are not the target's. tokens: None to learn them.
        complete: adds what belongs to any text of such tokens, such as single characters."""
        self._model, self._size, self._given, self._complete = model, size, tokens, complete
        self._written: defaultdict[str | None, Counter[int]] = defaultdict(Counter)
        self._made: Narrowed | None = None
        self._languages: Collection[str | None] = ()  # of what was made
        self._misses = 0  # since then
        # Tokens since the first set, and those of them that the set of the moment lacked.
        self.written = self.missed = 0
        if tokens is not None:
            self._make(tokens)

    def __str__(self) -> str:
        if not self._made:
            return "draft vocabulary: all tokens, as many new ones came"
        kept, missed = len(self._made.tokens), self.missed / max(1, self.written)
        others = f"{missed:.1%} of the {self.written:,} tokens written since are others"
        return f"draft vocabulary: {kept:,} of {self._size:,} tokens; {others}"

    def narrowed(self, languages: Collection[str | None]) -> Narrowed | None:
        """The model for rows of these target languages; None: the whole."""
        if self._given is not None:
            return self._made
        counts = [self._written[language] for language in languages]
        if not all(map(_known, counts)):
            return None
        tokens = set().union(*counts)
        covered = self._made and set(languages) <= set(self._languages)
        if not covered or self._misses >= MISSES:
            self._make(tokens)
            self._languages = set(languages)
        return self._made

    def learn(self, tokens: Iterable[int], language: str | None) -> None:
        """Take the tokens of a text that is finished."""
        tokens = list(tokens)
        if self._made:
            self.written += len(tokens)
            misses = sum(token not in self._made.tokens for token in tokens)
            self.missed += misses
            self._misses += misses
        if self._given is None:
            self._written[language].update(tokens)

    def _make(self, tokens: Collection[int]) -> None:
        kept = sorted(token for token in self._complete(tokens) if token < self._size)
        ids = mx.array(kept, mx.int32)
        self._misses = 0
        self._made = Narrowed(self._model.narrowed(ids), frozenset(kept), ids, self._size)


def _known(written: Counter[int]) -> bool:
    """Whether few new tokens are to be expected: their share is that of tokens written once (Good 1953)."""
    once, total = sum(n == 1 for n in written.values()), written.total()
    return total >= LEAST and once <= RARE * total
