"""T5 in MLX: encoder and decoder; and before it what all encoder-decoder models here are made of.

The architecture is Raffel et al. 2020 (arXiv 1910.10683) with its later variants: gated feed-forward
layers and an untied head (T5 v1.1, FLAN, mT5, UL2, MADLAD-400, byT5), a relative bias in every layer
(umT5). Shapes: B rows, S source tokens, T new tokens, N cache slots, H heads, D head width, V
vocabulary.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from checkpoints.config import BaseConfig
from errors import InputError
from speculative.cache import CrossCache

Mask = mx.array | None
"""What a layer's queries see: boolean, or added to the scores in their type; broadcast to [B, H, T, N];
None: everything."""

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


# ---------------------------------------------------------------------------------------------
# What encoder-decoder models are made of


class Attention(nn.Module):
    """Multi-head attention; T5's is without scaling and without biases.

    key_heads: where fewer than query heads, which then share them; source_dims: of what keys and values
    are made from, where it is not as wide as queries.
    """

    def __init__(
        self,
        dims: int,
        num_heads: int,
        head_width: int,
        scale: float = 1.0,
        bias: bool = False,
        key_heads: int | None = None,
        source_dims: int | None = None,
    ):
        super().__init__()
        self._head_width, self._scale = head_width, scale
        inner, inner_keys = num_heads * head_width, (key_heads or num_heads) * head_width
        self.query = nn.Linear(dims, inner, bias)
        self.key = nn.Linear(source_dims or dims, inner_keys, bias)
        self.value = nn.Linear(source_dims or dims, inner_keys, bias)
        self.out = nn.Linear(inner, dims, bias)

    def _split(self, x: mx.array) -> mx.array:
        B, T, _ = x.shape
        return x.reshape(B, T, -1, self._head_width).transpose(0, 2, 1, 3)  # [B, H, T, D]

    def queries(self, x: mx.array, *positions: mx.array) -> mx.array:
        """Queries of x [B, T, d_model]: [B, H, T, D]. positions [B, T]: given where they turn queries
        and keys."""
        return self._split(self.query(x))

    def project(self, x: mx.array, *positions: mx.array) -> tuple[mx.array, mx.array]:
        """Keys and values of x [B, T, d_model]: [B, H, T, D] each."""
        return self._split(self.key(x)), self._split(self.value(x))

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array, mask: Mask) -> mx.array:
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self._scale, mask=mask
        )

    def __call__(
        self, x: mx.array, keys: mx.array, values: mx.array, mask: Mask, *positions: mx.array
    ) -> mx.array:
        B, T, _ = x.shape
        heads = self.attend(self.queries(x, *positions), keys, values, mask)
        out = self.out(heads.transpose(0, 2, 1, 3).reshape(B, T, -1))
        if out.dtype == mx.float16:  # some weights overflow here; transformers clamps T5's as well
            out = mx.clip(out, -65504, 65504)
        return out


class FeedForward(nn.Module):
    def __init__(self, dims: int, inner: int, activation_name: str, gated: bool):
        super().__init__()
        self._activation = activation(activation_name)
        if gated:
            self.gate = nn.Linear(dims, inner, bias=False)
        self.up = nn.Linear(dims, inner, bias=False)
        self.down = nn.Linear(inner, dims, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        if "gate" in self:
            x = self._activation(self.gate(x)) * self.up(x)
        else:
            x = self._activation(self.up(x))
        return self.down(x)  # in float32 where the rest is float16: conversion keeps its weights so


class Layer(nn.Module):
    """A layer of the encoder or the decoder: `attention`, in the decoder `cross_attention`, and
    `feed_forward`, each added to the residual stream with its norm."""

    def residual(
        self, x: mx.array, name: str, sublayer: Callable[[mx.array], mx.array]
    ) -> mx.array:
        """x with what the sub-layer `name` adds."""
        return x + sublayer(self[f"{name}_norm"](x))

    @property
    def source_attention(self) -> Attention:
        """What makes keys and values of the encoder's output."""
        return self.cross_attention

    def attend(
        self, x: mx.array, mask: Mask, cache: CrossCache | None, index: int, *positions: mx.array
    ) -> mx.array:
        keys, values = self.attention.project(x, *positions)
        if cache is not None:
            keys, values = cache.append(index, keys, values)
        return self.attention(x, keys, values, mask, *positions)

    def __call__(
        self, x: mx.array, mask: Mask, cache: CrossCache | None, index: int, *positions: mx.array
    ) -> mx.array:
        """cache: of a decoder, whose layer `index` this is."""
        x = self.residual(x, "attention", lambda y: self.attend(y, mask, cache, index, *positions))
        if cache is not None and "cross_attention" in self:
            cross, cross_mask = cache.cross[index], cache.cross_mask
            x = self.residual(
                x, "cross_attention", lambda y: self.cross_attention(y, *cross, cross_mask)
            )
        return self.residual(x, "feed_forward", self.feed_forward)


