"""T5Gemma in MLX: two stacks of Gemma 2's blocks, of one size or of two.

The architecture is Zhang et al. 2025 (arXiv 2504.06225) on Gemma 2 (arXiv 2408.00118): rotary
positions, grouped queries, soft caps on scores and logits, sliding windows in every other layer, norms
before and after each sub-layer. Shapes: B rows, S source tokens, T new tokens, N cache slots, H heads
of queries and H_kv of keys and values, D head width, V the decoder's vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from distributed.ranks import ALONE
from families import Family
from families.t5gemma_checkpoint import Config, StackConfig, rename, write_tokenizer
from model import source_mask
from speculative.cache import MASKED, CrossCache


@partial(mx.compile, shapeless=True)
def _soft_cap(x: mx.array, cap: mx.array) -> mx.array:
    return mx.tanh(x / cap) * cap


class Norm(nn.Module):
    """Root mean square norm with the factor 1 + weight, in float32; returned in the weight's type."""

    def __init__(self, dims: int, eps: float):
        super().__init__()
        self.weight = mx.zeros((dims,))
        self._eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        factor = 1 + self.weight.astype(mx.float32)  # in bfloat16 small weights would be lost
        return mx.fast.rms_norm(x, factor, self._eps).astype(self.weight.dtype)


class Attention(nn.Module):
    """Grouped-query attention. Keys and values are made from vectors of `width`, those of the
    encoder's output in cross-attention; positions, where given, turn queries and keys."""

    def __init__(self, config: StackConfig, width: int):
        super().__init__()
        c, bias = config, config.attention_bias
        self._config = config
        self.query = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias)
        self.key = nn.Linear(width, c.num_key_value_heads * c.head_dim, bias)
        self.value = nn.Linear(width, c.num_key_value_heads * c.head_dim, bias)
        self.out = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias)
        if c.head_norms:
            self.query_norm = Norm(c.head_dim, c.rms_norm_eps)
            self.key_norm = Norm(c.head_dim, c.rms_norm_eps)

    def _split(
        self, x: mx.array, positions: mx.array | None = None, norm: nn.Module | None = None
    ) -> mx.array:
        B, T, _ = x.shape
        D, c = self._config.head_dim, self._config
        x = x.reshape(B * T, -1, 1, D)
        if norm:
            x = norm(x)
        if positions is not None:
            # The kernel knows one offset per row, so each token is a row of its own.
            offset = positions.reshape(-1)
            x = mx.fast.rope(
                x, D, traditional=False, base=c.rope_theta, scale=c.rope_scale, offset=offset
            )
        return x.reshape(B, T, -1, D).transpose(0, 2, 1, 3)  # [B, H, T, D]

    def project(self, x: mx.array, positions: mx.array | None = None) -> tuple[mx.array, mx.array]:
        """Keys and values of x [B, T, width], at positions [B, T]: [B, H_kv, T, D] each."""
        keys = self._split(self.key(x), positions, self.get("key_norm"))
        return keys, self._split(self.value(x))

    def __call__(
        self,
        x: mx.array,
        keys: mx.array,
        values: mx.array,
        mask: mx.array | None,
        positions: mx.array | None = None,
    ) -> mx.array:
        """mask: boolean, broadcast to [B, 1, T, N]."""
        B, T, _ = x.shape
        queries = self._split(self.query(x), positions, self.get("query_norm"))
        heads = self._attend(queries, keys, values, mask)
        out = self.out(heads.transpose(0, 2, 1, 3).reshape(B, T, -1))
        if out.dtype == mx.float16:  # the norm that follows would make NaN of an infinity
            out = mx.clip(out, -65504, 65504)
        return out

    def _attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None
    ) -> mx.array:
        """Queries [B, H, T, D] over keys and values [B, H_kv, N, D]: [B, H, T, D]."""
        scale, cap = self._config.query_pre_attn_scalar**-0.5, self._config.attn_logit_softcapping
        if cap is None:
            return mx.fast.scaled_dot_product_attention(
                queries, keys, values, scale=scale, mask=mask
            )
        (B, H, T, D), (_, H_kv, N, _) = queries.shape, keys.shape
        # The queries that share keys go side by side: [B, H_kv, H / H_kv * T, D]
        scores = (queries * scale).reshape(B, H_kv, -1, D) @ keys.swapaxes(2, 3)
        scores = _soft_cap(scores.astype(mx.float32), mx.array(cap))
        if mask is not None:  # after the cap, which would let masked keys in again
            scores = mx.where(mask, scores.reshape(B, H, T, N), -mx.inf).reshape(scores.shape)
        weights = mx.softmax(scores, axis=-1).astype(values.dtype)
        return (weights @ values).reshape(B, H, T, D)


