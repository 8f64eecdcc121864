"""A model with its cache. Callers pass each row's tokens, and it reads those that the cache lacks: usually the last
one. A draft model lacks two after a fully accepted draft, because it never reads a draft's last token."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.cache import MASKED, CrossCache, SlotCache
from speculative.model import Model, TokenLists
from speculative.prefill import PrefixCache, missing_tokens, prefill


class CachedModel:
    """A model that decodes rows together. `cache` is None until the first row is admitted."""

    MAX_MISSING = 8  # tokens: a row that lacks more catches up first
    keeps_states = False  # for a draft model that reads them

    def __init__(
        self,
        model: Model,
        share: Callable[[mx.array], mx.array] = lambda tokens: tokens,
        prefix_cache: PrefixCache | None = None,
    ):
        """share: makes drafted tokens the same for all processes that run the model together.
        prefix_cache: for a decoder-only model."""
        self.config, self.model, self._share = model.config, model, share
        self._whole: Any = model  # `model` may be narrowed
        self._new_cache = model.new_cache
        self._prefixes = prefix_cache if self._new_cache else None
        self.cache: SlotCache | None = None
        self._lacked = 0  # tokens per row before the drafted ones in the last call

    def admit(self, batch_size: int, rows: Sequence[int], prompts: TokenLists) -> list[int]:
        """Read a prompt for each of `rows` in a batch of `batch_size`; rows may be replaced or new ones at the end.
        Return how many tokens of each prompt had been read already."""
        distinct: dict[tuple[int, ...], Sequence[int]] = {}  # equal prompts are read once
        for prompt in prompts:
            distinct.setdefault(tuple(prompt), prompt)
        fresh, reused = self._begun(list(distinct.values()))
        places = {prompt: i for i, prompt in enumerate(distinct)}
        order = [places[tuple(prompt)] for prompt in prompts]
        if len(distinct) < len(order):
            fresh.select(order)
        self._place(batch_size, rows, fresh)
        return [reused[i] for i in order]

    def _place(self, batch_size: int, rows: Sequence[int], fresh: SlotCache) -> None:
        """Make the rows of a fresh cache these rows of the batch."""
        if self.cache is None:
            place = {row: i for i, row in enumerate(rows)}
            if list(rows) != list(range(batch_size)):
                fresh.select([place.get(row, 0) for row in range(batch_size)])
            if self.keeps_states and isinstance(fresh, CrossCache):
                fresh.keep_states()
            self.cache = fresh
        else:
            self.resize(batch_size)
            self.cache.replace(rows, fresh)

    def _begun(self, prompts: TokenLists) -> tuple[Any, list[int]]:
        """A cache in which the prompts have been read, and how many tokens of each were known."""
        if not (self._prefixes and self._new_cache):
            return self.model.start(prompts), [0] * len(prompts)
        cache = self._new_cache(len(prompts))
        reused = self._prefixes.begin(self._whole, cache, prompts)
        self._whole.start(prompts, cache)
        if not cache.trimmable:  # later only the text's end can be kept
            for b, prompt in enumerate(prompts):
                self._prefixes.add(self._whole, cache, b, prompt[:-1])
        return cache, reused

    def tokens_to_prefill(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt are not in the prefix cache."""
        cached = self._prefixes.cached_tokens(self._whole, prompt) if self._prefixes else 0
        return len(prompt) - cached

    def remember(self, row: int, tokens: Sequence[int]) -> None:
        """Add what the cache holds of a row's tokens to the prefix cache."""
        if self._prefixes and self.cache:
            self._prefixes.add(self._whole, self.cache, row, tokens)

    def resize(self, batch_size: int) -> None:
        """Make room for more rows; admit them before decoding."""
        held = len(self.cache.position) if self.cache else batch_size
        if self.cache and batch_size > held:
            self.cache.select([*range(held), *[0] * (batch_size - held)])

    def wait(self) -> None:
        """Wait until everything that `admit` and `catch_up` compute is ready."""
        if self.cache:
            self.cache.wait()

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows."""
        if self.cache:
            self.cache.select(rows)

    def reorder(self, rows: Sequence[int]) -> None:
        """Keep these rows; each must replace a row of the same prompt."""
        assert self.cache
        self.cache.reorder(rows)

    def __call__(self, rows: TokenLists, drafted: mx.array, lengths: np.ndarray) -> mx.array:
        """Logits [B, 1 + k, V] after each row's last token and each of its drafted tokens [B, k], of which
        the first lengths[b] count. Call `keep` afterwards."""
        if (self.behind(rows) > self.MAX_MISSING).any():
            self.catch_up(rows)
        return self.decode(rows, drafted, lengths)

    def decode(self, rows: TokenLists, drafted: mx.array, lengths: np.ndarray) -> mx.array:
        """As a call, in one go whatever the cache lacks: `keep` can forget all of it."""
        assert self.cache
        tokens, positions = missing_tokens(rows, self.cache.lengths, self.config)
        self._lacked = tokens.shape[1]
        block = mx.array(tokens)
        if drafted.shape[1]:
            block = mx.concatenate([block, self._share(drafted)], axis=1)
            positions = np.concatenate([positions, following(rows, lengths)], axis=1)
        logits = self.model.decode(block, positions, self.cache)
        return logits[:, max(self._lacked - 1, 0) :]

    def feed(self, tokens: mx.array, positions: np.ndarray) -> mx.array:
        """Logits [B, V] after one more drafted token of each row, tokens and positions [B, 1]."""
        return self.model.decode(tokens, positions, self.cache)[:, -1]

    def keep(self, n: np.ndarray) -> None:
        """Keep the first n[b] of each row's drafted tokens, or all that were read; forget the others. Below 0: forget so
        many of the row's last tokens in the call too."""
        assert self.cache
        self.cache.keep(self._lacked + n)

    def behind(self, rows: TokenLists) -> np.ndarray:
        """How many tokens of each row the cache lacks: [B]."""
        held = self.cache.lengths if self.cache else np.zeros(len(rows), int)
        return np.maximum(np.array([len(row) for row in rows]) - held, 0)

    def catch_up(self, rows: TokenLists) -> None:
        """Prefill all but the last token of each row."""
        assert self.cache
        prefill(self.model, self.cache, rows)


