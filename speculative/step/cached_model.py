"""A model with its cache. Callers pass each row's tokens, and it reads those that the cache lacks: usually the last
one. A draft model lacks two after a fully accepted draft, because it never reads a draft's last token.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.models.contract import Model, Seen, TokenLists, missing_tokens
from speculative.step.cache import MASKED, CrossCache, SlotCache
from speculative.step.prefill import prefill
from speculative.step.prefix_cache import PrefixCache


class CachedModel:
    """A model that decodes rows together. `cache` is a SlotCache, but None until the first row is admitted."""

    MAX_MISSING = 8  # tokens: a row that lacks more catches up first
    states_of: Callable[..., mx.array] | None = None  # to keep for a draft model that reads them

    def __init__(self, model: Model, prefix_cache: PrefixCache | None = None):
        """prefix_cache: for a decoder-only model."""
        self.config = model.config
        self.model = model
        # Numbers on the host, and tokens on the device: the same for all processes that run the model together
        self.broadcast: Callable[[Any], np.ndarray] = np.array
        self._share: Callable[[mx.array], mx.array] = lambda tokens: tokens
        if model.ranks:
            self.broadcast = model.ranks.broadcast
            self._share = model.ranks.share
        self._full_model: Any = model  # `model` may be narrowed
        self._prefixes = prefix_cache if model.new_cache else None
        self.cache: Any = None
        self._num_read = 0  # tokens per row before the drafted ones in the last call
        self._ahead: mx.array | None = None  # logits [B, 1, V] of a call that has begun

    def admit(self, batch_size: int, indices: Sequence[int], prompts: TokenLists) -> list[int]:
        """Read a prompt for the row at each index in a batch of `batch_size`; rows may be replaced or new ones at the end.
        Return how many tokens of each prompt were in the prefix cache, when all is read."""
        self._forget_ahead()
        distinct = {tuple(prompt): prompt for prompt in prompts}  # equal prompts are read once
        fresh, reused = self._read(list(distinct.values()))
        numbers = {prompt: i for i, prompt in enumerate(distinct)}
        order = [numbers[tuple(prompt)] for prompt in prompts]
        if len(distinct) < len(order):
            fresh.select(order)
        self._insert(batch_size, indices, fresh)
        return [reused[i] for i in order]

    def _insert(self, batch_size: int, indices: Sequence[int], fresh: SlotCache) -> None:
        """Make the rows of a fresh cache these rows of the batch."""
        if self.cache is None:
            order = {b: i for i, b in enumerate(indices)}
            if list(indices) != list(range(batch_size)):
                fresh.select([order.get(b, 0) for b in range(batch_size)])
            if self.states_of and isinstance(fresh, CrossCache):
                fresh.keep_states(self.states_of)
            self.cache = fresh
        else:
            self.resize(batch_size)
            self.cache.replace(indices, fresh)
        self.cache.wait()

    def _read(self, prompts: TokenLists) -> tuple[Any, list[int]]:
        """A cache in which the prompts have been read, and how many tokens of each were known."""
        if not self._prefixes:
            return self.model.start(prompts), [0] * len(prompts)
        cache = self._full_model.new_cache(len(prompts))
        reused = self._prefixes.begin(self._full_model, cache, prompts)
        self._full_model.start(prompts, cache)
        if not cache.trimmable:  # later only the text's end can be kept
            for b, prompt in enumerate(prompts):
                self._prefixes.add(self._full_model, cache, b, prompt[:-1])
        return cache, reused

    def missing_of(self, prompt: Sequence[int]) -> int:
        """The number of a prompt's tokens that are not in the prefix cache."""
        cached = self._prefixes.cached_tokens(self._full_model, prompt) if self._prefixes else 0
        return len(prompt) - cached

    def remember(self, row: int, tokens: Sequence[int]) -> None:
        """Add what the cache holds of a row's tokens to the prefix cache."""
        if self._prefixes and self.cache:
            self._prefixes.add(self._full_model, self.cache, row, tokens)

    def resize(self, batch_size: int) -> None:
        """Make room for more rows; admit them before decoding."""
        held = len(self.cache.position) if self.cache else batch_size
        if self.cache and batch_size > held:
            self.cache.select([*range(held), *[0] * (batch_size - held)])

    def select(self, indices: Sequence[int]) -> None:
        self._forget_ahead()
        if self.cache:
            self.cache.select(indices)

    def __call__(self, contexts: TokenLists, drafted: mx.array, lengths: np.ndarray) -> mx.array:
        """Logits [B, 1 + k, V] after each row's last token and each of its drafted tokens [B, k], of which
        the first lengths[b] count. Call `keep` afterwards."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            self.catch_up(contexts)
            return self.decode(contexts, drafted, lengths)
        if drafted.shape[1]:  # the cache lacks nothing else
            ahead = mx.concatenate([ahead, self.decode(contexts, drafted, lengths)], axis=1)
        self._num_read = 1  # the token that was read ahead
        return ahead

    def run_ahead(self, contexts: TokenLists, tokens: mx.array, live: Sequence[bool]) -> None:
        """After a call without drafted tokens, begin the next one with tokens [B] that the host does not know yet."""
        if not any(live):
            return
        self.keep(np.zeros(len(contexts), int))
        positions = following(contexts, np.array(live, np.int32))
        self._ahead = self.model.decode(tokens[:, None], positions, self.cache)
        mx.async_eval(self._ahead)

    def _forget_ahead(self) -> None:
        """Discard a call that has begun ahead: rows join or leave."""
        if self._ahead is not None and self.cache:
            self._ahead = None
            self.cache.keep(np.zeros(len(self.cache.position), int))

    def decode(self, contexts: TokenLists, drafted: mx.array, lengths: np.ndarray) -> mx.array:
        """As a call, in one go whatever the cache lacks: `keep` can forget all of it."""
        tokens, positions = missing_tokens(contexts, self.cache.lengths, self.config)
        self._num_read = tokens.shape[1]
        block = mx.array(tokens)
        if drafted.shape[1]:
            block = mx.concatenate([block, self._share(drafted)], axis=1)
            positions = np.concatenate([positions, following(contexts, lengths)], axis=1)
        logits = self.model.decode(block, positions, self.cache)
        return logits[:, max(self._num_read - 1, 0) :]

    def begin(self, contexts: TokenLists, prefix_sizes: Sequence[int]) -> mx.array:
        """Begin drafts: logits [B, V] after each row's last token. prefix_sizes: how many of its first ones it did not write"""
        nothing = mx.zeros((len(contexts), 0), mx.int32)
        return self.decode(contexts, nothing, np.zeros(len(contexts), int))[:, -1]

    def feed(self, tokens: mx.array, positions: np.ndarray) -> mx.array:
        """Logits [B, V] after one more drafted token of each row, tokens and positions [B, 1]."""
        return self.model.decode(tokens, positions, self.cache)[:, -1]

    def seen(self, b: int, tokens: Sequence[int]) -> Seen | None:
        """What the target has seen of a row's text, if the draft model reads that."""
        return None

    def keep(self, n: np.ndarray) -> None:
        """Keep the first n[b] of each row's drafted tokens, or all that were read; forget the others."""
        if self.cache and self._ahead is None:
            self.cache.keep(self._num_read + n)

    def missing(self, contexts: TokenLists) -> np.ndarray:
        """The number of tokens of each row that the cache lacks: [B]."""
        held = self.cache.lengths if self.cache else np.zeros(len(contexts), int)
        return np.maximum(np.array([len(each) for each in contexts]) - held, 0)

    def catch_up(self, contexts: TokenLists) -> None:
        """Prefill all but the last token of each row, if one lacks many."""
        if (self.missing(contexts) > self.MAX_MISSING).any():
            prefill(self.model, self.cache, contexts)


def following(contexts: TokenLists, lengths: np.ndarray) -> np.ndarray:
    """The positions [B, k] of the next lengths [B] tokens of each row; MASKED beyond them."""
    first = np.array([len(each) for each in contexts], np.int32)[:, None]
    ahead = np.arange(lengths.max(), dtype=np.int32)
    return np.where(ahead < lengths[:, None], first + ahead, MASKED)
