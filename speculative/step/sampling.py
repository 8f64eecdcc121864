"""From logits to tokens: the distribution of a token, the noise that draws it, and the acceptance of drafted
tokens by one of the rules. All of it runs on the device, without a loop over drafted tokens.

Shapes: B rows, k drafted tokens, V vocabulary.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.step.draft import Draft
from speculative.step.options import COUPLED, Options
from speculative.step.processors import Controls
from speculative.step.row import Row

Numbers = float | np.ndarray  # one for all rows, or [B, 1, 1]
_TARGET, _DRAFT, _ACCEPT = range(3)  # uses of noise, which share no random numbers
BANNED = -9999.0  # the log-probability of an impossible token, as in OpenAI's protocol


def leading(right: mx.array, lengths: np.ndarray) -> mx.array:
    """The number of true entries before the first false one, among each row's first lengths[b]: [B]."""
    B, k = right.shape
    if k == 0:  # reductions over nothing crashed in MLX 0.31
        return mx.zeros((B,), mx.int32)
    meant = mx.arange(k) < mx.array(lengths)[:, None]
    return mx.cumprod((right & meant).astype(mx.int32), axis=1).sum(axis=1)


def at(x: mx.array, n: mx.array) -> mx.array:
    """x[b, n[b]] for x [B, T] or [B, T, V]."""
    index = n.reshape(-1, *[1] * (x.ndim - 1))
    return mx.take_along_axis(x, index, axis=1)[:, 0]


def of_drafted(x: mx.array, tokens: mx.array) -> mx.array:
    """The entries of x [B, k + 1, V] for the drafted tokens [B, k]: [B, k]."""
    return mx.take_along_axis(x[:, : tokens.shape[1]], tokens[..., None], axis=-1)[..., 0]


def _residual(r: mx.array, p: mx.array, n: mx.array) -> mx.array:
    """r [B, k + 1, V] after n tokens, or p where that is all zero (p and q are equal there): [B, V]."""
    r, p = at(r, n), at(p, n)
    return mx.where(r.sum(axis=-1, keepdims=True) > 0, r, p)


def accept_token(
    p: mx.array, q: mx.array, tokens: mx.array, lengths: np.ndarray, u: mx.array, delta: float = 0.0
) -> tuple[mx.array, mx.array]:
    """Accept a drafted token with probability min(1, p / q + delta), else draw from max(p - q, 0).

    p, q [B, k + 1, V], q zero beyond a row's drafted tokens; tokens [B, k], of which the first lengths[b] are
    meant; u [B, k] uniform in [0, 1). Returns n [B] and what the next token is to be drawn from [B, V], not normalised.
    """
    n = leading((u - delta) * of_drafted(q, tokens) < of_drafted(p, tokens), lengths)
    return n, _residual(mx.maximum(p - q, 0), p, n)


def accept_block(
    p: mx.array, q: mx.array, tokens: mx.array, lengths: np.ndarray, u: mx.array
) -> tuple[mx.array, mx.array]:
    """Accept the drafted tokens as a block. Arguments and result: as `accept_token`.

    With w_0 = 1 and w_i = min(1, w_{i-1} p_{i-1}(d_i) / q_{i-1}(d_i)), the residual after i tokens is
    r_i = max(w_i p_i - q_i, 0) with sum S_i, and n is the largest i with u_i < h_i, where
    h_i = S_i / (S_i + 1 - w_i); at a row's last token q_i = 0, so that h_i = w_i.
    """
    B, k = tokens.shape
    q_drafted = of_drafted(q, tokens)
    q_drafted = mx.where(q_drafted > 0, q_drafted, 1)  # zero only beyond a row's drafted tokens
    log_ratio = mx.log(of_drafted(p, tokens)) - mx.log(q_drafted)  # [B, k]
    log_ratio = mx.concatenate([mx.zeros((B, 1)), log_ratio], axis=1)
    walk = mx.cumsum(log_ratio, axis=1)
    w = mx.exp(walk - mx.cummax(walk, axis=1))  # [B, k + 1], the recursion without a loop
    r = mx.maximum(w[..., None] * p - q, 0)  # [B, k + 1, V]
    S = r.sum(axis=-1)
    h = mx.where(w < 1, S / (S + 1 - w), 1)[:, 1:]
    i = mx.arange(1, k + 1)
    passed = (u < h) & (i <= mx.array(lengths)[:, None])
    n = mx.concatenate([mx.zeros((B, 1), i.dtype), mx.where(passed, i, 0)], axis=1).max(axis=1)
    return n, _residual(r, p, n)


