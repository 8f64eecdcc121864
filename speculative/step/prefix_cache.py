"""Prefixes of earlier rows, kept for decoder-only models: the next turn of a conversation begins with all earlier ones, and
the lines of a file may share their instructions.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.models.contract import TokenLists, common_prefix
from speculative.step.cache import SlotCache
from speculative.step.prefill import prefill


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
