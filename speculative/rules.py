"""Acceptance rules: how many drafted tokens pass when sampling, and what the next token is drawn from.

Shapes: B rows, k drafted tokens, V vocabulary.
"""

from collections.abc import Callable

import mlx.core as mx
import numpy as np


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


# "coupled" compares the target's draws with the draft's instead: see Sampler.accept
COUPLED = "coupled"
RULES: dict[str, Callable | None] = {"token": accept_token, "block": accept_block, COUPLED: None}
