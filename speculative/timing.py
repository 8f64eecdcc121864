"""Timing a model's calls."""

import time
from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from speculative.model import Model

_TOKEN = 7  # any token: only the time matters


def call_timer(model: Model, prompt: Sequence[int], rows: int = 1) -> Callable[..., float]:
    """A function that returns the seconds of a decoder call on `width` tokens of each row, as in a step, or of each of
    `chained` calls that take the tokens of the call before."""
    cache = model.start([prompt] * rows)

    def decode(tokens: mx.array, after: int) -> mx.array:
        positions = cache.lengths[:, None] + after + np.arange(tokens.shape[1])
        return mx.argmax(model.decode(tokens, positions.astype(np.int32), cache), axis=-1)

    def call(width: int, chained: int = 1) -> float:
        began = time.perf_counter()
        tokens = mx.full((rows, width), _TOKEN)
        for i in range(chained):
            tokens = decode(tokens, i * width)
        mx.eval(tokens)
        cache.keep(np.zeros(rows, int))
        return (time.perf_counter() - began) / chained

    return call
