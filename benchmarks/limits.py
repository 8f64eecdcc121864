"""The most that drafting could gain: an oracle that knows how many drafted tokens will be accepted."""

import time
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.model import Model
from speculative.row import Row


def oracle_rate(plain: Sequence[Row], draft: Model, by_length: Sequence[float]) -> float:
    """Tokens per second if the oracle chose the best draft length in every step. plain: the same texts, decoded plainly;
    by_length[k]: the seconds of a step that drafts k tokens. Reading prompts is included."""
    seconds = 0.0
    for row in plain:
        matches, prefill_seconds = draft_matches(draft, row)
        drafted = prefill_seconds + min_seconds(matches, by_length)
        seconds += row.stats.encoding_seconds + min(drafted, len(matches) * by_length[0])
    return sum(row.stats.tokens for row in plain) / seconds


def draft_matches(draft: Model, row: Row) -> tuple[np.ndarray, float]:
    """Whether the draft model would draft each token of a text, given those before; and the seconds of its prefill."""
    began = time.perf_counter()
    cache = draft.start([row.prompt])
    cache.wait()
    prefill_seconds = time.perf_counter() - began
    draft_tokens = np.array(mx.argmax(text_logits(draft, row, cache), axis=-1))
    return draft_tokens == np.array(row.generated), prefill_seconds


def text_logits(model: Model, row: Row, cache: Any = None) -> mx.array:
    """Logits [T, V] of the T tokens of a row's text, in one call. cache: of its prompt, after prefill."""
    cache = cache or model.start([row.prompt])
    T = len(row.generated)
    first = int(cache.lengths[0])
    inputs = np.minimum([row.tokens[first:-1]], model.config.vocab_size - 1).astype(np.int32)
    positions = np.arange(first, len(row.tokens) - 1, dtype=np.int32)[None]
    return model.decode(mx.array(inputs), positions, cache)[0, -T:]


def min_seconds(matches: np.ndarray, by_length: Sequence[float]) -> float:
    """The shortest time for a text, by dynamic programming from its end. Arguments: see `draft_matches`, `oracle_rate`."""
    fastest = [0.0] * (len(matches) + 1)
    for i in range(len(matches) - 1, -1, -1):
        ahead = [*matches[i : i + len(by_length) - 1].tolist(), False]
        accepted = min(ahead.index(False), len(matches) - 1 - i)
        fastest[i] = min(by_length[k] + fastest[i + k + 1] for k in range(accepted + 1))
    return fastest[0]
