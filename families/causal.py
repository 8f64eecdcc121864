"""Decoder-only models: any of mlx-lm's whose layers keep keys and values only, behind the contract.

What mlx-lm's models ask of a cache, per layer, is a LayerCache. How to load them: causal_loading.py.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from distributed.ranks import ALONE
from errors import InputError
from speculative.cache import MASKED, SlotCache

PREFILL = 512  # prompt tokens in a call


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@dataclass(frozen=True)
class CausalConfig:
    """What the step needs to know of a decoder-only model."""

    vocab_size: int  # of the logits
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    max_positions: int | None

    # One less than there are positions: a token is text.
    max_prompt_tokens = property(lambda c: None if c.max_positions is None else c.max_positions - 1)


class CausalCache(SlotCache):
    """Slots, as each layer of an mlx-lm model wants to see them.

    windows: per layer how many positions a query sees, its own included; None: all before it
    mask_axes: 4 for masks [B, 1, T, N]; 5 where a model has an axis more between heads and queries
    """

    def __init__(self, batch_size: int, windows: Sequence[int | None], mask_axes: int = 4):
        super().__init__(batch_size, len(windows))
        self.layers = [LayerCache(self, i, window) for i, window in enumerate(windows)]
        self._mask_axes = mask_axes

    def reserve(self, positions: np.ndarray) -> np.ndarray:
        slots = super().reserve(positions)
        # The tokens of a row follow each other: where its first is tells where all are.
        real = positions != MASKED
        column = real.argmax(axis=1)  # [B]
        first = np.take_along_axis(positions, column[:, None], axis=1)[:, 0]
        offset = np.where(real.any(axis=1), first - column, 0).astype(np.int32)
        self.offset: int | mx.array = int(offset[0]) if len(offset) == 1 else mx.array(offset)
        self._masks: dict[tuple, Any] = {}
        return slots

    def mask(self, window: int | None, as_array: bool) -> mx.array | str | None:
        """Which slots the tokens last reserved see. Without `as_array`, "causal" or None where that
        says it: the kernels are faster so."""
        if (window, as_array) not in self._masks:
            self._masks[window, as_array] = self._make_mask(window, as_array)
        return self._masks[window, as_array]

    def _make_mask(self, window: int | None, as_array: bool) -> mx.array | str | None:
        distance = self.distance
        _, T, N = distance.shape
        in_order = (self.position[:, :N] == np.arange(N)).all()
        if not as_array and (window or N) >= N and in_order:
            return "causal" if T > 1 else None
        seen = distance >= 0  # of a filler's, its own: a row of scores without one would be NaN
        if window is not None:
            seen &= distance < window
        return mx.array(seen[:, None] if self._mask_axes == 4 else seen[:, None, None])


class LayerCache:
    """A layer's part of a CausalCache, with what mlx-lm's models call."""

    def __init__(self, slots: CausalCache, layer: int, window: int | None):
        self._slots, self._layer, self._window = slots, layer, window

    @property
    def offset(self) -> int | mx.array:
        """The position of a block's first column; [B] where rows differ. During a call it stays."""
        return self._slots.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return self._slots.append(self._layer, keys, values)

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """For layers that attend to another one's."""
        N = self._slots.cursor
        return self._slots.keys[self._layer][:, :, :N], self._slots.values[self._layer][:, :, :N]

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None):
        if self._window and window_size not in (None, self._window):
            raise InputError(f"its masks span {window_size} tokens, its cache {self._window}")
        return self._slots.mask(self._window or window_size, return_array)


class DecoderOnly(nn.Module):
    """What decoder-only models share of the contract; `decode` is a subclass's own."""

    ranks = ALONE  # the processes that share the model's layers
    # Told how many prompt tokens are read, of how many.
    progress: Callable[[int, int], None] | None = None

    def prefix(self, prompt: Sequence[int]) -> list[int]:
        return list(prompt)

    def new_cache(self, batch_size: int) -> SlotCache:
        return SlotCache(batch_size, len(self.layers))

    def start(self, tokens: mx.array, mask: np.ndarray | None = None) -> Any:
        """A cache with all but the last of each row's tokens [B, S]; mask [B, S] true on tokens, which
        are on the left (None: no padding). InputError for a row without a token."""
        B, S = tokens.shape
        lengths = np.full(B, S) if mask is None else np.asarray(mask, bool).sum(axis=1)
        if not lengths.all():
            raise InputError("a prompt without a token cannot be continued")
        cache = self.new_cache(B)
        ahead = np.arange(S - 1, dtype=np.int32)
        positions = np.where(ahead < lengths[:, None] - 1, ahead, MASKED).astype(np.int32)
        for start in range(0, S - 1, PREFILL):
            end = min(start + PREFILL, S - 1)
            self.decode(tokens[:, start:end], positions[:, start:end], cache)
            cache.wait()
            mx.clear_cache()  # a chunk's buffers, each larger than the last's, are not used again
            if self.progress:
                self.progress(end, S - 1)
        cache.keep(lengths - 1)
        return cache


