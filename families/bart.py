"""BART's family in MLX: BART, mBART and mBART-50, M2M-100 and NLLB-200, Marian (OPUS-MT), Pegasus.

One architecture (Lewis et al. 2019, arXiv 1910.13461) with switches, which config.json decides: where
the norms are, what the positions are, what is scaled. Positions enter beside the words and nowhere
else, so keys carry them. Shapes: B rows, S source tokens, T new tokens, N cache slots, H heads, D head
width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from distributed.ranks import ALONE
from errors import InputError
from families import Family
from families.bart_checkpoints import Config, rename
from families.bart_tokenizers import write_tokenizer
from model import Attention, activation, source_mask
from speculative.cache import MASKED, CrossCache

# ---------------------------------------------------------------------------------------------
# Positions


class LearnedPositions(nn.Module):
    """A table whose first two rows are no positions."""

    OFFSET = 2

    def __init__(self, num_positions: int, dims: int):
        super().__init__()
        self.weight = mx.zeros((num_positions + self.OFFSET, dims))

    def __call__(self, positions: np.ndarray) -> mx.array:
        return self.weight[mx.array(positions + self.OFFSET)]


class Sinusoids:
    """Vaswani et al. 2017 (arXiv 1706.03762) with the sines first and then the cosines, in a table that
    grows. `make(positions [n]) -> [n, dims]`."""

    def __init__(self, make: Callable[[np.ndarray], np.ndarray]):
        self._make, self._table = make, mx.array(make(np.arange(512)))

    def __call__(self, positions: np.ndarray) -> mx.array:
        if (needed := int(positions.max()) + 1) > len(self._table):
            self._table = mx.array(self._make(np.arange(2 * needed)))
        return self._table[mx.array(positions)]


def _sinusoids(positions: np.ndarray, dims: int) -> np.ndarray:
    angles = positions[:, None] * 10000.0 ** (-2 * (np.arange(dims) // 2) / dims)  # [n, dims]
    waves = [np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])]
    return np.concatenate(waves, axis=1).astype(np.float32)


def _fairseq_sinusoids(rows: np.ndarray, dims: int) -> np.ndarray:
    """float32 in this order of operations, as the reference: an angle's last bits are far."""
    half = dims // 2
    step = np.float32(-np.log(10000.0) / max(half - 1, 1))
    rates = np.exp(np.arange(half, dtype=np.float32) * step)
    angles = rows[:, None].astype(np.float32) * rates
    waves = [np.sin(angles), np.cos(angles), np.zeros((len(rows), dims % 2), np.float32)]
    return np.concatenate(waves, axis=1)


# ---------------------------------------------------------------------------------------------
# Layers


def _plus(x: mx.array, y: mx.array) -> mx.array:
    """x + y, which in float16 may overflow: transformers clips there as well, in the encoder."""
    if x.dtype != mx.float16:
        return x + y
    return mx.clip(x + y.astype(x.dtype), -64504, 64504)


def _attention(config: Config, num_heads: int) -> Attention:
    width = config.d_model // num_heads
    return Attention(config.d_model, num_heads, width, scale=width**-0.5, bias=True)


class Layer(nn.Module):
    """What the layers of both stacks are made of: sub-layers, each with a residual and a norm."""

    def __init__(self, config: Config, num_heads: int, ffn_dim: int):
        super().__init__()
        self._norm_first, self._activation = config.norm_first, activation(config.activation)
        self.attention = _attention(config, num_heads)
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.up = nn.Linear(config.d_model, ffn_dim)
        self.down = nn.Linear(ffn_dim, config.d_model)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)

    def residual(
        self, x: mx.array, norm: nn.Module, sublayer: Callable[[mx.array], mx.array]
    ) -> mx.array:
        if self._norm_first:
            return _plus(x, sublayer(norm(x)))
        return norm(_plus(x, sublayer(x)))

    def feed_forward(self, x: mx.array) -> mx.array:
        return self.down(self._activation(self.up(x)))


class EncoderLayer(Layer):
    def __call__(self, x: mx.array, mask: mx.array | None) -> mx.array:
        def attend(y: mx.array) -> mx.array:
            return self.attention(y, *self.attention.project(y), mask)

        x = self.residual(x, self.attention_norm, attend)
        return self.residual(x, self.feed_forward_norm, self.feed_forward)


class DecoderLayer(Layer):
    def __init__(self, config: Config, num_heads: int, ffn_dim: int):
        super().__init__(config, num_heads, ffn_dim)
        self.cross_attention = _attention(config, num_heads)
        self.cross_attention_norm = nn.LayerNorm(config.d_model)

    def __call__(self, x: mx.array, mask: mx.array, cache: CrossCache, index: int) -> mx.array:
        def attend(y: mx.array) -> mx.array:
            keys, values = cache.append(index, *self.attention.project(y))
            return self.attention(y, keys, values, mask)

        def attend_across(y: mx.array) -> mx.array:
            keys, values = cache.cross[index]
            return self.cross_attention(y, keys, values, cache.cross_mask)

        x = self.residual(x, self.attention_norm, attend)
        x = self.residual(x, self.cross_attention_norm, attend_across)
        return self.residual(x, self.feed_forward_norm, self.feed_forward)


