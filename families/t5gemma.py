"""T5Gemma in MLX: two stacks of Gemma 2's blocks, of one size or of two.

The architecture is Zhang et al. 2025 (arXiv 2504.06225) on Gemma 2 (arXiv 2408.00118): rotary
positions, grouped queries, soft caps on scores and logits, sliding windows in every other layer, norms
before and after each sub-layer. Shapes: B rows, S source tokens, T new tokens, N cache slots, H heads
of queries and H_kv of keys and values, D head width, V the decoder's vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np

import model
from families import Family
from families.t5gemma_checkpoint import NAMES, Config, StackConfig
from model import Mask
from speculative.cache import CrossCache, known_positions, padding_mask


@partial(mx.compile, shapeless=True)
def _soft_cap(x: mx.array, cap: mx.array) -> mx.array:
    return mx.tanh(x / cap) * cap


class Norm(model.Norm):
    """With the factor 1 + weight."""

    def __call__(self, x: mx.array) -> mx.array:
        factor = 1 + self.weight.astype(mx.float32)  # in bfloat16 small weights would be lost
        return mx.fast.rms_norm(x, factor, self._eps).astype(self.weight.dtype)


class Attention(model.Attention):
    """Grouped-query attention. Keys and values are made from vectors of `source_dims`, those of the
    encoder's output in cross-attention; positions, where given, turn queries and keys."""

    def __init__(self, config: StackConfig, source_dims: int):
        c = self._config = config
        super().__init__(
            c.hidden_size,
            c.num_attention_heads,
            c.head_dim,
            scale=c.query_pre_attn_scalar**-0.5,
            bias=c.attention_bias,
            key_heads=c.num_key_value_heads,
            source_dims=source_dims,
        )
        if c.head_norms:
            self.query_norm = Norm(c.head_dim, c.rms_norm_eps)
            self.key_norm = Norm(c.head_dim, c.rms_norm_eps)

    def _turned(self, x: mx.array, norm: Norm | None, *positions: mx.array) -> mx.array:
        """x [B, T, H * D] as heads [B, H, T, D], normed and turned by their positions [B, T]."""
        (B, T, _), c = x.shape, self._config
        x = x.reshape(B * T, -1, 1, c.head_dim)
        if norm:
            x = norm(x)
        for at in positions:
            # The kernel knows one offset per row, so each token is a row of its own.
            x = mx.fast.rope(
                x,
                c.head_dim,
                traditional=False,
                base=c.rope_theta,
                scale=c.rope_scale,
                offset=at.reshape(-1),
            )
        return self._split(x.reshape(B, T, -1))

    def queries(self, x: mx.array, *positions: mx.array) -> mx.array:
        return self._turned(self.query(x), self.get("query_norm"), *positions)

    def project(self, x: mx.array, *positions: mx.array) -> tuple[mx.array, mx.array]:
        keys = self._turned(self.key(x), self.get("key_norm"), *positions)
        return keys, self._split(self.value(x))

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array, mask: Mask) -> mx.array:
        cap = self._config.attn_logit_softcapping
        if cap is None:
            return super().attend(queries, keys, values, mask)
        (B, H, T, D), (_, H_kv, N, _) = queries.shape, keys.shape
        # The queries that share keys go side by side: [B, H_kv, H / H_kv * T, D]
        scores = (queries * self._scale).reshape(B, H_kv, -1, D) @ keys.swapaxes(2, 3)
        scores = _soft_cap(scores.astype(mx.float32), mx.array(cap))
        if mask is not None:  # after the cap, which would let masked keys in again
            scores = mx.where(mask, scores.reshape(B, H, T, N), -mx.inf).reshape(scores.shape)
        weights = mx.softmax(scores, axis=-1).astype(values.dtype)
        return (weights @ values).reshape(B, H, T, D)


class FeedForward(model.FeedForward):
    def __call__(self, x: mx.array) -> mx.array:
        gate, up = self.gate(x), self.up(x)
        if x.dtype == mx.float16:  # their product outgrows it; conversion keeps `down` in float32
            gate, up = gate.astype(mx.float32), up.astype(mx.float32)
        return self.down(self._activation(gate) * up)