# How many drafted tokens pass when sampling, and what the next token is drawn from: the rules of options.RULES but "coupled",
# which compares the target's draws with the draft's (Sampler.accept)
ACCEPT: dict[str, Callable] = {"token": accept_token, "block": accept_block}


class Greedy:
    """Temperature 0: exactly the argmax. delta > 0 is lossy: a drafted token passes if the target
    gives it at least (1 - delta) times its best token's probability."""

    def __init__(self, rows: Sequence[Row] = (), delta: float = 0.0):
        self.process = Controls(rows)
        self._delta = delta

    def propose(self, logits: mx.array, drafted: Sequence[mx.array]) -> tuple[mx.array, Any]:
        """The draft model's next token [B] from its logits [B, V'] after the tokens that it has
        drafted in this step, [B, 1] each; and the distribution [B, V'] it was drawn from, or None."""
        return mx.argmax(self.process(logits[:, None], drafted)[:, 0], axis=-1), None

    def accept(self, logits: mx.array, draft: Draft) -> tuple[mx.array, mx.array]:
        """n [B], how many drafted tokens of each row are accepted, and the target's own next token
        [B]. logits [B, k + 1, V] are the target's, processed, after the last token and each drafted one."""
        best = mx.argmax(logits, axis=-1)  # [B, k + 1]
        k = draft.tokens.shape[1]
        if self._delta:
            margin = math.log1p(-self._delta) if self._delta < 1 else -math.inf
            right = of_drafted(logits, draft.tokens) >= logits[:, :k].max(axis=-1) + margin
        else:
            right = draft.tokens == best[:, :k]
        n = leading(right, draft.lengths)
        return n, at(best, n)


