"""Decoder-only models behind the contract: all of mlx-lm's with layers that keep keys and values, or a state.

Each layer gets a LayerCache or, for a state, mlx-lm's own cache. How to load them: causal_loading.py.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any
from weakref import proxy

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from speculative.common.errors import InputError
from speculative.models.causal_check import check, check_cache, has_state, mlx_lm_cache, refused
from speculative.models.contract import TokenLists
from speculative.models.encoder_decoder import LanguageModel
from speculative.step.cache import MASKED, SlotCache
from speculative.step.prefill import prefill


@dataclass(frozen=True)
class CausalConfig:
    vocab_size: int  # of the logits
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    max_positions: int | None

    @property
    def max_prompt_tokens(self) -> int | None:
        """One less than there are positions: a token is text."""
        return None if self.max_positions is None else self.max_positions - 1


class CausalCache(SlotCache):
    """Slots, in the form that each layer of an mlx-lm model expects, and the layers' states.

    A state cannot forget, but arrays are immutable, so keeping those from before a call costs nothing. A row that does not
    keep all its tokens of a call goes back to the states before, and lacks all of them.
    Slots of a call are first a row's tokens, then its fillers; `keep` counts columns as `decode` got them.
    """

    def __init__(self, batch_size: int, like: Sequence[Any], mask_axes: int = 4):
        """like: mlx-lm's own caches, one for each layer
        mask_axes: 4 for masks [B, 1, T, N]; 5 if a model has one more axis between heads and queries"""
        self.states: list[Any] = []
        self.windows: list[int | None] = []
        self.layers = [self._layer(each) for each in like]
        super().__init__(batch_size, len(self.windows))
        self.trimmable = not self.states
        self._mask_axes = mask_axes
        self._begin()

    def _layer(self, like: Any) -> Any:
        parts = getattr(like, "caches", ())
        if parts:
            return tuple(map(self._layer, parts))
        if has_state(like):
            state = copy(like)
            state.cache = [None] * len(like.cache)
            self.states.append(state)
            return state
        self.windows.append(getattr(like, "max_size", None))
        return LayerCache(self, len(self.windows) - 1, self.windows[-1])

    def reserve(self, positions: np.ndarray) -> np.ndarray:
        slots = super().reserve(positions)
        # The tokens of a row follow each other: where its first is tells where all are.
        real = positions != MASKED
        column = real.argmax(axis=1)  # [B]
        first = np.take_along_axis(positions, column[:, None], axis=1)[:, 0]
        offset = np.where(real.any(axis=1), first - column, 0).astype(np.int32)
        self.offset: int | mx.array = int(offset[0]) if len(offset) == 1 else mx.array(offset)
        self._masks: dict[tuple, Any] = {}
        for state in self.states:  # which may not see fillers
            state.lengths = None if real.all() else mx.array(real.sum(axis=1))
        return slots

    def decoded(self, positions: np.ndarray, order: np.ndarray) -> None:
        """Record the states after a call; order [B, T]: the column of each slot. Rows without a token keep their old
        states: Metal's Mamba 2 kernel for one token treats a filler as text."""
        end = self.cursor - self._committed
        start = end - positions.shape[1]
        self._columns: np.ndarray = np.concatenate([self._columns, start + order], axis=1)
        last = np.where(positions != MASKED, np.arange(start, end) + 1, 0).max(axis=1)
        self._calls.append((np.where(last, last, MASKED), end, self._snapshot()))

    def _snapshot(self) -> list[list[Any]]:
        return [list(state.cache) for state in self.states]

    def _begin(self) -> None:
        # By calls since the last `keep`: where each row's tokens [B] and the call end, and the states then.
        self._calls = [(np.zeros(len(self.position), int), 0, self._snapshot())]
        # Of `decode`, by slots since the last `keep`: [B, T]
        self._columns = np.zeros((len(self.position), 0), int)

    def _last_calls(self, n: np.ndarray | int) -> np.ndarray:
        """Each row's last call with tokens that ends within its first n columns since the last `keep`: [B]."""
        ends = np.array([end for end, _, _ in self._calls])  # [calls, B]
        return len(ends) - 1 - (ends <= n)[::-1].argmax(axis=0)

    def keep(self, n: np.ndarray) -> None:
        if self.states:
            last = self._last_calls(n)
            n = np.array([columns for _, columns, _ in self._calls])[last]
            for i, state in enumerate(self.states):
                for j in range(len(state.cache)):
                    state.cache[j] = _by_row([states[i][j] for _, _, states in self._calls], last)
        written = self.position[:, self._committed : self.cursor]
        written[self._columns >= n[:, None]] = MASKED
        super().keep(n)
        self._begin()

    @property
    def arrays(self) -> list[mx.array]:
        return [*super().arrays, *(x for s in self.states for x in s.cache if x is not None)]

    def take(self, other: Any, row: int, n: int) -> None:
        """As for all caches, with the states after the row's last token: a later call may have had only a filler."""
        super().take(other, row, n)
        last = other._last_calls(MASKED - 1)[row]
        for state, theirs in zip(self.states, other._calls[last][2], strict=True):
            state.cache = [None if x is None else x[row : row + 1] for x in theirs]
        self._begin()

    def replace(self, rows: Sequence[int], fresh: Any) -> None:
        super().replace(rows, fresh)
        order = np.full(len(self.position), -1)
        order[list(rows)] = np.arange(len(rows))
        for state, new in zip(self.states, fresh.states, strict=True):
            for j, (old, x) in enumerate(zip(state.cache, new.cache, strict=True)):
                moved = None if x is None else x[mx.array(np.maximum(order, 0))]
                state.cache[j] = _by_row([old, moved], order >= 0)
        self._begin()

    def reorder(self, rows: Sequence[int]) -> None:
        super().reorder(rows)
        index = mx.array(list(rows))
        for state in self.states:
            state.cache = [None if x is None else x[index] for x in state.cache]
        self._begin()

    def mask(self, window: int | None, as_array: bool) -> mx.array | str | None:
        """The mask of the tokens last reserved; without `as_array` "causal" or None if that says the same, which is faster."""
        key = window, as_array
        if key not in self._masks:
            distance = self.distance
            _, T, N = distance.shape
            in_order = (self.position[:, :N] == np.arange(N)).all()
            if not as_array and (window or N) >= N and in_order:
                self._masks[key] = "causal" if T > 1 else None
            else:
                # A filler sees its own slot: a row of scores without one would be NaN.
                seen = distance >= 0
                if window is not None:
                    seen &= distance < window
                axes = (1,) if self._mask_axes == 4 else (1, 2)
                self._masks[key] = mx.array(np.expand_dims(seen, axes))
        return self._masks[key]


