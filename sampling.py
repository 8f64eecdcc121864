"""From logits to tokens: the rules by which the target accepts what a drafter proposed.

Shapes: B rows, k drafted tokens, V vocabulary. Everything stays on the device.
"""

import mlx.core as mx


def accept_greedy(
    logits: mx.array, drafted: mx.array, lengths: mx.array
) -> tuple[mx.array, mx.array]:
    """Accept drafted tokens as long as each is the target's argmax.

    logits [B, k + 1, V]: the target's, after the last token and after each drafted one
    drafted [B, k]; lengths [B]: how many of a row's drafted tokens are meant, the first ones
    Returns n [B], the number accepted, and the target's own next token [B] after them.
    """
    k = drafted.shape[1]
    best = mx.argmax(logits, axis=-1)  # [B, k + 1]
    right = (best[:, :k] == drafted) & (mx.arange(k) < lengths[:, None])
    n = mx.cumprod(right.astype(mx.int32), axis=1).sum(axis=1)
    following = mx.take_along_axis(best, n[:, None], axis=1)[:, 0]
    return n, following
