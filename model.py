"""T5 in MLX: encoder and decoder.

The architecture is Raffel et al. 2020 (arXiv 1910.10683) with its later variants: gated feed-forward
layers and an untied head (T5 v1.1, FLAN, mT5, UL2, MADLAD-400, byT5), a relative bias in every layer
(umT5). Shapes: B rows, S source tokens, T new tokens, N cache slots, H heads, D head width, V
vocabulary.
"""

import math
from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from checkpoints.config import Config
from distributed.ranks import ALONE
from errors import InputError
from speculative.cache import CrossCache

_ACTIVATIONS = {
    "relu": nn.relu,
    "gelu": nn.gelu,  # by the error function, here and in transformers
    "gelu_new": nn.gelu_approx,  # the tanh form; nn.gelu_fast_approx is another function
    "gelu_pytorch_tanh": nn.gelu_approx,
    "silu": nn.silu,
    "swish": nn.silu,
}


def activation(name: str) -> Callable[[mx.array], mx.array]:
    """The function that config.json calls `name`."""
    if name not in _ACTIVATIONS:
        raise InputError(f"config.json: unknown activation {name!r}")
    return _ACTIVATIONS[name]


def source_mask(tokens: mx.array, mask: np.ndarray | None, most: int | None = None) -> np.ndarray:
    """The mask [B, S] of sources, true on tokens; None: no padding.

    InputError for a source without a token, or with more than `most`.
    """
    S = tokens.shape[1]
    if most is not None and most < S:
        raise InputError(f"a source of {S} tokens; the model reads {most} at most")
    mask = np.ones(tokens.shape, bool) if mask is None else np.asarray(mask, bool)
    if not mask.any(axis=1).all():
        raise InputError("a source without a token cannot be encoded")
    return mask


def _buckets(distance: np.ndarray, num_buckets: int, max_distance: int) -> np.ndarray:
    """The bucket of each distance >= 0: exact up to half the buckets, then logarithmic.

    float32 in this order of operations, as the reference: bucket borders hang on the last bit.
    """
    exact = num_buckets // 2
    ratio = np.maximum(distance, 1).astype(np.float32) / np.float32(exact)
    log_ratio = np.log(ratio) / np.float32(math.log(max_distance / exact))
    large = exact + (log_ratio * np.float32(num_buckets - exact)).astype(np.int32)
    return np.where(distance < exact, distance, np.minimum(large, num_buckets - 1))


class Norm(nn.Module):
    """Root mean square norm, computed in float32, returned in the weight's type."""

    def __init__(self, dims: int, eps: float):
        super().__init__()
        self.weight = mx.ones((dims,))
        self._eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self.weight, self._eps).astype(self.weight.dtype)


