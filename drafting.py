"""Drafters: what proposes the next tokens for the target to check.

A drafter has
    start(tokens [B, S], mask [B, S])   new sources
    replace(rows, tokens, mask)         new sources in the place of some rows
    select(rows)                        go on with these rows only
    draft(rows, lengths, sampler)       up to lengths [B] proposals for each row: a Draft
    keep(n [B])                         how many of its last proposals each row kept
where `rows` holds the tokens decoded so far, the decoder's start token first, and an empty list for
a row that is finished.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from cache import DEAD, Cache
from model import T5
from sampling import Draft, Greedy, Sampler

Rows = Sequence[Sequence[int]]


def lacking(rows: Rows, cache: Cache, filler: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of each row that the cache does not hold yet, and their positions: [B, P] each.

    Usually one per row; two after a draft that was accepted whole. Rows end at the block's right
    edge, and what fills a shorter one up has the position DEAD.
    """
    held = cache.lengths
    new = [row[n:] for row, n in zip(rows, held, strict=True)]
    width = max(map(len, new))
    tokens = np.full((len(rows), width), filler, np.int32)
    positions = np.full((len(rows), width), DEAD, np.int32)
    for b, row in enumerate(new):
        tokens[b, width - len(row) :] = row
        positions[b, width - len(row) :] = np.arange(held[b], held[b] + len(row))
    return tokens, positions


def following(rows: Rows, lengths: np.ndarray) -> np.ndarray:
    """The positions [B, k] of lengths [B] tokens after each row; DEAD beyond them."""
    first = np.array([len(row) for row in rows], np.int32)[:, None]
    ahead = np.arange(lengths.max(), dtype=np.int32)
    return np.where(ahead < lengths[:, None], first + ahead, DEAD)


class ModelDrafter:
    """Drafts with a smaller model, token by token, without waiting for any of them."""

    def __init__(self, model: T5, vocab_size: int | None = None):
        """vocab_size: ids from here on are never proposed (those that the target does not share)."""
        self._model = model
        self._vocab_size = vocab_size or model.config.vocab_size

    def start(self, tokens: mx.array, mask: np.ndarray) -> None:
        self._cache = self._model.start(tokens, mask)
        self._lacked = 0  # how many tokens per row went before the last proposals

    def replace(self, rows: Sequence[int], tokens: mx.array, mask: np.ndarray) -> None:
        self._cache.replace(rows, self._model.start(tokens, mask))

    def select(self, rows: Sequence[int]) -> None:
        self._cache.select(rows)

    def draft(self, rows: Rows, lengths: np.ndarray, sampler: Greedy | Sampler) -> Draft:
        config = self._model.config
        tokens, positions = lacking(rows, self._cache, config.pad_token_id)
        tokens[tokens >= config.vocab_size] = config.pad_token_id  # the target may know more ids
        self._lacked = tokens.shape[1]
        ahead = following(rows, lengths)
        token, drafted, q = mx.array(tokens), [], []
        for i in range(ahead.shape[1]):
            logits = self._model.decode(token, positions, self._cache)[:, -1, : self._vocab_size]
            token, distribution = sampler.propose(logits, rows, i)
            token, positions = token[:, None], ahead[:, i : i + 1]
            drafted.append(token)
            q.append(distribution)
        tokens = mx.concatenate(drafted, axis=1)
        return Draft(tokens, lengths, None if q[0] is None else mx.stack(q, axis=1))

    def keep(self, n: np.ndarray) -> None:
        # The last proposal was never fed: `Cache.keep` keeps at most what was written.
        self._cache.keep(self._lacked + n)
