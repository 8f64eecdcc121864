"""How prompts are read, and what has been read once is not read again: the next turn of a conversation begins with all
earlier ones, and the lines of a file may share their instructions.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import mlx.core as mx
import numpy as np
from tqdm import tqdm

from speculative.cache import MASKED, SlotCache
from speculative.model import Rows, replace_unknown

CHUNK = 512  # tokens of each row in a call that reads


def read(model: Any, cache: SlotCache, rows: Rows) -> None:
    """Read all but the last token of each row, as far as the cache lacks them. A terminal shows a bar after two
    seconds."""
    tokens, positions = lacking([row[:-1] for row in rows], cache.lengths, model.config)
    width = tokens.shape[1]
    how: Any = dict(unit="tok", unit_scale=CHUNK, delay=2, leave=False, disable=None)
    for start in tqdm(range(0, width, CHUNK), "reading the prompt", **how):
        end = min(start + CHUNK, width)
        model.decode(mx.array(tokens[:, start:end]), positions[:, start:end], cache)
        cache.keep(np.full(len(rows), end - start))
        cache.wait()
        mx.clear_cache()  # each chunk needs larger buffers, so free the last one's


def lacking(rows: Rows, held: np.ndarray, config: Any) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of each row after the first held [B], and their positions: [B, P] each.

    Rows end at the block's right edge; fillers of shorter rows have the position MASKED.
    """
    new = [row[n:] for row, n in zip(rows, held, strict=True)]
    width = max(map(len, new))
    tokens = np.full((len(rows), width), config.pad_token_id, np.int32)
    positions = np.full((len(rows), width), MASKED, np.int32)
    for b, row in enumerate(new):
        tokens[b, width - len(row) :] = row
        positions[b, width - len(row) :] = np.arange(held[b], held[b] + len(row))
    return replace_unknown(tokens, config.vocab_size, config.pad_token_id), positions


def common_beginning(rows: Rows) -> list[int]:
    """The first tokens that all rows have in common."""
    columns = zip(*rows, strict=False)
    return [each[0] for each in takewhile(lambda each: len(set(each)) == 1, columns)]


@dataclass(frozen=True, eq=False)
class Beginning:
    """What a model has read: a cache of one row that holds exactly these tokens."""

    model: Any
    tokens: np.ndarray
    cache: SlotCache
    size: int  # in bytes

    def shared(self, tokens: np.ndarray) -> int:
        """How many of its first tokens are the first of these too; of a cache that cannot forget, all or 0."""
        n = min(len(self.tokens), len(tokens))
        same = self.tokens[:n] == tokens[:n]
        n = n if same.all() else int(same.argmin())
        return n if self.cache.forgets or n == len(self.tokens) else 0


class Kept:
    """What decoder-only models have read of earlier rows, the least recently used first. It is found by equal tokens
    only, so a row's text does not depend on it."""

    MOST = 256  # entries
    WORTH = 32  # tokens: a shorter beginning that new rows share is not read on its own

    def __init__(self, limit: float):
        """limit: bytes to keep."""
        self.limit, self._entries = limit, list[Beginning]()

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(each.size for each in self._entries)

    def known(self, model: Any, tokens: Sequence[int]) -> int:
        """How many of a prompt's first tokens the model need not read."""
        return self._longest(model, tokens[:-1])[0]

    def _longest(self, model: Any, tokens: Sequence[int]) -> tuple[int, Beginning | None]:
        found, wanted = (0, None), np.array(tokens, np.int64)
        for each in self._entries:
            if each.model is model and (n := each.shared(wanted)) > found[0]:
                found = n, each
        return found

    def begin(self, model: Any, cache: SlotCache, prompts: Rows) -> list[int]:
        """Fill an empty cache with what is known of the prompts but for their last tokens; return how many tokens of
        each. Then read the long beginnings that all of them share, or that later prompts may have, on their own."""
        common = common_beginning([prompt[:-1] for prompt in prompts]) if len(prompts) > 1 else []
        reused = []
        for b, prompt in enumerate(prompts):
            n = self._copy(model, cache, b, prompt)
            reused.append(n)
            for end in sorted([len(common), model.shared(prompt)]):
                if end - n > self.WORTH:
                    cache.replace([b], self._prefill(model, prompt[: end + 1]))
                    n = end
        return reused

    def _prefill(self, model: Any, beginning: Sequence[int]) -> SlotCache:
        """A cache of one row with all but the last token of a beginning, which is kept."""
        alone = model.new_cache(1)
        self._copy(model, alone, 0, beginning)
        read(model, alone, [beginning])
        self.add(model, alone, 0, beginning[:-1])
        return alone

    def _copy(self, model: Any, cache: SlotCache, row: int, prompt: Sequence[int]) -> int:
        """Fill a row with what is known of a prompt but for its last token; return how many tokens."""
        n, found = self._longest(model, prompt[:-1])
        if found:
            self._use(found)
            part = copy(found.cache)
            part.cursor = n
            cache.replace([row], part)
        return n

    def _use(self, entry: Beginning) -> None:
        self._entries.remove(entry)
        self._entries.append(entry)

    def add(self, model: Any, cache: SlotCache, row: int, tokens: Sequence[int]) -> None:
        """Keep what a row of a cache holds of these tokens."""
        held = int(cache.lengths[row])
        new = np.array(tokens[:held], np.int64)
        if not held or (held > len(new) and not cache.forgets):  # it has read rejected tokens
            return
        own = [(each, each.shared(new)) for each in self._entries if each.model is model]
        for each, n in own:
            if n == len(new):  # nothing new
                return self._use(each)
        alone = model.new_cache(1)
        alone.take(cache, row, len(new))
        size = sum(x.nbytes for x in alone.arrays)
        if size > self.limit:
            return
        mx.async_eval(alone.arrays)  # otherwise it would hold on to the whole batch's
        replaced = [each for each, n in own if n == len(each.tokens) and cache.forgets]
        self._entries = [each for each in self._entries if each not in replaced]
        self._entries.append(Beginning(model, new, alone, size))
        while self.size > self.limit or len(self._entries) > self.MOST:
            del self._entries[0]