class Layer(model.Layer):
    """Norms are before and after each sub-layer. source_dims: of the encoder's output, where there is
    cross-attention to it."""

    def __init__(self, config: StackConfig, source_dims: int | None = None):
        super().__init__()
        c = config
        self.attention = Attention(c, c.hidden_size)
        self.feed_forward = FeedForward(
            c.hidden_size, c.intermediate_size, c.hidden_activation, gated=True
        )
        sublayers = ["attention", "feed_forward"]
        if source_dims:
            self.cross_attention = Attention(c, source_dims)
            sublayers.append("cross_attention")
        for name in sublayers:
            self[f"pre_{name}_norm"] = Norm(c.hidden_size, c.rms_norm_eps)
            self[f"post_{name}_norm"] = Norm(c.hidden_size, c.rms_norm_eps)

    def residual(
        self, x: mx.array, name: str, sublayer: Callable[[mx.array], mx.array]
    ) -> mx.array:
        return x + self[f"post_{name}_norm"](sublayer(self[f"pre_{name}_norm"](x)))


class Stack(model.Stack):
    """With its embedding."""

    def __init__(self, config: StackConfig, layers: Sequence[Layer]):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = list(layers)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)


def embed(embedding: nn.Embedding, tokens: mx.array) -> mx.array:
    x = embedding(tokens)
    # Rounded to the model's type, as it was trained.
    scale = mx.array(x.shape[-1] ** 0.5, x.dtype)
    # The residual stream of a float16 model outgrows float16.
    return (x.astype(mx.float32) if x.dtype == mx.float16 else x) * scale


class T5Gemma(model.EncoderDecoder):
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
        """Of the text's tokens."""
        return self.decoder.embedding

    def encode(self, tokens: mx.array, mask: np.ndarray) -> mx.array:
        x = embed(self.encoder.embedding, tokens)
        positions = mx.broadcast_to(mx.arange(tokens.shape[1]), tokens.shape)
        return self.encoder(x, encoder_masks(mask, self.reaches()), None, positions)

    def reaches(self) -> list[tuple[int, int]]:
        """How many tokens behind and ahead each layer of the encoder sees."""
        return [(window, window) for window in self.config.encoder.windows]

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: CrossCache) -> mx.array:
        """Append tokens [B, T] at positions [B, T] to the cache; their logits [B, T, V]."""
        cache.reserve(positions)
        windows = self.config.decoder.windows
        masks = _each_once(lambda window: self.decoder_mask(cache, window), windows)
        at = mx.array(known_positions(positions))
        return self.logits(self.decoder(embed(self.embedding, tokens), masks, cache, at))

    def decoder_mask(self, cache: CrossCache, window: int) -> Mask:
        """What a layer of this window sees, for its attention to the text so far."""
        return cache.self_mask(window)

    def logits(self, x: mx.array) -> mx.array:
        logits, cap = super().logits(x), self.config.decoder.final_logit_softcapping
        return logits if cap is None else _soft_cap(logits, mx.array(cap, logits.dtype))


def encoder_masks(mask: np.ndarray, reaches: Sequence[tuple[int, int]]) -> list[Mask]:
    """Per layer what sources with the mask [B, S] see of themselves: so many tokens behind and ahead.
    Boolean, broadcast to [B, 1, S, S]; None where it is everything."""
    S = mask.shape[1]
    token = padding_mask(mask)
    index = mx.arange(S)
    distance = index[:, None] - index  # [S, S], query - key

    def within(reach: tuple[int, int]) -> Mask:
        behind, ahead = reach
        if min(reach) >= S - 1:
            return token
        near = (distance <= behind) & (distance >= -ahead)
        # Padding far from any token sees itself: what sees nothing is NaN.
        return near if token is None else (near & token) | (distance == 0)

    return _each_once(within, reaches)


def _each_once(function: Callable, arguments: Sequence) -> list:
    """The function of each argument, worked out once for those that are equal."""
    values = {argument: function(argument) for argument in set(arguments)}
    return [values[argument] for argument in arguments]


FAMILY = Family(
    name="T5Gemma",
    config=Config,
    model=T5Gemma,
    rename=NAMES.rename,
    float32=("feed_forward.down.weight",),
)