class CausalModel(DecoderOnly):
    """An mlx-lm model behind the contract. InputError, which names it and says why, for one whose
    rows would get other logits in a ragged batch, with tokens taken back, than they get alone."""

    def __init__(
        self,
        model: nn.Module,
        eos_token_ids: Iterable[int] = (),
        pad_token_id: int | None = None,
        max_positions: int | None = None,
    ):
        super().__init__()
        self.model = model
        self._windows = check_cache(model)
        limits = [n for n in (max_positions, _clip_positions(model)) if n]
        self._mask_axes, vocab_size = _check(self)
        eos = tuple(sorted(i for i in eos_token_ids if i < vocab_size))
        # Padding has no text, so it may not be a token that has.
        pads = [i for i in (pad_token_id, *eos, 0) if i is not None and i < vocab_size]
        self.config = CausalConfig(vocab_size, eos, pads[0], min(limits, default=None))

    def new_cache(self, batch_size: int) -> CausalCache:
        return CausalCache(batch_size, self._windows, self._mask_axes)

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: CausalCache) -> mx.array:
        """Append tokens [B, T] at positions [B, T], which follow each other within a row, to the cache;
        their logits [B, T, V]. A token at position MASKED is a filler: its logits mean nothing."""
        cache.reserve(positions)
        return self.model(tokens, cache=cache.layers)


class ClippedTable(nn.Module):
    """A table of positions, for fillers that lie beyond it: MLX reads on without an error."""

    def __init__(self, table: nn.Module):
        super().__init__()
        self.table = table

    def __call__(self, positions: mx.array) -> mx.array:
        return self.table(mx.clip(positions, 0, len(self.table.weight) - 1))


def _clip_positions(model: nn.Module) -> int | None:
    """Clip learned positions; how many there are, None: they are not learned."""
    for module in model.modules():
        if "wpe" in module:  # as gpt2 has it; no other architecture of mlx-lm's learns positions
            module.wpe = ClippedTable(module.wpe)
            return len(module.wpe.table.weight)
    return None


# ---------------------------------------------------------------------------------------------
# Which models can

# How far logits may be off, in units of their spread: in full, and in half precision.
_TOLERANCE = (0.02, 0.1)


def own_cache(model: nn.Module) -> list:
    """What mlx-lm would decode the model with."""
    from mlx_lm.models.cache import make_prompt_cache

    return make_prompt_cache(model)


def _refused(model: nn.Module, reason: str) -> InputError:
    name = getattr(model, "model_type", None) or type(model).__module__.rpartition(".")[2]
    return InputError(f"{name} cannot be decoded here: {reason}")


def check_cache(model: nn.Module) -> list[int | None]:
    """Each layer's window. InputError for a model that keeps more than keys and values."""
    if getattr(model, "model_type", None) == "afm7":  # whose logits may pass in half precision
        raise _refused(model, "it takes positions from the number of its keys")
    caches = own_cache(model)
    for cache in caches:
        kind = type(cache).__name__
        if kind != "KVCache" and (kind != "RotatingKVCache" or cache.keep):
            reason = "from which this step cannot take a rejected token back"
            raise _refused(model, f"a layer keeps its state in {kind}, {reason}")
    return [getattr(cache, "max_size", None) for cache in caches]


def _check(model: CausalModel) -> tuple[int, int]:
    """How many axes the model wants masks to have, and the size of its vocabulary. InputError where its
    logits are others than alone: it may take positions from the number of slots, or one for all rows."""
    weights = dict(tree_flatten(model.parameters())).values()
    half = any(weight.dtype in (mx.float16, mx.bfloat16) for weight in weights)
    reasons = []
    for mask_axes in (4, 5):
        model._mask_axes = mask_axes
        try:
            distance, vocab_size = _distance(model)
        except Exception as error:  # whatever a model makes of a batch that it was not made for
            ours = isinstance(error, InputError)
            batch = "" if ours else "a batch of rows of unequal length fails: "
            reasons.append(batch + first_line(error))
            continue
        if distance < _TOLERANCE[half]:
            return mask_axes, vocab_size
        reasons.append("in a batch of rows of unequal length its logits are not those alone")
    raise _refused(model.model, reasons[0])


def _distance(model: CausalModel) -> tuple[float, int]:
    """How far the logits of two rows are from those of mlx-lm alone, in units of these's spread, and
    how many a token has. The prompts differ in length, tokens are taken back, and fillers are on
    either side. What is wrong is wrong for all of a row's tokens in a call, so the best counts: in half
    precision one of them may be given to another expert."""
    a, b = [3, 9, 4, 7, 5, 8, 6, 2, 9], [5, 7, 2, 6, 3]
    X, at = 1, MASKED  # a wrong token, and where a filler is
    cache = model.start(mx.array([a[:6], b[:2] + 4 * [X]]), np.arange(6) < np.array([[6], [2]]))
    first = model.decode(
        mx.array([[a[5], a[6], X, X], [X, b[1], b[2], X]]),
        np.array([[5, 6, 7, 8], [at, 1, 2, at]], np.int32),
        cache,
    )
    cache.keep(np.array([2, 3]))
    second = model.decode(mx.array([a[7:], b[3:]]), np.array([[7, 8], [3, 4]], np.int32), cache)
    distances: list[float] = []
    for row, *found in ((a, first[0, :2], second[0]), (b, first[1, 1:3], second[1])):
        alone = model.model(mx.array([row]), cache=own_cache(model.model))[0, -4:]
        distances += map(_difference, found, (alone[:2], alone[2:]))
    return float(np.max(distances)), alone.shape[-1]


def _difference(found: mx.array, expected: mx.array) -> float:
    """How far the best of logits [n, V] are from those expected, in units of these's spread."""
    a, b = (np.array(x.astype(mx.float32)) for x in (found, expected))
    banned = (a == b) & np.isinf(b)  # ids that a model never writes
    a, b = np.where(banned, 0, a), np.where(banned, 0, b)
    spread = b - b.mean(axis=-1, keepdims=True)
    error = np.linalg.norm(a - b, axis=-1) / (np.linalg.norm(spread, axis=-1) + 1e-9)
    return error.min()  # NaN, and so refused, where one is