def probabilities(
    logits: mx.array, temp: Numbers, top_k: Numbers = 0, top_p: Numbers = 1.0, min_p: Numbers = 0.0
) -> mx.array:
    """The float32 distribution that tokens are drawn from, for logits [..., V], or [B, T, V] if rows have
    different settings. Temperature first (0: only the best token), then top_k (0: off), top_p and min_p, in
    transformers' order and meaning. One token always stays."""
    V = logits.shape[-1]
    logits = mx.clip(logits.astype(mx.float32), -3e38, 3e38)  # infinities would make NaN
    best = mx.argmax(logits, axis=-1, keepdims=True)
    logits = logits - logits.max(axis=-1, keepdims=True)
    logits = logits / _on_device(np.maximum(temp, 1e-30))  # smaller ones are 0 in float32
    if np.any(top_k) or np.any(np.less(top_p, 1)):
        # A multiple of 64, so that a row's sums do not depend on another row's top_k.
        count = -(-int(min(np.max(top_k), V)) // 64) * 64 if np.all(top_k) else V
        order = best_tokens(logits, min(count, V))
        ranked = mx.take_along_axis(logits, order, axis=-1)
        rank = mx.arange(order.shape[-1])
        keep = rank < _on_device(np.where(np.equal(top_k, 0), V, np.minimum(np.float64(top_k), V)))
        p = mx.softmax(mx.where(keep, ranked, -mx.inf), axis=-1)
        # Sums of float32 may pass 1 before the last token.
        mass = _on_device(np.where(np.less(top_p, 1), top_p, np.inf))
        keep = keep & ((mx.cumsum(p, axis=-1) - p < mass) | (rank == 0))
        ranked, none = mx.where(keep, ranked, -mx.inf), mx.full(logits.shape, -mx.inf)
        logits = mx.put_along_axis(none, order, ranked, axis=-1)
    if np.any(min_p):  # the best token's logit is 0 here
        lowest = _on_device(np.log(np.maximum(min_p, 1e-300)))
        logits = mx.where(logits >= lowest, logits, -mx.inf)
    p, greedy = mx.softmax(logits, axis=-1), np.equal(temp, 0)
    return mx.where(mx.array(greedy), mx.arange(V) == best, p) if greedy.any() else p


def best_tokens(logits: mx.array, count: int) -> mx.array:
    """The ids [..., count] of the best tokens, the best first; of equal ones the lowest id first. MLX sorts the whole
    vocabulary on a GPU even for a partition; a CPU is ten times quicker with one."""
    if not count:
        return mx.zeros((*logits.shape[:-1], 0), mx.uint32)
    if count == logits.shape[-1]:
        return mx.argsort(-logits, axis=-1)
    ids = mx.sort(mx.argpartition(-logits, count - 1, axis=-1)[..., :count], axis=-1)
    order = mx.argsort(-mx.take_along_axis(logits, ids, axis=-1), axis=-1)
    return mx.take_along_axis(ids, order, axis=-1)


def _on_device(x: Numbers) -> mx.array:
    return mx.array(np.asarray(x, np.float32))


def log_probabilities(
    logits: mx.array, n: mx.array, token: mx.array, drafted: mx.array, best: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Under the target's logits [B, k + 1, V], without temperature and filters: the log-probabilities [B, k + 1]
    of the drafted tokens [B, k], and of the target's own in place n; and in each place the ids and
    log-probabilities of the best tokens, [B, k + 1, best]. BANNED at least."""
    logits = logits.astype(mx.float32)
    tokens = mx.concatenate([drafted, token[:, None]], axis=1)
    tokens = mx.where(mx.arange(tokens.shape[1]) == n[:, None], token[:, None], tokens)
    logits = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    ids = best_tokens(logits, best)
    scores = mx.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
    values = mx.take_along_axis(logits, ids, axis=-1)
    # JSON has no minus infinity (a banned token) and no NaN (all tokens banned).
    scores, values = (mx.where(x > BANNED, x, BANNED) for x in (scores, values))
    return scores, ids, values


class RowSeeds:
    """The roots of the noise for one list of prompts, by seed and prompt; a repeated prompt gets a new one."""

    def __init__(self, seed: int | None):
        self._seed = seed
        self._seen: Counter[bytes] = Counter()

    def __call__(self, source: list[int]) -> bytes:
        text = f"{self._seed}|{','.join(map(str, source))}"
        root = hashlib.blake2b(text.encode(), digest_size=16).digest()
        self._seen[root] += 1
        return hashlib.blake2b(root, key=str(self._seen[root]).encode(), digest_size=16).digest()


class Sampler:
    """Draws from exactly the target's distribution by one of three rules, or by the caller's own.

    token:   Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318)
    block:   Sun et al. 2024 (arXiv 2403.10444); never accepts fewer tokens than `token`
    coupled: Daliri et al. 2024 (arXiv 2408.07978); the text is that of plain sampling

    delta > 0 (rule token only) is lossy: a drafted token is accepted with probability p/q + delta.
    """

    def __init__(self, rows: Sequence[Row], options: Options, vocab_size: int):
        """vocab_size: rows of the target's vocabulary; the draft may have fewer, the first ones"""
        self.process = Controls(rows)
        self._rows = rows
        self._options = options
        self._vocab_size = vocab_size
        self._is_coupled = options.rule == COUPLED
        self._distribution = {  # that target and draft model share
            name: np.array([getattr(row.options, name) for row in rows])[:, None, None]
            for name in ("temp", "top_k", "top_p", "min_p")
        }

    def _positions(self, count: int) -> np.ndarray:
        """The positions [B, count] of the next `count` tokens of each row."""
        return np.array([len(row.tokens) for row in self._rows])[:, None] + np.arange(count)

    def _keys(self, purpose: int, positions: np.ndarray) -> mx.array:
        """A random key for each of the positions [B, T]: [B, T, 2]. It depends on the seed, the row's prompt,
        the purpose and the position, so that a row draws the same whatever else is in its batch."""
        keys = [
            hashlib.blake2b(f"{purpose}|{position}".encode(), digest_size=8, key=row.seed).digest()
            for row, of_row in zip(self._rows, positions.tolist(), strict=True)
            for position in of_row
        ]
        return mx.array(np.frombuffer(b"".join(keys), np.uint32).reshape(*positions.shape, 2))

    def _noise(self, purpose: int, positions: np.ndarray) -> mx.array:
        """Gumbel noise [B, T, V] of the positions [B, T]. The draft's is cut from the target's V columns, never drawn:
        MLX draws other numbers for another size."""
        draw = mx.vmap(lambda key: mx.random.gumbel((self._vocab_size,), key=key))
        keys = self._keys(purpose, positions)
        return draw(keys.reshape(-1, 2)).reshape(*positions.shape, -1)

    def propose(self, logits: mx.array, drafted: Sequence[mx.array]) -> tuple[mx.array, Any]:
        """As `Greedy.propose`."""
        q = probabilities(self.process(logits[:, None], drafted), **self._distribution)[:, 0]
        i = len(drafted)
        if self._is_coupled:
            noise = self._noise(_TARGET, self._positions(i + 1)[:, i:])
        else:
            # Not by position alone: a position drafted again after a rejection needs new noise,
            # because rule block has looked at the rejected tokens.
            noise = self._noise(_DRAFT, self._positions(1) * 2**32 + i)
        return mx.argmax(mx.log(q) + noise[:, 0, : q.shape[-1]], axis=-1), q

    def accept(self, logits: mx.array, draft: Draft) -> tuple[mx.array, mx.array]:
        """As `Greedy.accept`."""
        tokens, lengths = draft.tokens, draft.lengths
        p = probabilities(logits, **self._distribution)  # [B, k + 1, V]
        k = tokens.shape[1]
        positions = self._positions(k + 1)
        if self._is_coupled or k == 0:  # without drafts all rules agree
            drawn = mx.argmax(mx.log(p) + self._noise(_TARGET, positions), axis=-1)  # [B, k + 1]
            n = leading(tokens == drawn[:, :k], lengths)
            return n, at(drawn, n)
        # A key for each drafted token: MLX draws other numbers for another k, which is the batch's. Steps start
        # at different positions, so no two share a key.
        start = positions[:, :1]
        keys = self._keys(_ACCEPT, start * 2**32 + np.arange(k))
        u = mx.vmap(lambda key: mx.random.uniform(key=key))(keys.reshape(-1, 2)).reshape(-1, k)
        q = _padded_q(draft, p.shape[-1])
        rule = self._options.rule
        accept: Any = rule if callable(rule) else ACCEPT[rule]
        if accept is accept_token:
            accept = partial(accept_token, delta=self._options.delta)
        n, residual = accept(p, q, tokens, lengths, u)
        return n, mx.argmax(mx.log(residual) + self._noise(_TARGET, start)[:, 0], axis=-1)


def _padded_q(draft: Draft, vocab_size: int) -> mx.array:
    """The draft's distributions [B, k + 1, V]: one-hot where tokens were certain, zero for ids that the drafter lacks
    and beyond each row's length, where only the target counts."""
    q = (draft.tokens[..., None] == mx.arange(vocab_size)).astype(mx.float32)
    if draft.q is not None:
        drawn = mx.pad(draft.q, [(0, 0), (0, 0), (0, vocab_size - draft.q.shape[-1])])
        certain = np.array(False) if draft.certain is None else draft.certain[..., None]
        q = mx.where(mx.array(certain), q, drawn)
    meant = np.arange(q.shape[1]) < draft.lengths[:, None]
    q = mx.where(mx.array(meant[..., None]), q, 0.0)
    return mx.pad(q, [(0, 0), (0, 1), (0, 0)])


def sampler_for(rows: Sequence[Row], options: Options, vocab_size: int) -> Greedy | Sampler:
    """The sampler for these rows, which have their own temperatures, filters and processors; the rule is `options`'."""
    if all(row.options.temp == 0 for row in rows):
        return Greedy(rows, options.delta)
    return Sampler(rows, options, vocab_size)
