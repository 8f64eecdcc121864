"""T5 in MLX (Raffel et al. 2020, arXiv 1910.10683), with its later variants.

Gated feed-forward layers, an untied head (T5 v1.1, FLAN, mT5, UL2, MADLAD-400, byT5), a bias in every layer (umT5).
Shapes: B rows, S source tokens, T new tokens, N cache slots, H heads, D head width, V vocabulary.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from speculative.checkpoints.config import BaseConfig
from speculative.models.encoder_decoder import (
    Attention,
    EncoderDecoder,
    FeedForward,
    Layer,
    Stack,
    wide,
)
from speculative.step.cache import CrossCache, padding_mask


@dataclass(frozen=True)
class Config(BaseConfig):
    """T5's settings, under Hugging Face's names where they exist."""

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
    shared_embedding: bool = True  # by encoder and decoder

    max_positions: ClassVar[int | None] = None  # positions are relative


@functools.cache
def _buckets(num_buckets: int, max_distance: int) -> np.ndarray:
    """The bucket of each distance, the last for all beyond: exact up to half the buckets, then logarithmic."""
    # In float32 and in the reference's order: the last bit decides at the borders of buckets.
    exact = num_buckets // 2
    ratio = np.arange(exact, max_distance).astype(np.float32) / np.float32(exact)
    log_ratio = np.log(ratio) / np.float32(math.log(max_distance / exact))
    large = exact + (log_ratio * np.float32(num_buckets - exact)).astype(np.int32)
    last = num_buckets - 1
    return np.concatenate([np.arange(exact), np.minimum(large, last), [last]])


class Norm(nn.Module):
    """Root mean square norm, computed in float32, returned in the weight's type."""

    def __init__(self, dims: int, eps: float):
        super().__init__()
        self.weight = mx.ones((dims,))
        self._eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self.weight, self._eps).astype(self.weight.dtype)


class T5Layer(Layer):
    def __init__(self, c: Config, *sublayers: str):
        super().__init__()
        for name in sublayers:
            self[f"{name}_norm"] = Norm(c.d_model, c.layer_norm_epsilon)
            if name == "feed_forward":
                self[name] = FeedForward(c.d_model, c.d_ff, c.activation, c.gated)
            else:
                self[name] = Attention(c.d_model, c.num_heads, c.d_kv)


class T5Stack(Stack):
    """A stack with relative position biases: one for all layers, or (umT5) one for each."""

    def __init__(self, c: Config, num_layers: int, *sublayers: str):
        super().__init__()
        biases = num_layers if c.bias_per_layer else 1
        sizes = c.relative_attention_num_buckets, c.num_heads
        self.relative_bias = [nn.Embedding(*sizes) for _ in range(biases)]
        self.layers = [T5Layer(c, *sublayers) for _ in range(num_layers)]
        self.norm = Norm(c.d_model, c.layer_norm_epsilon)

    def only(self, indices: Sequence[int]) -> Self:
        part = super().only(indices)
        if len(self.relative_bias) > 1:
            part.relative_bias = [self.relative_bias[i] for i in indices]
        return part

    def biases(self, bucket: np.ndarray, seen: mx.array | None) -> list[mx.array]:
        """Per layer [B, H, T, N]: the bias of each distance's bucket [B, T, N], and -inf, which Metal's kernel skips,
        where `seen` [B, 1, T, N] is false. Every query sees a key: a source has a token, a filler itself."""
        at, biases = mx.array(bucket), []
        for embedding in self.relative_bias:
            bias = mx.take(embedding.weight.T, at, axis=1).transpose(1, 0, 2, 3)
            if seen is not None:
                bias = mx.where(seen, bias, mx.array(-mx.inf, bias.dtype))
            biases.append(bias)
        return biases if len(biases) == len(self.layers) else biases * len(self.layers)


class T5(EncoderDecoder):
    def __init__(self, config: Config):
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocab_size, c.d_model)
        if not c.shared_embedding:
            self.source_embedding = nn.Embedding(c.vocab_size, c.d_model)
        self.encoder = T5Stack(c, c.num_layers, "attention", "feed_forward")
        sublayers = "attention", "cross_attention", "feed_forward"
        self.decoder = T5Stack(c, c.num_decoder_layers, *sublayers)
        if not c.tied_head:
            self.head = nn.Linear(c.d_model, c.vocab_size, bias=False)

    def _bucket(self, distance: np.ndarray, num_buckets: int) -> np.ndarray:
        buckets = _buckets(num_buckets, self.config.relative_attention_max_distance)
        return buckets[np.clip(distance, 0, len(buckets) - 1)]

    def encode(self, tokens: mx.array, mask: np.ndarray) -> mx.array:
        # Half the buckets for keys before the query, half for keys behind it.
        index, half = np.arange(tokens.shape[1]), self.config.relative_attention_num_buckets // 2
        distance = (index[None, :] - index[:, None])[None]  # [1, S, S], key - query
        bucket = self._bucket(np.abs(distance), half) + half * (distance > 0)
        embedding = self.get("source_embedding", self.embedding)
        biases = self.encoder.biases(bucket, padding_mask(mask))
        return self.encoder(wide(embedding(tokens)), biases)

    def states(self, tokens: mx.array, positions: np.ndarray, cache: CrossCache) -> mx.array:
        cache.reserve(positions)
        bucket = self._bucket(cache.distance, self.config.relative_attention_num_buckets)
        biases = self.decoder.biases(bucket, cache.self_mask())
        return self.decoder(wide(self.embedding(tokens)), biases, cache)

    def logits(self, states: mx.array) -> mx.array:
        c = self.config
        return super().logits(states * c.d_model**-0.5 if c.scale_decoder_outputs else states)
