"""A model with its cache. Callers pass each row's tokens, and it reads those that the cache lacks: usually the last
one. A draft model lacks two after a fully accepted draft, because it never reads a draft's last token.

Of decoder-only models, earlier rows' prefixes are kept: the next turn of a conversation begins with all earlier ones, and the
lines of a file may share their instructions.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.common.reporting import reporter
from speculative.models.contract import Model, TokenLists, common_prefix, missing_tokens
from speculative.step.cache import MASKED, CrossCache, SlotCache

CHUNK = 512  # tokens of each row in a prefill's call


def prefill(model: Any, cache: SlotCache, rows: TokenLists) -> None:
    """Append all but the last token of each row to the cache, as far as it lacks them, in chunks."""
    tokens, positions = missing_tokens([row[:-1] for row in rows], cache.lengths, model.config)
    width = tokens.shape[1]
    with reporter.bar("reading the prompt", width, "tok", 2) as advance:
        for start in range(0, width, CHUNK):
            end = min(start + CHUNK, width)
            model.decode(mx.array(tokens[:, start:end]), positions[:, start:end], cache)
            cache.keep(np.full(len(rows), end - start))
            cache.wait()
            mx.clear_cache()  # each chunk needs larger buffers, so free the last one's
            advance(end - start)


@dataclass(frozen=True, eq=False)
class Prefix:
    """Tokens that a model has prefilled: a cache of one row that holds exactly these."""

    model: Any
    tokens: np.ndarray
    cache: SlotCache
    size: int  # in bytes

    def common(self, tokens: np.ndarray) -> int:
        """The length of the prefix that it has in common with these tokens; of a cache that cannot forget, all or 0."""
        n = min(len(self.tokens), len(tokens))
        same = self.tokens[:n] == tokens[:n]
        n = n if same.all() else int(same.argmin())
        return n if self.cache.trimmable or n == len(self.tokens) else 0


class PrefixCache:
    """An LRU cache of prefilled prefixes (decoder-only models). They are used for equal tokens only: texts stay."""

    MAX_PREFIXES = 256  # prefixes
    MIN_SHARED = 32  # tokens: a shorter prefix that new rows share is not prefilled on its own

    def __init__(self, limit: float):
        """limit: bytes to hold."""
        self.limit = limit
        self._prefixes: list[Prefix] = []  # the least recently used first

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(each.size for each in self._prefixes)

    def cached_tokens(self, model: Any, prompt: Sequence[int]) -> int:
        """The number of a prompt's first tokens that need no prefill."""
        return self._longest(model, prompt[:-1])[0]

    def _longest(self, model: Any, tokens: Any) -> tuple[int, Prefix | None]:
        wanted = np.array(tokens, np.int64)
        known = [(each.common(wanted), each) for each in self._prefixes if each.model is model]
        return max(known, key=itemgetter(0), default=(0, None))

    def begin(self, model: Any, cache: SlotCache, prompts: TokenLists) -> list[int]:
        """Fill an empty cache with the prefixes of the prompts that are here; return how many tokens of each. Then
        prefill the long prefixes that all of them share, or that later prompts may have, on their own."""
        common = common_prefix([prompt[:-1] for prompt in prompts]) if len(prompts) > 1 else []
        reused = []
        for b, prompt in enumerate(prompts):
            n = self._copy(model, cache, b, prompt)
            reused.append(n)
            for end in sorted([len(common), model.snapshot_at(prompt)]):
                if end - n > self.MIN_SHARED:
                    cache.replace([b], self._prefill(model, prompt[: end + 1]))
                    n = end
        return reused

    def _prefill(self, model: Any, tokens: Sequence[int]) -> SlotCache:
        """A cache of one row with all but the last of the tokens, which is then here too."""
        alone = model.new_cache(1)
        self._copy(model, alone, 0, tokens)
        prefill(model, alone, [tokens])
        self.add(model, alone, 0, tokens[:-1])
        return alone

    def _copy(self, model: Any, cache: SlotCache, row: int, prompt: Sequence[int]) -> int:
        """Fill a row with the longest prefix of a prompt but for its last token; return how many tokens it has."""
        n, prefix = self._longest(model, prompt[:-1])
        if prefix and n:
            self._use(prefix)
            part = copy(prefix.cache)
            part.cursor = n
            cache.replace([row], part)
        return n

    def _use(self, prefix: Prefix) -> None:
        self._prefixes.remove(prefix)
        self._prefixes.append(prefix)

    def add(self, model: Any, cache: SlotCache, row: int, tokens: Sequence[int]) -> None:
        """Add what a row of a cache holds of these tokens."""
        length = int(cache.lengths[row])
        new = np.array(tokens[:length], np.int64)
        if not length or (length > len(new) and not cache.trimmable):  # it has read rejected tokens
            return
        known, longest = self._longest(model, new)
        if longest and known == len(new):  # nothing new
            self._use(longest)
            return
        alone = model.new_cache(1)
        alone.take(cache, row, len(new))
        size = sum(x.nbytes for x in alone.arrays)
        if size > self.limit:
            return
        mx.async_eval(alone.arrays)  # otherwise it would hold on to the whole batch's
        if cache.trimmable:
            for each in list(self._prefixes):
                if each.model is model and each.common(new) == len(each.tokens):  # it goes on
                    self._prefixes.remove(each)
        self._prefixes.append(Prefix(model, new, alone, size))
        while self.size > self.limit or len(self._prefixes) > self.MAX_PREFIXES:
            del self._prefixes[0]


