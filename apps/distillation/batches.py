"""Training batches: texts as the target sees them, and drafts from each of their tokens.

As in use, a draft's first token follows on the target's state and each further one on the draft model's own. So a text
is drafted from all of its tokens at once, some tokens deep (EAGLE-3, Li et al. 2025, arXiv 2503.01840).
Shapes: B rows, S source tokens, T tokens, D width.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from apps.distillation.texts import TrainingText
from speculative.models.contract import padded
from speculative.models.distilled import STATES, target_states
from speculative.step.cache import MASKED, CrossCache

SLICE = 1024  # tokens whose logits are computed together
RIDGE = 0.01  # of the states' mean square
ReadBatch = Callable[[], "TrainingBatch"]


class DraftsCache(CrossCache):
    """Drafts from every token at once. Call m decodes the m-th draft token of every position: it attends to the real
    tokens before the draft, and to the draft's own m - 1 tokens."""

    @property
    def distance(self) -> np.ndarray:
        T = self._queries.shape[1]
        depth = self.cursor // T - 1
        behind = self._queries[:, :, None] - self.position[:, None, : self.cursor]
        call = np.arange(self.cursor) // T
        seen = np.where(call == 0, behind >= depth, behind == depth - call)
        return np.where(seen, behind, -1)


@dataclass(frozen=True)
class TrainingBatch:
    """Texts as the target sees them: its encoder's output and its states."""

    encoded: mx.array  # [B, S, D]
    mask: np.ndarray  # [B, S]
    tokens: np.ndarray  # [B, T]
    positions: np.ndarray  # [B, T]
    states: mx.array  # [B, T, W], of which the last D are the head's input
    prefix: np.ndarray  # [B, 1], how many of a row's tokens the target did not write

    @classmethod
    def from_texts(cls, target: Any, texts: Sequence[TrainingText]) -> "TrainingBatch":
        tokens, mask = padded([text.tokens for text in texts], target.config.pad_token_id)
        steps = np.arange(tokens.shape[1], dtype=np.int32)
        positions = np.where(mask, steps, MASKED).astype(np.int32)
        seen = [text.seen for text in texts if text.seen]
        if len(seen) == len(texts):
            encoded, states = (_stacked(arrays) for arrays in zip(*seen, strict=True))
            lengths = np.array([len(encoded) for encoded, _ in seen])
            mask = np.arange(encoded.shape[1]) < lengths[:, None]
        else:
            cache = target.start([text.prompt for text in texts])
            cache.keep_states(target_states)
            target.states(mx.array(tokens), positions, cache)
            states = cache.states(positions)
            encoded, mask = cache.encoded(range(len(texts)))
        mx.eval(encoded, states)
        prefix = np.array([text.prefix for text in texts])[:, None]
        return cls(encoded, mask, tokens, positions, states, prefix)

    @property
    def labels(self) -> np.ndarray:
        """The token after each: [B, T]."""
        return np.roll(self.tokens, -1, axis=1)

    @property
    def head_input(self) -> mx.array:
        """[B, T, D]."""
        return self.states[..., -self.states.shape[-1] // STATES :]

    def drafted(self, depth: int) -> np.ndarray:
        """Whether each token [B, T] has a label that may be number `depth` of a draft, counted from 0."""
        T = self.tokens.shape[1]
        last = np.pad(self.positions, [(0, 0), (0, 1)], constant_values=MASKED)[:, 1:] == MASKED
        return ~last & (np.arange(T) >= self.prefix - 1 + depth)


def _stacked(arrays: Sequence[mx.array]) -> mx.array:
    """Arrays [n, W] with zeros behind them: [B, N, W]."""
    longest = max(map(len, arrays))
    return mx.stack([mx.pad(x, [(0, longest - len(x)), (0, 0)]) for x in arrays])


def _shifted(states: mx.array) -> mx.array:
    """States [B, T, D] one token later."""
    return mx.pad(states, [(0, 0), (1, 0), (0, 0)])[:, :-1]


def fit_mix(draft: Any, target: Any, batches: Iterable[TrainingBatch]) -> Iterator[mx.array | None]:
    """Fit the weights of `mix` with which the draft model's first layer reads nearly what it reads in the target: ridge
    regression, from the target's states before a token and from the last of them alone. Yields None after each batch, and then
    the weights."""
    xx: Any = 0.0
    xy: Any = 0.0
    for batch in batches:
        above = _layer_input(target, range(draft.layers[0]), batch)
        missing = np.array((above - _layer_input(target, (), batch)).astype(mx.float32))
        in_text = (batch.positions != MASKED) & (batch.positions >= batch.prefix)
        x = np.array(_shifted(batch.states).astype(mx.float32))[in_text]
        xx = xx + x.T @ x
        xy = xy + x.T @ missing[in_text]
        yield None
    xx += RIDGE * np.trace(xx) / len(xx) * np.eye(len(xx))
    last = -len(xx) // STATES
    own = np.linalg.solve(xx[last:, last:], xy[last:])
    yield mx.array(np.concatenate([np.linalg.solve(xx, xy), own]).T.astype(np.float32))


def _layer_input(target: Any, before: Sequence[int], batch: TrainingBatch) -> mx.array:
    """The input, for a batch, of the target's layer behind these layers: [B, T, D]."""
    part = copy(target)
    part.decoder = target.decoder.only(before)
    part.decoder.pop("norm", None)
    cache = part.attend_to(batch.encoded, batch.mask)
    return part.states(mx.array(batch.tokens), batch.positions, cache)


def drafts(draft: Any, batch: TrainingBatch, depth: int) -> list[mx.array]:
    """The draft model's states [B, T, D] after each token of a batch: as the first of a draft, the second, ..."""
    cache = draft.attend_to(batch.encoded, batch.mask, DraftsCache)
    after_prefix = mx.array(np.arange(batch.tokens.shape[1]) >= batch.prefix)
    cache.previous = _shifted(batch.states) * after_prefix[:, :, None]
    tokens = mx.array(batch.tokens)
    states = []
    for _ in range(depth):
        states.append(draft.states(tokens, batch.positions, cache))
        cache.previous = _shifted(states[-1])
    return states