class FeedForward(nn.Module):
    def __init__(self, config: StackConfig):
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = self.gate(x), self.up(x)
        if x.dtype == mx.float16:  # their product outgrows it; conversion keeps `down` in float32
            gate, up = gate.astype(mx.float32), up.astype(mx.float32)
        return self.down(nn.gelu_approx(gate) * up)


class EncoderLayer(nn.Module):
    def __init__(self, config: StackConfig):
        super().__init__()
        self.attention = Attention(config, config.hidden_size)
        self.feed_forward = FeedForward(config)
        self._add_norms("attention", config)
        self._add_norms("feed_forward", config)

    def _add_norms(self, sublayer: str, config: StackConfig) -> None:
        for side in ("pre", "post"):
            self[f"{side}_{sublayer}_norm"] = Norm(config.hidden_size, config.rms_norm_eps)

    def _fed_forward(self, x: mx.array) -> mx.array:
        y = self.feed_forward(self.pre_feed_forward_norm(x))
        return x + self.post_feed_forward_norm(y)

    def __call__(self, x: mx.array, positions: mx.array, mask: mx.array | None) -> mx.array:
        y = self.pre_attention_norm(x)
        keys, values = self.attention.project(y, positions)
        y = self.attention(y, keys, values, mask, positions)
        return self._fed_forward(x + self.post_attention_norm(y))


class DecoderLayer(EncoderLayer):
    def __init__(self, config: StackConfig, source_width: int):
        super().__init__(config)
        self.cross_attention = Attention(config, source_width)
        self._add_norms("cross_attention", config)

    def __call__(  # type: ignore[override]
        self,
        x: mx.array,
        positions: mx.array,
        mask: mx.array | None,
        cache: CrossCache,
        index: int,
    ) -> mx.array:
        y = self.pre_attention_norm(x)
        keys, values = cache.append(index, *self.attention.project(y, positions))
        y = self.attention(y, keys, values, mask, positions)
        x = x + self.post_attention_norm(y)
        y = self.pre_cross_attention_norm(x)
        keys, values = cache.cross[index]
        y = self.cross_attention(y, keys, values, cache.cross_mask)
        return self._fed_forward(x + self.post_cross_attention_norm(y))


class Stack(nn.Module):
    """The encoder or the decoder: its embedding, layers and last norm."""

    def __init__(self, config: StackConfig, layers: list[Any]):
        super().__init__()
        self._width = config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = layers
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)

    def embed(self, tokens: mx.array) -> mx.array:
        x = self.embedding(tokens)
        # Rounded to the model's type, as it was trained.
        scale = mx.array(self._width**0.5, x.dtype)
        # The residual stream of a float16 model outgrows float16.
        return (x.astype(mx.float32) if x.dtype == mx.float16 else x) * scale