class CachedModel:
    """A model that decodes rows together. `cache` is a SlotCache, but None until the first row is admitted."""

    MAX_MISSING = 8  # tokens: a row that lacks more catches up first
    keeps_states = False  # for a draft model that reads them

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
            if self.keeps_states and isinstance(fresh, CrossCache):
                fresh.keep_states()
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
        """Keep only these rows."""
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

    def feed(self, tokens: mx.array, positions: np.ndarray) -> mx.array:
        """Logits [B, V] after one more drafted token of each row, tokens and positions [B, 1]."""
        return self.model.decode(tokens, positions, self.cache)[:, -1]

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


class DistilledModel(CachedModel):
    """A draft model made from its target (speculative/models/distilled.py). It begins with the encoder's output in the target's
    cache, and reads each token with the target's state before it. After the first drafted token it feeds back its own state,
    as there is no target state yet; the cache drops all drafted tokens. Calls return the logits after a row's last token only."""

    MAX_MISSING = MASKED  # whatever it lacks, a few layers read in one call

    def __init__(self, model: Model, target: CachedModel):
        super().__init__(model)
        self._target = target
        target.keeps_states = True
        # Of the rows, to be set: prefixes are read without states, as in training
        self.prefix_sizes: Sequence[int] = ()
        self._state: Any = None  # [B, 1, D], the last column of the last call

    def admit(self, batch_size: int, indices: Sequence[int], prompts: TokenLists) -> list[int]:
        encoded, mask = self._target.cache.encoded(indices)
        self._insert(batch_size, indices, self._full_model.attend_to(encoded, mask))
        return [0] * len(indices)

    def decode(self, contexts: TokenLists, drafted: mx.array, lengths: np.ndarray) -> mx.array:
        tokens, positions = missing_tokens(contexts, self.cache.lengths, self.config)
        self._num_read = tokens.shape[1]
        # A token that the target has not read either follows on no state.
        in_text = positions >= np.array(self.prefix_sizes)[:, None]
        self._state = self._target.cache.states(np.where(in_text, positions - 1, -1))
        return self.feed(mx.array(tokens), positions)[:, None]

    def feed(self, tokens: mx.array, positions: np.ndarray) -> mx.array:
        self.cache.previous = self._state
        self._state = self.model.states(tokens, positions, self.cache)[:, -1:]
        return self.model.logits(self._state)[:, -1]

    def seen(self, b: int, tokens: Sequence[int]) -> tuple[mx.array, mx.array]:
        """The encoder's output [S, D] and the states [T, W] of a row's tokens, which the target has at hand."""
        cache = self._target.cache
        encoded, mask = cache.encoded([b])
        states = cache.states(np.tile(np.arange(len(tokens)), (len(cache.position), 1)))
        seen = encoded[0][mx.array(np.flatnonzero(mask))], states[b]
        mx.eval(seen)
        return seen

    def keep(self, n: np.ndarray) -> None:
        super().keep(np.zeros_like(n))

    def missing_of(self, prompt: Sequence[int]) -> int:
        return 1  # however long it is, the encoder has read it
