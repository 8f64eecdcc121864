"""Models whose distribution is a table, and whether what was drawn has its law."""

from types import SimpleNamespace

import mlx.core as mx
import numpy as np

from speculative.cache import CrossCache

V = 4
LIMIT = 4.5  # deviation; one in 300,000 by chance


def deviation(counts: np.ndarray, law: np.ndarray) -> float:
    """How many standard deviations the chi-square statistic of `counts` lies above its mean under
    `law` (Wilson and Hilferty 1931). Counts where the law has no mass are infinitely far."""
    if counts[law == 0].any():
        return float("inf")
    rare = law * counts.sum() < 5  # too rare for the statistic one by one: counted together
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(law[~rare], law[rare].sum()) * counts.sum()
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = len(counts) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5


class LastToken:
    """A model of so many tokens whose logits are a function of the last one."""

    def __init__(self, vocab_size: int):
        self.config = SimpleNamespace(
            vocab_size=vocab_size,
            pad_token_id=0,
            eos_token_ids=(),
            max_positions=None,
            max_prompt_tokens=None,
        )

    def prefix(self, prompt):
        return [0]

    def start(self, tokens, mask=None):
        return CrossCache([(mx.zeros((tokens.shape[0], 1, 1, 1)),) * 2], mask)

    def decode(self, tokens, positions, cache):
        cache.reserve(positions)
        return self.after(tokens)


class TableModel(LastToken):
    """Its logits [V] are a table's."""

    def __init__(self, seed: int):
        super().__init__(V)
        self.logits = np.random.default_rng(seed).normal(0, 1.5, (V, V)).astype(np.float32)

    def after(self, tokens):
        return mx.array(self.logits)[tokens]
