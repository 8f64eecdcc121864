"""The key-value cache of a batch of rows. It forgets by position.

Attention depends only on positions, not on where a key is stored, so forgetting a token changes one number.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

# The position of a slot that no query sees, and of a filler: a token that only fills a ragged block
MASKED = 1 << 30


def padding_mask(mask: np.ndarray) -> mx.array | None:
    """The visible source tokens, boolean [B, 1, 1, S], from the mask [B, S]; None: all of them."""
    return None if mask.all() else mx.array(mask[:, None, None, :])


class SlotCache:
    """The keys and values of B rows. A slot holds a key and a value per layer, and `position` is its
    token's position in the row; slots need not be in order.

    keys, values: per layer [B, H, capacity, D], written up to `cursor`
    position:     [B, capacity] int32 on the host; MASKED where no query may look

    A query at position i sees the slots with positions <= i. That one comparison covers causality,
    padding, rejected tokens and finished rows. A query at MASKED is a filler: it sees at least its
    own slot, only fillers see it, and its logits mean nothing.
    """

    trimmable = True  # any tokens, not only those of the last calls
    STEP = 128  # slots added at a time
    FEW = 32  # slots that are not worth compacting

    def __init__(self, batch_size: int, num_layers: int):
        self.keys: list[Any] = [None] * num_layers  # None until a slot is written
        self.values: list[Any] = [None] * num_layers
        self.stores = [self.keys, self.values]
        self.position = np.full((batch_size, 0), MASKED, np.int32)
        self.cursor = 0
        self._committed = 0  # the cursor at the last `keep`

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each row that it holds: [B]."""
        return (self.position[:, : self.cursor] != MASKED).sum(axis=1)

    @property
    def arrays(self) -> list[mx.array]:
        """All that it keeps on the device."""
        return [slots for store in self.stores for slots in store if slots is not None]

    def wait(self) -> None:
        mx.eval(self.arrays)

    # A step: reserve once, append in every layer, keep once.

    def reserve(self, positions: np.ndarray) -> np.ndarray:
        """Take slots for tokens at `positions` [B, T]; return the positions of all slots [B, N]."""
        start = self.cursor
        self.cursor = start + positions.shape[1]
        self._reserve_slots(self.cursor)
        self.position[:, start : self.cursor] = positions
        self._queries = positions
        return self.position[:, : self.cursor]

    @property
    def distance(self) -> np.ndarray:
        """The position of each token last reserved minus each slot's, [B, T, N]: below 0 where it does not see it."""
        return self._queries[:, :, None] - self.position[:, None, : self.cursor]

    def self_mask(self, window: int | None = None) -> mx.array | None:
        """The slots that the tokens last reserved see, boolean [B, 1, T, N]; None: all of them.
        window: how many positions a token sees, its own included; None: all up to its own."""
        distance = self.distance
        seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        return None if seen.all() else mx.array(seen[:, None])

    def _reserve_slots(self, slots: int) -> None:
        missing = slots - self.position.shape[1]
        if missing > 0:
            added = [(0, 0), (0, _in_steps(missing))]
            self.position = np.pad(self.position, added, constant_values=MASKED)

    def append(self, layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write a layer's keys and values [B, H, T, D] into the slots last reserved; return all, [B, H, N, D]."""
        return self._write(self.keys, layer, keys), self._write(self.values, layer, values)

    def _write(self, store: list, layer: int, new: mx.array) -> mx.array:
        start = self.cursor - new.shape[2]
        store[layer] = self._grown(store[layer], new)
        store[layer][:, :, start : self.cursor] = new
        return store[layer][:, :, : self.cursor]

    def _grown(self, store: mx.array | None, new: mx.array) -> mx.array:
        B, capacity = self.position.shape
        _, H, _, D = new.shape
        if store is None:
            return mx.zeros((B, H, capacity, D), new.dtype)
        missing = capacity - store.shape[2]
        return mx.pad(store, [(0, 0), (0, 0), (0, missing), (0, 0)]) if missing else store

    def keep(self, n: np.ndarray) -> None:
        """Row b keeps the first n[b], or all, of the tokens written since the last `keep`."""
        written = self.position[:, self._committed : self.cursor]
        written[np.arange(written.shape[1]) >= n[:, None]] = MASKED
        self._committed = self.cursor = min(self.cursor, self._committed + int(n.max()))
        if self.cursor > self.FEW and self.cursor > 2 * self.lengths.max():
            self._compact()

    def _compact(self) -> None:
        """Move every row's live slots to the front, in one gather."""
        masked = self.position[:, : self.cursor] == MASKED
        self.cursor = self._committed = int(self.lengths.max())
        order = np.argsort(masked, axis=1, kind="stable")[:, : _in_steps(self.cursor)]
        self.position = np.take_along_axis(self.position, order, axis=1)
        index = mx.array(order)[:, None, :, None]
        for store in self.stores:
            store[:] = [x if x is None else mx.take_along_axis(x, index, axis=2) for x in store]

    # Rows come and go.

    def replace(self, rows: Sequence[int], fresh: "SlotCache") -> None:
        """Replace `rows` with the rows of `fresh`, which fill the first slots."""
        self.position[rows] = MASKED
        if not self.lengths.any():
            self.cursor = self._committed = 0
        held = fresh.cursor
        self._reserve_slots(held)
        self.cursor = self._committed = max(self.cursor, held)
        self.position[rows, :held] = fresh.position[:, :held]
        index = mx.array(list(rows))
        for store, new in zip(self.stores, fresh.stores, strict=False):
            for layer, slots in enumerate(new):
                if slots is not None:
                    store[layer] = self._grown(store[layer], slots)
                    store[layer][index, :, :held] = slots[:, :, :held]

    def take(self, other: "SlotCache", row: int, n: int) -> None:
        """Fill this empty cache of one row with the first n tokens of another's row."""
        slots = mx.array(np.argsort(other.position[row, : other.cursor], kind="stable")[:n])
        self.position = np.arange(n, dtype=np.int32)[None]
        self.cursor = self._committed = n
        for store, theirs in ((self.keys, other.keys), (self.values, other.values)):
            store[:] = [None if x is None else x[row : row + 1][:, :, slots] for x in theirs]

    def select(self, rows: Sequence[int]) -> None:
        """Keep `rows`, in this order. A row may appear twice, to be replaced."""
        self.reorder(rows)

    def reorder(self, rows: Sequence[int]) -> None:
        """Keep `rows`, in this order; each must replace a row of the same prompt."""
        index = mx.array(list(rows))
        self.position = self.position[list(rows)]
        for store in self.stores:
            store[:] = [None if slots is None else slots[index] for slots in store]


class CrossCache(SlotCache):
    """The cache of an encoder-decoder model: slots, and what the decoder's cross-attention reads.

    cross:      per layer [keys, values] of the source, [B, H, S, D] each; then, if given, the encoder's output in the same
                shape, [B, 1, S, d_model]
    mask:       [B, S] boolean on the host, true on the source's tokens
    cross_mask: [B, 1, 1, S] boolean on the device; None when no source is padded
    previous:   for a distilled draft model, the target's states before the tokens of a call, [B, T, W]
    """

    def __init__(self, cross: Sequence[tuple], mask: np.ndarray, encoded: mx.array | None = None):
        super().__init__(len(mask), len(cross))
        # Contiguous per head: otherwise MLX's CPU backend would copy them in every step.
        self.cross = [[mx.contiguous(x) for x in pair] for pair in cross]
        if encoded is not None:
            self.cross.append([encoded[:, None]])
        self.previous: mx.array | None = None
        self.states_of: Callable[..., mx.array] | None = None  # see Model.target_states
        self.mask = mask
        self.cross_mask = padding_mask(mask)

    @property
    def arrays(self) -> list[mx.array]:
        return [*super().arrays, *(x for pair in self.cross for x in pair)]

    def encoded(self, rows: Sequence[int]) -> tuple[mx.array, np.ndarray]:
        """The encoder's output for these rows, [B, S, d_model], and its mask [B, S]."""
        (output,) = self.cross[-1]
        return output[mx.array(list(rows)), 0], self.mask[list(rows)]

    # A draft model may read states of the target.

    def keep_states(self, states_of: Callable[..., mx.array]) -> None:
        """Keep the states of all tokens from now on, in the slots of their keys."""
        if not self.states_of:
            self.states_of = states_of
            self.stores.append([None])

    def add_states(self, states: mx.array) -> None:
        """Add the states [B, T, W] of the tokens last reserved."""
        self._write(self.stores[2], 0, states[:, None])

    def states(self, positions: np.ndarray) -> mx.array | None:
        """The states of the tokens at positions [B, T]: [B, T, W], 0 where it has none; None: it has none at all."""
        (slots,) = self.stores[2]
        if slots is None or not self.cursor:
            return None
        there = positions[:, :, None] == self.position[:, None, : self.cursor]  # [B, T, N]
        index = mx.array(there.argmax(axis=2))[:, :, None]
        states = mx.take_along_axis(slots[:, 0], index, axis=1)
        return mx.where(mx.array(there.any(axis=2))[:, :, None], states, 0)

    def replace(self, rows: Sequence[int], fresh: Any) -> None:
        super().replace(rows, fresh)
        width = fresh.mask.shape[1]
        self.mask[rows] = False
        others = np.flatnonzero(self.mask.any(axis=0))
        self._fit(max(width, int(others.max(initial=-1)) + 1))
        index = mx.array(list(rows))
        for pair, new in zip(self.cross, fresh.cross, strict=True):
            for x, y in zip(pair, new, strict=True):
                x[index, :, :width] = y
        self.mask[rows, :width] = fresh.mask
        self.cross_mask = padding_mask(self.mask)

    def _fit(self, width: int) -> None:
        """Make room for sources of `width` tokens, or drop the columns beyond, if they are many."""
        held = self.mask.shape[1]
        if width > held or 4 * width <= 3 * held:
            pad = [(0, 0), (0, 0), (0, max(0, width - held)), (0, 0)]
            self.mask = np.pad(self.mask[:, :width], pad[1:3])
            self.cross = [[mx.pad(x[:, :, :width], pad) for x in pair] for pair in self.cross]

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        index = mx.array(list(rows))
        self.mask = self.mask[list(rows)]
        self.cross = [[x[index] for x in pair] for pair in self.cross]
        self.cross_mask = padding_mask(self.mask)


def _in_steps(slots: int) -> int:
    """`slots` rounded up to whole steps."""
    return math.ceil(slots / SlotCache.STEP) * SlotCache.STEP
