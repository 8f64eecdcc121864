"""What a draft model is trained and measured on: texts as the target sees them, and drafts from each of their tokens.

As in use, a draft's first token follows on the target's state and each further one on the draft model's own. So a text
is drafted from all of its tokens at once, some tokens deep (EAGLE-3, Li et al. 2025, arXiv 2503.01840).
Shapes: B rows, S source tokens, T tokens, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from distillation.texts import Text
from speculative.cache import MASKED, CrossCache
from speculative.model import padded

SLICE = 1024  # tokens whose logits are computed together


class DraftsCache(CrossCache):
    """Drafts from every token at once. Call number m reads the m-th drafted token of each: it sees the tokens up to its
    draft's first, as the first call read them, and its own draft's since."""

    @property
    def distance(self) -> np.ndarray:
        T = self._queries.shape[1]
        depth = self.cursor // T - 1
        position = self.position[:, None, : self.cursor]
        behind = self._queries[:, :, None] - position
        call = np.arange(self.cursor) // T
        seen = np.where(call == 0, behind >= depth, behind == depth - call)
        return np.where(seen, behind, -1)


@dataclass(frozen=True)
class Lesson:
    """A batch of texts as the target sees them: its encoder's output and its states."""

    encoded: mx.array  # [B, S, D]
    mask: np.ndarray  # [B, S]
    tokens: np.ndarray  # [B, T]
    positions: np.ndarray  # [B, T]
    states: mx.array  # [B, T, D]
    prefix: np.ndarray  # [B, 1], how many of a row's tokens the target did not write

    @classmethod
    def of(cls, target: Any, texts: Sequence[Text]) -> "Lesson":
        tokens, mask = padded([text.tokens for text in texts], target.config.pad_token_id)
        place = np.arange(tokens.shape[1], dtype=np.int32)
        positions = np.where(mask, place, MASKED).astype(np.int32)
        cache = target.start([text.prompt for text in texts])
        states = target.states(mx.array(tokens), positions, cache)
        encoded, mask = cache.encoded(range(len(texts)))
        mx.eval(encoded, states)
        prefix = np.array([text.prefix for text in texts])[:, None]
        return cls(encoded, mask, tokens, positions, states, prefix)

    @property
    def labels(self) -> np.ndarray:
        """The token after each: [B, T]."""
        return np.roll(self.tokens, -1, axis=1)

    def drafted(self, depth: int) -> np.ndarray:
        """Where tokens [B, T] have a label that may be number `depth` of a draft, counted from 0."""
        T = self.tokens.shape[1]
        last = np.pad(self.positions, [(0, 0), (0, 1)], constant_values=MASKED)[:, 1:] == MASKED
        return ~last & (np.arange(T) >= self.prefix - 1 + depth)

    def ends(self, row: int) -> tuple[int, int]:
        """The first place in a row with a label that the target wrote, and the one behind the last."""
        return int(self.prefix[row, 0]) - 1, int((self.positions[row] != MASKED).sum()) - 1


def _shifted(states: mx.array) -> mx.array:
    """States [B, T, D] one token later."""
    return mx.pad(states, [(0, 0), (1, 0), (0, 0)])[:, :-1]


def drafts(draft: Any, lesson: Lesson, depth: int) -> list[mx.array]:
    """The draft model's states [B, T, D] after each token of a lesson: as the first of a draft, the second, ..."""
    cache = draft.attend_to(lesson.encoded, lesson.mask, DraftsCache)
    after_prefix = mx.array(np.arange(lesson.tokens.shape[1]) >= lesson.prefix)
    cache.previous = _shifted(lesson.states) * after_prefix[:, :, None]
    tokens = mx.array(lesson.tokens)
    states = []
    for _ in range(depth):
        states.append(draft.states(tokens, lesson.positions, cache))
        cache.previous = _shifted(states[-1])
    return states