def _by_row(options: Sequence[mx.array | None], index: np.ndarray) -> mx.array | None:
    """For each row b, its part of the array with number index[b]; None stands for zeros of a shape unknown so far."""
    known = next((x for x in options if x is not None), None)
    if known is None or (index == index[0]).all():
        return options[int(index[0])]
    shape = (-1, *[1] * (known.ndim - 1))
    result = mx.zeros_like(known)
    for i in np.unique(index).tolist():
        if options[i] is not None:
            result = mx.where(mx.array(index == i).reshape(shape), options[i], result)
    return result


class LayerCache:
    """A layer's part of a CausalCache, with the methods that mlx-lm's models call."""

    def __init__(self, slots: CausalCache, layer: int, window: int | None):
        # Not a cycle of references: a cache is freed as soon as it is not used any more.
        self._slots = proxy(slots)
        self._layer = layer
        self._window = window

    @property
    def offset(self) -> int | mx.array:
        """The position of a block's first column, [B] if rows differ. It does not change during a call."""
        return self._slots.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return self._slots.append(self._layer, keys, values)

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Keys and values, for layers that attend to those of another layer."""
        N = self._slots.cursor
        return self._slots.keys[self._layer][:, :, :N], self._slots.values[self._layer][:, :, :N]

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None):
        if self._window and window_size not in (None, self._window):
            raise InputError(f"its masks span {window_size} tokens, its cache {self._window}")
        return self._slots.mask(self._window or window_size, return_array)


class DecoderOnly(LanguageModel):
    """The part of the contract that decoder-only models share; subclasses add `states` or `decode`."""

    def prefix(self, prompt: Sequence[int]) -> list[int]:
        return list(prompt)

    def new_cache(self, batch_size: int) -> SlotCache:
        return SlotCache(batch_size, len(self.layers))

    def start(self, prompts: TokenLists, cache: SlotCache | None = None) -> Any:
        """As the contract says. cache: one that holds beginnings of the rows, to be filled up"""
        if not all(len(prompt) for prompt in prompts):
            raise InputError("a prompt without a token cannot be continued")
        cache = cache or self.new_cache(len(prompts))
        prefill(self, cache, prompts)
        return cache


class CausalModel(DecoderOnly):
    """An mlx-lm model behind the contract. InputError with the reason if `check` finds other logits in a batch."""

    def __init__(
        self,
        model: nn.Module,
        eos_token_ids: Iterable[int] = (),
        pad_token_id: int | None = None,
        max_positions: int | None = None,
    ):
        super().__init__()
        self.model = model
        self._like = check_cache(model)
        self._mask_axes = 4
        limits = [max_positions]
        for module in model.modules():
            if "wpe" in module:  # gpt2's; no other architecture of mlx-lm's learns positions
                module.wpe = ClippedTable(module.wpe)
                limits.append(len(module.wpe.table.weight))
        self.config = CausalConfig(2**31 - 1, (), 0, None)  # until the model has been tried
        self.max_rows, vocab_size = check(self)
        eos = tuple(sorted(i for i in eos_token_ids if i < vocab_size))
        # Padding never shows in a text, so it must not be a token that does.
        pads = [i for i in (pad_token_id, *eos, 0) if i is not None and i < vocab_size]
        limit = min(filter(None, limits), default=None)
        self.config = CausalConfig(vocab_size, eos, pads[0], limit)
        # The tokens that begin a user's turn in a chat, for models with states: see causal_loading.py.
        self.user_turn: tuple[int, ...] = ()

    def new_cache(self, batch_size: int) -> CausalCache:
        return CausalCache(batch_size, self._like, self._mask_axes)

    def snapshot_at(self, prompt: Sequence[int]) -> int:
        """The number of tokens before the first user's turn: the system prompt's."""
        size = len(self.user_turn)
        ends = range(size, len(prompt) + 1) if size else ()
        return next((n for n in ends if tuple(prompt[n - size : n]) == self.user_turn), 0)

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: CausalCache) -> mx.array:
        """As the contract says; positions follow each other within a row."""
        # Rows begin at the left: fillers there would change a state, and have negative positions.
        T = positions.shape[1]
        first = (positions != MASKED).argmax(axis=1)[:, None]
        there = (np.arange(T) + first) % T
        back = (np.arange(T) - first) % T
        if first.any():
            tokens = mx.take_along_axis(tokens, mx.array(there), axis=1)
        cache.reserve(np.take_along_axis(positions, there, axis=1))
        logits = self.model(tokens, cache=cache.layers)
        cache.decoded(positions, there)
        if first.any():
            logits = mx.take_along_axis(logits, mx.array(back)[..., None], axis=1)
        return logits

    def narrowed(self, ids: mx.array) -> Any:
        """As for all models. InputError if mlx-lm keeps the head elsewhere."""
        draft = super().narrowed(ids)
        try:
            size = draft.model(mx.array([[0]]), cache=mlx_lm_cache(draft.model)).shape[-1]
        except ValueError:  # layers after the head expect all tokens
            size = 0
        if size != len(ids):
            raise refused(self.model, "with a draft vocabulary, as its head is not known")
        return draft


class ClippedTable(nn.Module):
    """A position table that clips positions beyond its end, which mlx-lm's models compute for fillers too: MLX would read
    on without an error."""

    def __init__(self, table: nn.Module):
        super().__init__()
        self.table = table

    def __call__(self, positions: mx.array) -> mx.array:
        return self.table(mx.clip(positions, 0, len(self.table.weight) - 1))