class Stack(nn.Module):
    """The encoder or the decoder: what it adds to the words, its layers, its last norm."""

    def __init__(self, config: Config, layer: type[Layer], num_layers: int, *sizes: int):
        super().__init__()
        c = self._config = config
        if c.positions == "learned":
            assert c.max_positions is not None
            self.positions: Any = LearnedPositions(c.max_positions, c.d_model)
        elif c.positions == "sinusoidal":
            self.positions = Sinusoids(lambda positions: _sinusoids(positions, c.d_model))
        else:  # the first position is the row behind padding's
            first = c.pad_token_id + 1
            self.positions = Sinusoids(lambda n: _fairseq_sinusoids(n + first, c.d_model))
        if c.norm_embedding:
            self.embedding_norm = nn.LayerNorm(c.d_model)
        self.layers = [layer(c, *sizes) for _ in range(num_layers)]
        if c.norm_first:
            self.norm = nn.LayerNorm(c.d_model)

    def begin(self, embedding: nn.Embedding, tokens: mx.array, positions: np.ndarray) -> mx.array:
        """What goes into the first layer, for tokens [B, T] at positions [B, T] or [T]."""
        c, x = self._config, embedding(tokens)
        if c.scale_embedding:
            x = x * c.d_model**0.5
        beside = self.positions(positions).astype(x.dtype)
        if c.positions == "counted":
            beside = mx.where((tokens == c.pad_token_id)[..., None], 0, beside)
        x = x + beside
        return self.embedding_norm(x) if c.norm_embedding else x

    def end(self, x: mx.array) -> mx.array:
        return self.norm(x) if self._config.norm_first else x


# ---------------------------------------------------------------------------------------------
# The model


class Model(nn.Module):
    ranks = ALONE  # the processes that share the model's layers

    def __init__(self, config: Config):
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(
            c.vocab_size, c.d_model
        )  # the decoder's; mostly the encoder's
        if not c.shared_embedding:
            self.source_embedding = nn.Embedding(c.source_vocab_size, c.d_model)
        self.encoder = Stack(
            c, EncoderLayer, c.encoder_layers, c.encoder_attention_heads, c.encoder_ffn_dim
        )
        self.decoder = Stack(
            c, DecoderLayer, c.decoder_layers, c.decoder_attention_heads, c.decoder_ffn_dim
        )
        if not c.tied_head:
            self.head = nn.Linear(c.d_model, c.vocab_size, bias=False)
        if c.logits_bias:
            self.logits_bias = mx.zeros((c.vocab_size,))

    def encode(self, tokens: mx.array, mask: np.ndarray) -> mx.array:
        """The encoder's output for tokens [B, S] with mask [B, S], true on tokens: [B, S, d_model].

        The output on padding is meaningless, and finite.
        """
        c = self.config
        positions = np.arange(tokens.shape[1])
        if c.positions == "counted":  # from the ids, as the reference: a padding id is no token
            counted = np.cumsum(np.array(tokens) != c.pad_token_id, axis=1)
            positions = np.maximum(counted - 1, 0)  # [B, S]
        visible = None if mask.all() else mx.array(mask[:, None, None, :])
        embedding = self.embedding if c.shared_embedding else self.source_embedding
        x = self.encoder.begin(embedding, tokens, positions)
        for layer in self.encoder.layers:
            x = layer(x, visible)
        return self.encoder.end(x)

    def prefix(self, prompt: Sequence[int]) -> list[int]:
        """What the tokens of a row begin with."""
        c = self.config
        forced = [] if c.forced_bos_token_id is None else [c.forced_bos_token_id]
        return [c.decoder_start_token_id, *forced]

    def start(self, tokens: mx.array, mask: np.ndarray | None = None) -> CrossCache:
        """Encode the sources, tokens [B, S] with mask [B, S] (true on tokens; None: no padding),
        and project their keys and values for every decoder layer.

        InputError for a source without a token, or longer than the model's positions.
        """
        mask = source_mask(tokens, mask, self.config.max_positions)
        memory = self.encode(tokens, mask)
        layers = self.decoder.layers
        return CrossCache([layer.cross_attention.project(memory) for layer in layers], mask)

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: CrossCache) -> mx.array:
        """Append tokens [B, T] at positions [B, T] to the cache; their logits [B, T, V].

        A token at position MASKED is a filler: its logits mean nothing and no other token sees it.
        InputError for a position that the model does not know.
        """
        known = np.where(positions == MASKED, 0, positions)
        if (most := self.config.max_positions) and known.max() >= most:
            raise InputError(f"the text is longer than the {most} positions that the model knows")
        slots = cache.reserve(positions)
        visible = mx.array(slots[:, None, None, :] <= positions[:, None, :, None])  # [B, 1, T, N]
        x = self.decoder.begin(self.embedding, tokens, known)
        for i, layer in enumerate(self.decoder.layers):
            x = layer(x, visible, cache, i)
        return self._logits(self.decoder.end(x))

    def _logits(self, x: mx.array) -> mx.array:
        c = self.config
        logits = self.embedding.as_linear(x) if c.tied_head else self.head(x)
        if c.logits_bias:
            logits = logits + self.logits_bias
        if c.bans_padding:
            banned = mx.arange(c.vocab_size) == c.pad_token_id
            logits = mx.where(banned, mx.array(-mx.inf, logits.dtype), logits)
        return logits


FAMILY = Family("BART", Config, Model, rename, write_tokenizer)