class Stack(nn.Module):
    """The encoder or the decoder: `layers` and, where it has one, a last `norm`."""

    def __call__(
        self,
        x: mx.array,
        masks: Sequence[Mask],
        cache: CrossCache | None = None,
        *positions: mx.array,
    ) -> mx.array:
        """masks: one a layer. cache: of the decoder."""
        for i, (layer, mask) in enumerate(zip(self.layers, masks, strict=True)):
            x = layer(x, mask, cache, i, *positions)
        return self.norm(x) if "norm" in self else x


class EncoderDecoder(nn.Module):
    """The part of the contract (families/__init__.py) that such models share; a family adds `encode` and
    `decode`, and has `encoder`, `decoder`, `embedding` and, unless it is the embedding, `head`."""

    config: Any

    def encode(self, tokens: mx.array, mask: np.ndarray) -> mx.array:
        """The encoder's output for tokens [B, S] with mask [B, S], true on tokens: [B, S, d_model].

        The output on padding is meaningless, and finite.
        """
        raise NotImplementedError

    def prefix(self, prompt: Sequence[int]) -> list[int]:
        """What the tokens of a row begin with."""
        return [self.config.decoder_start_token_id]

    def read(
        self, tokens: mx.array, mask: np.ndarray | None
    ) -> tuple[list[tuple[mx.array, mx.array]], np.ndarray]:
        """Sources as every decoder layer reads them, keys and values; and the mask, made where None.

        InputError for a source without a token, or with more than the model reads.
        """
        S, most = tokens.shape[1], self.config.max_prompt_tokens
        if most is not None and most < S:
            raise InputError(f"a source of {S} tokens; the model reads {most} at most")
        mask = np.ones(tokens.shape, bool) if mask is None else np.asarray(mask, bool)
        if not mask.any(axis=1).all():
            raise InputError("a source without a token cannot be encoded")
        memory = self.encode(tokens, mask)
        return [layer.source_attention.project(memory) for layer in self.decoder.layers], mask

    def start(self, tokens: mx.array, mask: np.ndarray | None = None) -> CrossCache:
        """Encode the sources, tokens [B, S] with mask [B, S] (true on tokens; None: no padding),
        and project their keys and values for every decoder layer. Errors: as `read`."""
        return CrossCache(*self.read(tokens, mask))

    def logits(self, x: mx.array) -> mx.array:
        """Of the decoder's output [B, T, d_model]: [B, T, V]."""
        return self.head(x) if "head" in self else self.embedding.as_linear(x)


# ---------------------------------------------------------------------------------------------
# T5


@dataclass(frozen=True)
class Config(BaseConfig):
    """T5's, under the names of Hugging Face's config.json where it has one."""

    d_model: int
    d_kv: int
    d_ff: int
    num_heads: int
    num_layers: int
    num_decoder_layers: int
    activation: str
    gated: bool
    tied_head: bool  # the output projection is the embedding
    bias_per_layer: bool  # umT5
    scale_decoder_outputs: bool
    decoder_start_token_id: int
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6

    max_positions: ClassVar[int | None] = None  # positions are relative


@functools.cache
def _buckets(num_buckets: int, max_distance: int) -> np.ndarray:
    """The bucket of each distance from 0 to `max_distance`: exact up to half the buckets, then logarithmic.

    float32 in this order of operations, as the reference: bucket borders hang on the last bit.
    """
    distance, exact = np.arange(max_distance + 1), num_buckets // 2
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


