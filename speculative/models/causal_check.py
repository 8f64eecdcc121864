"""Checks, by a few tokens, that rows of a batch of one of mlx-lm's models get the logits that they get alone."""

from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from speculative.common.errors import InputError, first_line
from speculative.step.cache import MASKED
from speculative.step.cached_model import CachedModel

# How far logits may be off, in units of their spread: in full, and in half precision.
_TOLERANCE = (0.02, 0.1)
# And states, in units of their size. Measured: up to 6e-7 and 0.01 where fillers stay out, 0.45 and more where they do not.
_STATE_TOLERANCE = (0.001, 0.05)
WRONG = 1  # a token that is drafted and rejected


class Case(NamedTuple):
    """A row to try: its tokens, and how many of them are the prompt's, are drafted, and of those are accepted."""

    tokens: list[int]
    prompt: int
    drafted: int
    accepted: int


CASES = (
    Case([3, 9, 4, 7, 5, 8, 6, 2, 9], prompt=6, drafted=3, accepted=1),
    Case([5, 7, 2, 6, 3], prompt=2, drafted=1, accepted=0),
)


def mlx_lm_cache(model: nn.Module) -> list:
    """The caches that mlx-lm would use for the model, one for each layer."""
    from mlx_lm.models.cache import make_prompt_cache

    return make_prompt_cache(model)


def refused(model: nn.Module, reason: str) -> InputError:
    name = getattr(model, "model_type", None) or type(model).__module__.rpartition(".")[2]
    return InputError(f"{name} cannot be decoded here: {reason}")


def has_state(cache: Any) -> bool:
    """Whether the cache belongs to a layer with a state: mlx-lm's ArraysCache, or one like it."""
    return all(hasattr(cache, name) for name in ("cache", "lengths", "advance", "make_mask"))


def _parts(caches: list) -> list:
    return [part for each in caches for part in getattr(each, "caches", (each,))]


def check_cache(model: nn.Module) -> list:
    """As `mlx_lm_cache`. InputError if a layer keeps more than keys, values and states."""
    if getattr(model, "model_type", None) == "afm7":  # whose logits may pass in half precision
        raise refused(model, "it takes positions from the number of its keys")
    caches = mlx_lm_cache(model)
    for cache in _parts(caches):
        kind = type(cache).__name__
        has_slots = kind == "KVCache" or (kind == "RotatingKVCache" and not cache.keep)
        if not has_slots and not has_state(cache):
            reason = "from which this step cannot take a rejected token back"
            raise refused(model, f"a layer keeps its state in {kind}, {reason}")
    return caches


def check(model: Any) -> tuple[int | None, int]:
    """The model's number of rows at a time (None: any) and of tokens in its vocabulary. Sets that of its masks' axes."""
    weights = dict(tree_flatten(model.parameters())).values()
    is_half = any(weight.dtype in (mx.float16, mx.bfloat16) for weight in weights)
    has_states = bool(model.new_cache(1).states)
    reasons = []
    attempts: list[tuple[int, int | None]] = [(4, None), (5, None)]
    if has_states:  # which may ignore lengths, and read the fillers of ragged rows
        attempts.append((4, 1))
    for mask_axes, max_rows in attempts:
        model._mask_axes = mask_axes
        try:
            distance, vocab_size = _distance(model, together=max_rows is None)
            moved = _state_distance(model) if has_states and max_rows is None else 0
        except Exception as error:  # whatever a model makes of a batch that it was not made for
            reasons.append(f"a batch of rows of unequal length fails: {first_line(error)}")
            continue
        if distance < _TOLERANCE[is_half] and moved < _STATE_TOLERANCE[is_half]:
            return max_rows, vocab_size
        reasons.append("in a batch of rows of unequal length its logits are not those alone")
    raise refused(model.model, reasons[0])


def _distance(model: Any, together: bool) -> tuple[float, int]:
    """The distance of the logits of two rows, together or one after the other, from mlx-lm's own, in units of their
    spread; and the vocabulary's size. Prompts differ in length, tokens are taken back, and fillers are on either side."""
    distances: list[float] = []
    for group in [CASES] if together else [[case] for case in CASES]:
        cached = CachedModel(model)
        prompts = [case.tokens[: case.prompt] for case in group]
        cached.admit(len(group), range(len(group)), prompts)
        longest = max(case.drafted for case in group)
        draft = [[case.tokens[case.prompt], WRONG, WRONG][:longest] for case in group]
        first = cached(prompts, mx.array(draft), np.array([case.drafted for case in group]))
        cached.keep(np.array([case.accepted for case in group]))
        last = mx.array([case.tokens[-1:] for case in group])
        second = cached([case.tokens[:-1] for case in group], last, np.ones(len(group), int))
        for i, case in enumerate(group):
            cache = mlx_lm_cache(model.model)
            # The same calls as above: a deep model in half precision rounds otherwise in others.
            model.model(mx.array([case.tokens[: case.prompt - 1]]), cache=cache)
            alone = model.model(mx.array([case.tokens[case.prompt - 1 :]]), cache=cache)[0]
            distances.append(_difference(first[i, :2], alone[:2]))
            distances.append(_difference(second[i], alone[2:]))
    return float(np.max(distances)), alone.shape[-1]


def _state_distance(model: Any) -> float:
    """The distance of states after many fillers from mlx-lm's own after the same tokens without fillers, in units of their
    size. Rounding grows from layer to layer, but fillers get into all layers of a kind, so the best of these counts."""
    T = 32  # tokens and fillers in a call
    cache = model.new_cache(2)
    held = np.zeros(2, int)
    expected = [mlx_lm_cache(model.model) for _ in held]
    ahead = np.arange(T)
    tokens = mx.array(np.stack([ahead % 7, ahead % 5]) + 3)
    for lengths in np.array([[7, 2], [0, 5]]):  # a row without a token keeps its states
        positions = np.where(ahead < lengths[:, None], held[:, None] + ahead, MASKED)
        model.decode(tokens, positions.astype(np.int32), cache)
        held += lengths
        for b in np.flatnonzero(lengths).tolist():
            model.model(tokens[b : b + 1, : int(lengths[b])], cache=expected[b])
    distances: dict[tuple, list[float]] = {}  # of each row's states of a kind, one for each layer
    for b, caches in enumerate(expected):
        alone = [part.cache for part in _parts(caches) if has_state(part)]
        for state, right in zip(cache.states, alone, strict=True):
            for i, arrays in enumerate(zip(state.cache, right, strict=True)):
                x, y = (np.array(array.astype(mx.float32)) for array in arrays)
                error = float(np.linalg.norm(x[b] - y[0]) / (np.linalg.norm(y) + 1e-9))
                distances.setdefault((b, i, *x.shape), []).append(error)
    return float(np.max([np.min(kind) for kind in distances.values()]))


def _difference(logits: mx.array, expected: mx.array) -> float:
    """The least distance of logits [n, V], in units of their spread: in half precision one may go to another expert."""
    a, b = (np.array(x.astype(mx.float32)) for x in (logits, expected))
    banned = (a == b) & np.isinf(b)  # ids that a model never writes
    a[banned] = 0
    b[banned] = 0
    spread = b - b.mean(axis=-1, keepdims=True)
    error = np.linalg.norm(a - b, axis=-1) / (np.linalg.norm(spread, axis=-1) + 1e-9)
    return error.min()  # NaN if one is, and then refused