class DistilledModel(CachedModel):
    """A draft model made from its target (families/distilled.py): it begins with the encoder's output in the target's
    cache, and reads each token with the target's state before it. Behind the first drafted token its own state stands
    in, so nothing of a draft is kept. Calls return the logits after a row's last token only."""

    MAX_MISSING = MASKED  # never: whatever it lacks, a few layers read in one call

    def __init__(self, model: Model, target: CachedModel):
        super().__init__(model)
        self._target = target
        target.keeps_states = True
        self.prefix_sizes: Sequence[
            int
        ] = ()  # of the rows, to be set: prefixes are read without states, as in training
        self._state: Any = None  # [B, 1, D], the last column of the last call

    @property
    def _target_cache(self) -> CrossCache:
        assert isinstance(self._target.cache, CrossCache)
        return self._target.cache

    def admit(self, batch_size: int, rows: Sequence[int], prompts: TokenLists) -> list[int]:
        encoded, mask = self._target_cache.encoded(rows)
        self._place(batch_size, rows, self._whole.attend_to(encoded, mask))
        return [0] * len(rows)

    def decode(self, rows: TokenLists, drafted: mx.array, lengths: np.ndarray) -> mx.array:
        assert self.cache and not drafted.shape[1]
        tokens, positions = missing_tokens(rows, self.cache.lengths, self.config)
        self._lacked = tokens.shape[1]
        # A token that the target has not read either follows on no state.
        in_text = positions >= np.array(self.prefix_sizes)[:, None]
        self._state = self._target_cache.states(np.where(in_text, positions - 1, -1))
        return self.feed(mx.array(tokens), positions)[:, None]

    def feed(self, tokens: mx.array, positions: np.ndarray) -> mx.array:
        assert isinstance(self.cache, CrossCache)
        self.cache.previous = self._state
        self._state = self.model.states(tokens, positions, self.cache)[:, -1:]
        return self.model.logits(self._state)[:, -1]

    def keep(self, n: np.ndarray) -> None:
        super().keep(np.minimum(n, 0))

    def tokens_to_prefill(self, prompt: Sequence[int]) -> int:
        return 1  # however long it is, the encoder has read it


class AheadModel(CachedModel):
    """A cached model that can begin its next call before the host has the tokens for it."""

    _ahead: mx.array | None = None  # logits [B, 1, V] of a call that has begun

    def run_ahead(self, rows: TokenLists, tokens: mx.array, live: Sequence[bool]) -> None:
        """After a call without drafted tokens, begin the next one with tokens [B] that the host does not know
        yet. The call is discarded if rows join or leave."""
        if not any(live):
            return
        self.keep(np.zeros(len(rows), int))
        positions = following(rows, np.array(live, np.int32))
        self._ahead = self.model.decode(tokens[:, None], positions, self.cache)
        mx.async_eval(self._ahead)

    def __call__(self, rows: TokenLists, drafted: mx.array, lengths: np.ndarray) -> mx.array:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return super().__call__(rows, drafted, lengths)
        if drafted.shape[1]:  # the cache lacks nothing else
            ahead = mx.concatenate([ahead, super().__call__(rows, drafted, lengths)], axis=1)
        self._lacked = 1  # the token that was read ahead
        return ahead

    def keep(self, n: np.ndarray) -> None:
        if self._ahead is None:
            super().keep(n)

    def admit(self, batch_size: int, rows: Sequence[int], prompts: TokenLists) -> list[int]:
        self._forget()
        return super().admit(batch_size, rows, prompts)

    def select(self, rows: Sequence[int]) -> None:
        self._forget()
        super().select(rows)

    def _forget(self) -> None:
        if self._ahead is not None and self.cache:
            self._ahead = None
            self.cache.keep(np.zeros(len(self.cache.position), int))


def following(rows: TokenLists, lengths: np.ndarray) -> np.ndarray:
    """The positions [B, k] of the next lengths [B] tokens of each row; MASKED beyond them."""
    first = np.array([len(row) for row in rows], np.int32)[:, None]
    ahead = np.arange(lengths.max(), dtype=np.int32)
    return np.where(ahead < lengths[:, None], first + ahead, MASKED)