class T5Gemma(nn.Module):
    ranks = ALONE  # the processes that share the model's layers

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        e, d = config.encoder, config.decoder
        self.encoder = Stack(e, [EncoderLayer(e) for _ in e.windows])
        self.decoder = Stack(d, [DecoderLayer(d, e.hidden_size) for _ in d.windows])
        if not config.tied_head:
            self.head = nn.Linear(d.hidden_size, d.vocab_size, bias=False)

    def encode(self, tokens: mx.array, mask: np.ndarray) -> mx.array:
        """The encoder's output for tokens [B, S] with mask [B, S], true on tokens: [B, S, hidden_size].

        The output on padding is meaningless, and finite.
        """
        B, S = tokens.shape
        masks = encoder_masks(mask, self.reaches())
        positions = mx.broadcast_to(mx.arange(S), (B, S))
        x = self.encoder.embed(tokens)
        for layer, layer_mask in zip(self.encoder.layers, masks, strict=True):
            x = layer(x, positions, layer_mask)
        return self.encoder.norm(x)

    def reaches(self) -> list[tuple[int, int]]:
        """How many tokens behind and ahead each layer of the encoder sees."""
        return [(window, window) for window in self.config.encoder.windows]

    def prefix(self, prompt: Sequence[int]) -> list[int]:
        """What the tokens of a row begin with."""
        return [self.config.decoder_start_token_id]

    def start(self, tokens: mx.array, mask: np.ndarray | None = None) -> CrossCache:
        """Encode the sources, tokens [B, S] with mask [B, S] (true on tokens; None: no padding),
        and project their keys and values for every decoder layer.

        Raises InputError for a source without a token, or with more than the encoder knows."""
        mask = source_mask(tokens, mask, self.config.max_prompt_tokens)
        memory = self.encode(tokens, mask)
        cross = [layer.cross_attention.project(memory) for layer in self.decoder.layers]
        return CrossCache(cross, mask)

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: CrossCache) -> mx.array:
        """Append tokens [B, T] at positions [B, T] to the cache; their logits [B, T, V].

        A token at position MASKED is a filler: its logits mean nothing and no other token sees it.
        """
        masks = decoder_masks(positions, cache.reserve(positions), self.config.decoder.windows)
        at = mx.array(np.where(positions == MASKED, 0, positions))
        x = self.decoder.embed(tokens)
        for i, (layer, mask) in enumerate(zip(self.decoder.layers, masks, strict=True)):
            x = layer(x, at, mask, cache, i)
        x = self.decoder.norm(x)
        return self.capped(
            self.decoder.embedding.as_linear(x) if self.config.tied_head else self.head(x)
        )

    def capped(self, logits: mx.array) -> mx.array:
        cap = self.config.decoder.final_logit_softcapping
        return logits if cap is None else _soft_cap(logits, mx.array(cap, logits.dtype))


def encoder_masks(mask: np.ndarray, reaches: Sequence[tuple[int, int]]) -> list[mx.array | None]:
    """Per layer what sources with the mask [B, S] see of themselves: so many tokens behind and ahead.
    Boolean, broadcast to [B, 1, S, S]; None where it is everything."""
    S = mask.shape[1]
    token = None if mask.all() else mx.array(mask[:, None, None, :])
    index = mx.arange(S)
    distance = index[:, None] - index  # [S, S], query - key

    def within(reach: tuple[int, int]) -> mx.array | None:
        behind, ahead = reach
        if min(reach) >= S - 1:
            return token
        near = (distance <= behind) & (distance >= -ahead)
        # Padding far from any token sees itself: what sees nothing is NaN.
        return near if token is None else (near & token) | (distance == 0)

    return _each_once(within, reaches)


def decoder_masks(
    positions: np.ndarray, slots: np.ndarray, windows: Sequence[int]
) -> list[mx.array | None]:
    """Per layer which slots, at positions `slots` [B, N], tokens at `positions` [B, T] see: themselves
    and the `window - 1` before. Boolean [B, 1, T, N], None where it is everything."""
    distance = positions[:, :, None] - slots[:, None, :]  # [B, T, N]
    longest = slots[slots != MASKED].max(initial=0)

    def within(window: int) -> mx.array | None:
        seen = (distance >= 0) & (distance < window)
        return None if seen.all() else mx.array(seen[:, None])

    return _each_once(within, [min(window, longest + 1) for window in windows])


def _each_once(function: Callable, arguments: Sequence) -> list:
    """The function of each argument, worked out once for those that are equal."""
    values = {argument: function(argument) for argument in set(arguments)}
    return [values[argument] for argument in arguments]


FAMILY = Family(
    name="T5Gemma",
    config=Config,
    model=T5Gemma,
    rename=rename,
    write_tokenizer=write_tokenizer,
    float32=("feed_forward.down.weight",),
)
