"""The part of the vocabulary that a draft model scores: its head is faster, and the text stays the target's."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

MAX_NEW = 0.05  # make a set once at most this share of tokens is expected to be new
MIN_TOKENS = 1000  # tokens that must be written before that
MAX_MISSES = 32  # make it again after this many tokens that it lacked


@dataclass(frozen=True)
class Narrowed:
    model: Any
    tokens: frozenset[int]
    ids: mx.array  # these tokens, in the order of its logits
    vocab_size: int

    def widened(self, logits: mx.array) -> mx.array:
        """Logits [B, V] of all tokens from the model's own [B, n]: -inf for tokens that it does not score."""
        wide = mx.full((len(logits), self.vocab_size), -mx.inf, logits.dtype)
        wide[:, self.ids] = logits
        return wide


@dataclass(eq=False)
class DraftVocabulary:
    """The tokens that a draft model scores (after FR-Spec, arXiv 2502.14856, and VocabTrim, arXiv 2506.22694): given ones, or
    those that the target has written so far, by target language. The target can still write all the others."""

    model: Any
    size: int  # the target lacks ids from here on
    tokens: Collection[int] | None = None  # None: learn them
    # Adds tokens that any text may need
    complete: Callable[[Collection[int]], Collection[int]] = lambda tokens: tokens

    def __post_init__(self):
        self._written = defaultdict[str | None, Counter[int]](Counter)
        self._made: Narrowed | None = None
        self._languages: Collection[str | None] = ()  # of what was made
        self._misses = 0  # since then
        if self.tokens is not None:
            self._make(self.tokens)

    def __str__(self) -> str:
        if not self._made:
            return "draft vocabulary: all tokens, as many new ones came"
        return f"draft vocabulary: {len(self._made.tokens):,} of {self.size:,} tokens"

    def narrowed(self, languages: Collection[str | None]) -> Narrowed | None:
        """The model for rows of these target languages; None: use the whole model."""
        if self.tokens is not None:
            return self._made
        counts = [self._written[language] for language in languages]
        if not all(map(_new_are_rare, counts)):
            return None
        tokens = set().union(*counts)
        covered = self._made and set(languages) <= set(self._languages)
        if not covered or self._misses >= MAX_MISSES:
            self._make(tokens)
            self._languages = set(languages)
        return self._made

    def learn(self, tokens: Iterable[int], language: str | None) -> None:
        """Learn from the tokens of a finished text."""
        tokens = list(tokens)
        if self._made:
            self._misses += sum(token not in self._made.tokens for token in tokens)
        if self.tokens is None:
            self._written[language].update(tokens)

    def _make(self, tokens: Collection[int]) -> None:
        scored = sorted(token for token in self.complete(tokens) if token < self.size)
        ids = mx.array(scored, mx.int32)
        self._misses = 0
        self._made = Narrowed(self.model.narrowed(ids), frozenset(scored), ids, self.size)


def _new_are_rare(written: Counter[int]) -> bool:
    """Whether new tokens are rare: their expected share is that of tokens written once (Good 1953)."""
    once = sum(n == 1 for n in written.values())
    total = written.total()
    return total >= MIN_TOKENS and once <= MAX_NEW * total
