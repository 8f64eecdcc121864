"""The most that drafting could gain: an oracle that knows how many draft tokens will be accepted."""

import time
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from apps.cli.check import text_logits
from speculative.models.contract import Model
from speculative.step.row import Row


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
    draft.start([row.prompt]).wait()
    prefill_seconds = time.perf_counter() - began
    draft_tokens = np.array(mx.argmax(text_logits(draft, row), axis=-1))
    return draft_tokens == np.array(row.generated), prefill_seconds


def min_seconds(matches: np.ndarray, by_length: Sequence[float]) -> float:
    """The shortest time for a text, by dynamic programming from its end. Arguments: see `draft_matches`, `oracle_rate`."""
    fastest = [0.0] * (len(matches) + 1)
    for i in range(len(matches) - 1, -1, -1):
        ahead = [*matches[i : i + len(by_length) - 1].tolist(), False]
        accepted = min(ahead.index(False), len(matches) - 1 - i)
        fastest[i] = min(by_length[k] + fastest[i + k + 1] for k in range(accepted + 1))
    return fastest[0]
