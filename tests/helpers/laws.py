"""Distributions that are tables, models that have them, and whether what was drawn has their law."""

import itertools
from types import SimpleNamespace

import mlx.core as mx
import numpy as np

from helpers.decoding import Waiting, new_driver, new_rows
from speculative.models.contract import Model
from speculative.step.cache import CrossCache
from speculative.step.options import Options
from speculative.step.sampling import Draft, _padded_q, probabilities

V = 4
LIMIT = 4.5  # deviation; one in 300,000 by chance
BATCH = 2000


def deviation(counts: np.ndarray, law: np.ndarray) -> float:
    """How many standard deviations the chi-square statistic of `counts` lies above its mean under
    `law` (Wilson and Hilferty 1931). Counts where the law has no mass are infinitely far."""
    if counts[law == 0].any():
        return float("inf")
    expected = law * counts.sum()
    rare = expected < 5  # too rare for the statistic one by one: counted together
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = len(counts) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5


def tables(seed: int, temp: float = 1.0, **filters) -> tuple[np.ndarray, np.ndarray]:
    """The next-token distributions [V, V] of a target and of a draft, by the last token."""
    logits = np.random.default_rng(seed).normal(0, 1.0, (2, V, V)).astype(np.float32)
    p, q = (np.array(probabilities(mx.array(x), temp, **filters)) for x in logits)
    return p, q


def joint_law(p: np.ndarray, length: int) -> np.ndarray:
    """The law of the first `length` tokens after token 0: [V ** length]."""
    sequences = itertools.product(range(V), repeat=length)
    return np.array([np.prod(p[(0, *tokens[:-1]), tokens]) for tokens in sequences])


def frequencies(tokens: np.ndarray) -> np.ndarray:
    """How often each sequence is among tokens [draws, length]: [V ** length]."""
    length = tokens.shape[1]
    return np.bincount(tokens @ V ** np.arange(length - 1, -1, -1), minlength=V**length)


def draw(rng: np.random.Generator, p: np.ndarray) -> np.ndarray:
    """One token per row of p [B, V]."""
    return (p.cumsum(axis=1) < rng.random((len(p), 1)) * p.sum(axis=1, keepdims=True)).sum(axis=1)


def before_a_two(tokens: np.ndarray) -> np.ndarray:
    """How many of the drafted tokens [draws, k] are meant, where drafts drop a token for what it is."""
    return np.pad(tokens == 2, [(0, 0), (0, 1)], constant_values=True).argmax(axis=1)


def up_to_a_two(tokens: np.ndarray) -> np.ndarray:
    """Drafts end with their first 2: by what has been drafted, that token included."""
    return np.minimum(before_a_two(tokens) + 1, tokens.shape[1])


def counts_of_one_step(accept, p: np.ndarray, q: np.ndarray, k: int, draws: int, meant=None):
    """How often each sequence of k + 1 tokens comes out of a step, [V ** (k + 1)], where what follows the
    step's own tokens is drawn from the target; and how many drafted tokens a step accepts, on average."""
    rng = np.random.default_rng(k)
    tokens = np.zeros((draws, k + 2), int)  # column 0: the token before
    for i in range(k):
        tokens[:, i + 1] = draw(rng, q[tokens[:, i]])
    p_at = mx.array(p[tokens[:, : k + 1]])
    drafted = tokens[:, 1 : k + 1]
    lengths = meant(drafted) if meant else np.full(draws, k)
    draft = Draft(mx.array(drafted), lengths, mx.array(q[tokens[:, :k]]))
    u = mx.array(rng.random((draws, k), np.float32))
    n, residual = map(np.array, accept(p_at, _padded_q(draft, V), draft.tokens, lengths, u))
    following = draw(rng, residual)
    for i in range(1, k + 2):
        own = draw(rng, p[tokens[:, i - 1]])
        tokens[:, i] = np.where(i <= n, tokens[:, i], np.where(i == n + 1, following, own))
    return frequencies(tokens[:, 1:]), n.mean()


def decoded(options: Options, drafter, schedule=None, count: int = 8000):
    """Rows, decoded with TableModel(0), BATCH of them side by side. So many are enough: with the same noise for
    drafting and accepting their deviation is 5.8 and more."""
    driver = new_driver(TableModel(0), drafter, options, schedule)
    rows = new_rows(TableModel(0), [[b % 3, b % 2] for b in range(count)], options)
    return list(driver.decode(Waiting(rows), BATCH))


def deviation_of(rows, law: np.ndarray) -> float:
    return deviation(frequencies(np.array([row.tokens[1:] for row in rows])), law)


class TableModel(Model):
    """A model of `size` tokens whose logits [size, size] are a table's, by the last token."""

    def __init__(self, seed: int, size: int = V):
        self.config = SimpleNamespace(vocab_size=size, pad_token_id=0, eos_token_ids=())
        self.config.max_positions = self.config.max_prompt_tokens = None
        self.logits = np.random.default_rng(seed).normal(0, 1.5, (size, size)).astype(np.float32)

    def prefix(self, prompt):
        return [0]

    def start(self, prompts):
        mask = np.ones((len(prompts), 1), bool)
        return CrossCache([(mx.zeros((len(prompts), 1, 1, 1)),) * 2], mask)

    def decode(self, tokens, positions, cache):
        cache.reserve(positions)
        return mx.array(self.logits)[tokens]