class T5Layer(Layer):
    def __init__(self, config: Config, *sublayers: str):
        super().__init__()
        c = config
        for name in sublayers:
            self[f"{name}_norm"] = Norm(c.d_model, c.layer_norm_epsilon)
            self[name] = (
                FeedForward(c.d_model, c.d_ff, c.activation, c.gated)
                if name == "feed_forward"
                else Attention(c.d_model, c.num_heads, c.d_kv)
            )


class T5Stack(Stack):
    """With the bias by relative position: one for all layers, or (umT5) one each."""

    def __init__(self, config: Config, num_layers: int, *sublayers: str):
        super().__init__()
        c = config
        self.relative_bias = [
            nn.Embedding(c.relative_attention_num_buckets, c.num_heads)
            for _ in range(num_layers if c.bias_per_layer else 1)
        ]
        self.layers = [T5Layer(c, *sublayers) for _ in range(num_layers)]
        self.norm = Norm(c.d_model, c.layer_norm_epsilon)

    def bias_tables(self) -> list[mx.array]:
        """Per bias: its value by bucket, and in one more column what hides a key: [H, buckets + 1]."""
        tables = []
        for bias in self.relative_bias:
            table = bias.weight.T
            hidden = mx.full((table.shape[0], 1), mx.finfo(table.dtype).min, table.dtype)
            tables.append(mx.concatenate([table, hidden], axis=1))
        return tables

    def biases(self, tables: list[mx.array], bucket: np.ndarray) -> list[mx.array]:
        """Per layer the bias [B, H, T, N] by the bucket [B, T, N] of each distance."""
        at = mx.array(bucket)
        biases = [mx.take(table, at, axis=1).transpose(1, 0, 2, 3) for table in tables]
        return biases if len(biases) > 1 else biases * len(self.layers)


class T5Cache(CrossCache):
    """With the decoder's tables of bias, made once."""

    def __init__(self, cross, mask: np.ndarray, bias_tables: list[mx.array]):
        super().__init__(cross, mask)
        self.bias_tables = bias_tables


class T5(EncoderDecoder):
    def __init__(self, config: Config):
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocab_size, c.d_model)
        self.encoder = T5Stack(c, c.num_layers, "attention", "feed_forward")
        self.decoder = T5Stack(
            c, c.num_decoder_layers, "attention", "cross_attention", "feed_forward"
        )
        if not c.tied_head:
            self.head = nn.Linear(c.d_model, c.vocab_size, bias=False)

    def _embed(self, tokens: mx.array) -> mx.array:
        x = self.embedding(tokens)
        # The residual stream of a float16 model outgrows float16.
        return x.astype(mx.float32) if x.dtype == mx.float16 else x

    def _bucket(self, distance: np.ndarray, num_buckets: int) -> np.ndarray:
        """The bucket of each distance; those beyond the largest are in the last."""
        limit = self.config.relative_attention_max_distance
        return _buckets(num_buckets, limit)[np.clip(distance, 0, limit)]

    def encode(self, tokens: mx.array, mask: np.ndarray) -> mx.array:
        S, num_buckets = tokens.shape[1], self.config.relative_attention_num_buckets
        # Half the buckets for keys before the query, half for keys behind it.
        distance = (np.arange(S)[None, :] - np.arange(S)[:, None])[None]  # [1, S, S], key - query
        half = num_buckets // 2
        bucket = self._bucket(np.abs(distance), half) + half * (distance > 0)
        if not mask.all():
            bucket = np.where(mask[:, None, :], bucket, num_buckets)  # [B, S, S]
        biases = self.encoder.biases(self.encoder.bias_tables(), bucket)
        return self.encoder(self._embed(tokens), biases)

    def start(self, tokens: mx.array, mask: np.ndarray | None = None) -> T5Cache:
        return T5Cache(*self.read(tokens, mask), self.decoder.bias_tables())

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: T5Cache) -> mx.array:
        """Append tokens [B, T] at positions [B, T] to the cache; their logits [B, T, V]."""
        cache.reserve(positions)
        num_buckets, distance = self.config.relative_attention_num_buckets, cache.distance
        bucket = np.where(distance < 0, num_buckets, self._bucket(distance, num_buckets))
        biases = self.decoder.biases(cache.bias_tables, bucket)
        x = self.decoder(self._embed(tokens), biases, cache)
        return self.logits(
            x * self.config.d_model**-0.5 if self.config.scale_decoder_outputs else x
        )