class Attention(nn.Module):
    """Multi-head attention; T5's is without scaling and without biases."""

    def __init__(
        self, dims: int, num_heads: int, head_width: int, scale: float = 1.0, bias: bool = False
    ):
        super().__init__()
        inner = num_heads * head_width
        self._head_width, self._scale = head_width, scale
        self.query = nn.Linear(dims, inner, bias)
        self.key = nn.Linear(dims, inner, bias)
        self.value = nn.Linear(dims, inner, bias)
        self.out = nn.Linear(inner, dims, bias)

    def _split(self, x: mx.array) -> mx.array:
        B, T, _ = x.shape
        return x.reshape(B, T, -1, self._head_width).transpose(0, 2, 1, 3)  # [B, H, T, D]

    def project(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Keys and values of x [B, T, d_model]: [B, H, T, D] each."""
        return self._split(self.key(x)), self._split(self.value(x))

    def __call__(
        self, x: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None
    ) -> mx.array:
        """mask: boolean, or added to the scores in x's type; broadcast to [B, H, T, N]."""
        B, T, _ = x.shape
        heads = mx.fast.scaled_dot_product_attention(
            self._split(self.query(x)), keys, values, scale=self._scale, mask=mask
        )
        out = self.out(heads.transpose(0, 2, 1, 3).reshape(B, T, -1))
        if out.dtype == mx.float16:  # some T5 weights overflow here; transformers clamps as well
            out = mx.clip(out, -65504, 65504)
        return out


class FeedForward(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self._activation = activation(config.activation)
        if config.gated:
            self.gate = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.up = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        if "gate" in self:
            x = self._activation(self.gate(x)) * self.up(x)
        else:
            x = self._activation(self.up(x))
        return self.down(x)  # in float32 where the rest is float16: conversion keeps its weights so


class EncoderLayer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.attention_norm = Norm(config.d_model, config.layer_norm_epsilon)
        self.attention = Attention(config.d_model, config.num_heads, config.d_kv)
        self.feed_forward_norm = Norm(config.d_model, config.layer_norm_epsilon)
        self.feed_forward = FeedForward(config)

    def __call__(self, x: mx.array, bias: mx.array) -> mx.array:
        y = self.attention_norm(x)
        x = x + self.attention(y, *self.attention.project(y), bias)
        return x + self.feed_forward(self.feed_forward_norm(x))


class DecoderLayer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.attention_norm = Norm(config.d_model, config.layer_norm_epsilon)
        self.attention = Attention(config.d_model, config.num_heads, config.d_kv)
        self.cross_attention_norm = Norm(config.d_model, config.layer_norm_epsilon)
        self.cross_attention = Attention(config.d_model, config.num_heads, config.d_kv)
        self.feed_forward_norm = Norm(config.d_model, config.layer_norm_epsilon)
        self.feed_forward = FeedForward(config)

    def __call__(self, x: mx.array, bias: mx.array, cache: CrossCache, index: int) -> mx.array:
        y = self.attention_norm(x)
        keys, values = cache.append(index, *self.attention.project(y))
        x = x + self.attention(y, keys, values, bias)
        y = self.cross_attention_norm(x)
        keys, values = cache.cross[index]
        x = x + self.cross_attention(y, keys, values, cache.cross_mask)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Stack(nn.Module):
    """The encoder or the decoder: layers, a last norm, and the bias by relative position."""

    def __init__(self, config: Config, layer: type, num_layers: int):
        super().__init__()
        self._config = config
        self.relative_bias = [
            nn.Embedding(config.relative_attention_num_buckets, config.num_heads)
            for _ in range(num_layers if config.bias_per_layer else 1)
        ]
        self.layers = [layer(config) for _ in range(num_layers)]
        self.norm = Norm(config.d_model, config.layer_norm_epsilon)

    def bias_tables(self, bucket: np.ndarray) -> list[mx.array]:
        """Per bias: its value by index of `bucket` and then one more column, which hides: [H, n]."""
        tables = []
        for bias in self.relative_bias:
            table = bias.weight[mx.array(bucket)].T
            hidden = mx.full((table.shape[0], 1), mx.finfo(table.dtype).min, table.dtype)
            tables.append(mx.concatenate([table, hidden], axis=1))
        return tables

    def biases(self, tables: list[mx.array], index: np.ndarray) -> list[mx.array]:
        """Per layer the bias [B, H, T, N] that `index` [B, T, N] picks from the tables."""
        at = mx.array(index)
        biases = [mx.take(table, at, axis=1).transpose(1, 0, 2, 3) for table in tables]
        return biases if len(biases) > 1 else biases * len(self.layers)


class T5Cache(CrossCache):
    """With the decoder's bias by distance, made once: one table for all layers, or (umT5) one each."""

    def __init__(self, cross, mask: np.ndarray, bias_tables: list[mx.array]):
        super().__init__(cross, mask)
        self.bias_tables = bias_tables


class T5(nn.Module):
    ranks = ALONE  # the processes that share the model's layers

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = Stack(config, EncoderLayer, config.num_layers)
        self.decoder = Stack(config, DecoderLayer, config.num_decoder_layers)
        if not config.tied_head:
            self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)

    def _embed(self, tokens: mx.array) -> mx.array:
        x = self.embedding(tokens)
        # The residual stream of a float16 model outgrows float16.
        return x.astype(mx.float32) if x.dtype == mx.float16 else x

    def encode(self, tokens: mx.array, mask: np.ndarray) -> mx.array:
        """The encoder's output for tokens [B, S] with mask [B, S], true on tokens: [B, S, d_model].

        The output on padding is meaningless, and finite.
        """
        c = self.config
        S, limit = tokens.shape[1], c.relative_attention_max_distance
        # Half the buckets for keys before the query, half for keys behind it.
        half = c.relative_attention_num_buckets // 2
        distance = np.arange(-limit, limit + 1)  # key - query
        bucket = _buckets(np.abs(distance), half, limit) + half * (distance > 0)
        index = np.arange(S)[None, :] - np.arange(S)[:, None]  # [S, S], key - query
        index = (np.clip(index, -limit, limit) + limit)[None]
        if not mask.all():
            index = np.where(mask[:, None, :], index, len(distance))  # [B, S, S]
        x = self._embed(tokens)
        biases = self.encoder.biases(self.encoder.bias_tables(bucket), index)
        for layer, bias in zip(self.encoder.layers, biases, strict=True):
            x = layer(x, bias)
        return self.encoder.norm(x)

    def prefix(self, prompt: Sequence[int]) -> list[int]:
        """What the tokens of a row begin with."""
        return [self.config.decoder_start_token_id]

    def start(self, tokens: mx.array, mask: np.ndarray | None = None) -> T5Cache:
        """Encode the sources, tokens [B, S] with mask [B, S] (true on tokens; None: no padding),
        and project their keys and values for every decoder layer."""
        mask, c = source_mask(tokens, mask), self.config
        memory = self.encode(tokens, mask)
        distance = np.arange(c.relative_attention_max_distance + 1)  # query - key
        bucket = _buckets(distance, c.relative_attention_num_buckets, len(distance) - 1)
        return T5Cache(
            [layer.cross_attention.project(memory) for layer in self.decoder.layers],
            mask,
            self.decoder.bias_tables(bucket),
        )

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: T5Cache) -> mx.array:
        """Append tokens [B, T] at positions [B, T] to the cache; their logits [B, T, V].

        A token at position MASKED is a filler: its logits mean nothing and no other token sees it.
        """
        slots = cache.reserve(positions)
        limit = self.config.relative_attention_max_distance
        distance = positions[:, :, None] - slots[:, None, :]  # [B, T, N]
        index = np.where(distance < 0, limit + 1, np.minimum(distance, limit))
        x = self._embed(tokens)
        biases = self.decoder.biases(cache.bias_tables, index)
        for i, (layer, bias) in enumerate(zip(self.decoder.layers, biases, strict=True)):
            x = layer(x, bias, cache, i)
        x = self.decoder.norm(x)
        if self.config.scale_decoder_outputs:
            x = x * self.config.d_model**-0.5
        return self.embedding.as_linear(x) if self.config.tied_head else self.head(x)
