"""T5Gemma in MLX: two stacks of Gemma 2's blocks, of one size or of two.

The architecture is Zhang et al. 2025 (arXiv 2504.06225) on Gemma 2 (arXiv 2408.00118): rotary
positions, grouped queries, soft caps on scores and logits, sliding windows in every other layer, norms
before and after each sub-layer. Shapes: B rows, S source tokens, T new tokens, N cache slots, H heads
of queries and H_kv of keys and values, D head width, V the decoder's vocabulary.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Self

import mlx.core as mx
import mlx.nn as nn
import numpy as np

import model
import transformer
from families import Family
from families.t5gemma_checkpoint import NAMES, Config, StackConfig
from speculative.cache import CrossCache, padding_mask, table_positions
from transformer import EncoderDecoder, FeedForward, Mask, Sublayer


@partial(mx.compile, shapeless=True)
def _soft_cap(x: mx.array, cap: mx.array) -> mx.array:
    return mx.tanh(x / cap) * cap


class Norm(model.Norm):
    """An RMS norm that multiplies by 1 + weight."""

    def __call__(self, x: mx.array) -> mx.array:
        factor = 1 + self.weight.astype(mx.float32)  # in float32: bfloat16 would lose small weights
        return mx.fast.rms_norm(x, factor, self._eps).astype(self.weight.dtype)


class Attention(transformer.Attention):
    """Grouped-query attention with capped scores, and rotary positions if positions are given."""

    def __init__(self, config: StackConfig, source_dims: int):
        c = self._config = config
        scale = c.query_pre_attn_scalar**-0.5
        bias = c.attention_bias
        heads, key_heads = c.num_attention_heads, c.num_key_value_heads
        super().__init__(c.hidden_size, heads, c.head_dim, scale, bias, key_heads, source_dims)
        if c.head_norms:
            self.query_norm = Norm(c.head_dim, c.rms_norm_eps)
            self.key_norm = Norm(c.head_dim, c.rms_norm_eps)

    def heads(self, name: str, x: mx.array, *positions: mx.array) -> mx.array:
        """As for all families, with queries and keys normed and rotated."""
        if name == "value":
            return super().heads(name, x)
        B, T, _ = x.shape
        c = self._config
        x = self[name](x).reshape(B * T, -1, 1, c.head_dim)
        if c.head_norms:
            x = self[f"{name}_norm"](x)
        rotate = partial(mx.fast.rope, dims=c.head_dim, traditional=False, base=c.rope_theta)
        for at in positions:  # the kernel takes one offset per row, so each token is a row
            x = rotate(x, scale=c.rope_scale, offset=at.reshape(-1))
        return x.reshape(B, T, -1, c.head_dim).transpose(0, 2, 1, 3)

    def scores(self, queries: mx.array, keys: mx.array) -> mx.array:
        scores = super().scores(queries, keys)
        cap = self._config.attn_logit_softcapping
        return scores if cap is None else _soft_cap(scores.astype(mx.float32), mx.array(cap))

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array, mask: Mask) -> mx.array:
        if self._config.attn_logit_softcapping is None:
            return super().attend(queries, keys, values, mask)
        (B, H, T, D), (_, H_kv, N, _) = queries.shape, keys.shape
        # Queries that share keys stand side by side: [B, H_kv, H / H_kv * T, D]
        scores = self.scores(queries.reshape(B, H_kv, -1, D), keys)
        if mask is not None:  # after the cap, which would unmask keys
            scores = mx.where(mask, scores.reshape(B, H, T, N), -mx.inf).reshape(scores.shape)
        weights = mx.softmax(scores, axis=-1).astype(values.dtype)
        return (weights @ values).reshape(B, H, T, D)


class Layer(transformer.Layer):
    """A layer with norms before and after each sub-layer. source_dims: the encoder's width, for cross-attention."""

    def __init__(self, c: StackConfig, source_dims: int | None = None):
        super().__init__()
        self.attention = Attention(c, c.hidden_size)
        if source_dims:
            self.cross_attention = Attention(c, source_dims)
        sizes = c.hidden_size, c.intermediate_size
        self.feed_forward = FeedForward(*sizes, c.hidden_activation, gated=True)
        for name in ("attention", "cross_attention", "feed_forward"):
            if name in self:
                self[f"pre_{name}_norm"] = Norm(c.hidden_size, c.rms_norm_eps)
                self[f"post_{name}_norm"] = Norm(c.hidden_size, c.rms_norm_eps)

    def residual(self, x: mx.array, name: str, sublayer: Sublayer) -> mx.array:
        return x + self[f"post_{name}_norm"](sublayer(self[f"pre_{name}_norm"](x)))


