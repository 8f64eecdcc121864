"""Prefill: the tokens before a text's next one are read in chunks."""

from typing import Any

import mlx.core as mx
import numpy as np

from speculative.common.reporting import reporter
from speculative.models.contract import TokenLists, missing_tokens
from speculative.step.cache import SlotCache

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