class Stack(transformer.Stack):
    """A stack with its own embedding."""

    def __init__(self, config: StackConfig, layers: Sequence[Layer]):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = list(layers)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.windows = config.windows  # of the layers

    def only(self, indices: Sequence[int]) -> Self:
        part = super().only(indices)
        part.windows = tuple(self.windows[i] for i in indices)
        return part


def embed(embedding: nn.Embedding, tokens: mx.array) -> mx.array:
    x = embedding(tokens)
    scale = mx.array(x.shape[-1] ** 0.5, x.dtype)  # rounded to the model's type, as in training
    # A float16 model's residual stream overflows float16.
    return (x.astype(mx.float32) if x.dtype == mx.float16 else x) * scale


class T5Gemma(EncoderDecoder):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        e, d = config.encoder, config.decoder
        self.encoder = Stack(e, [Layer(e.of_layer(i)) for i in range(len(e.windows))])
        self.decoder = Stack(d, [self.decoder_layer(i) for i in range(len(d.windows))])
        if not config.tied_head:
            self.head = nn.Linear(d.hidden_size, d.vocab_size, bias=False)

    def decoder_layer(self, index: int) -> Layer:
        return Layer(self.config.decoder.of_layer(index), self.config.encoder.hidden_size)

    @property
    def embedding(self) -> nn.Embedding:
        return self.decoder.embedding

    def reach(self, window: int) -> tuple[int, int]:
        """How many tokens back and ahead an encoder layer with this window sees."""
        return window, window

    def decoder_mask(self, slots: CrossCache, window: int) -> Mask:
        """The self-attention mask of a decoder layer with this window."""
        return slots.self_mask(window)

    def encode(self, tokens: mx.array, mask: np.ndarray) -> mx.array:
        S = tokens.shape[1]
        token = padding_mask(mask)
        index = mx.arange(S)
        distance = index[:, None] - index  # [S, S], query - key

        @cache
        def seen(window: int) -> Mask:
            behind, ahead = self.reach(window)
            if min(behind, ahead) >= S - 1:
                return token
            near = (distance <= behind) & (distance >= -ahead)
            # A filler with no token in its window sees itself, because the softmax over nothing is NaN.
            return near if token is None else (near & token) | (distance == 0)

        masks = [seen(window) for window in self.encoder.windows]
        x = embed(self.encoder.embedding, tokens)
        return self.encoder(x, masks, None, mx.broadcast_to(index, tokens.shape))

    def states(self, tokens: mx.array, positions: np.ndarray, slots: CrossCache) -> mx.array:
        slots.reserve(positions)
        seen = cache(lambda window: self.decoder_mask(slots, window))
        masks = [seen(window) for window in self.decoder.windows]
        at = mx.array(table_positions(positions))
        return self.decoder(embed(self.embedding, tokens), masks, slots, at)

    def logits(self, states: mx.array) -> mx.array:
        logits = super().logits(states)
        cap = self.config.decoder.final_logit_softcapping
        return logits if cap is None else _soft_cap(logits, mx.array(cap, logits.dtype))


FAMILY = Family(Config, T5Gemma, NAMES.rename)
