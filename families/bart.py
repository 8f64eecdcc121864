"""BART's family in MLX: BART, mBART and mBART-50, M2M-100 and NLLB-200, Marian (OPUS-MT), Pegasus.

One architecture (Lewis et al. 2019, arXiv 1910.13461); config.json says where the norms are, what the
positions are and what is scaled. Positions are added to the words' embeddings only, so keys carry them.
Shapes: B rows, S source tokens, T new tokens, V vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

import transformer
from common.errors import InputError
from families import Family
from families.bart_checkpoint import Config, rename
from families.bart_tokenizer import write_tokenizer
from speculative.cache import CrossCache, padding_mask, table_positions
from transformer import Attention, EncoderDecoder, Sublayer, activation

_FIRST = 2  # a learned table's row for position 0


@functools.cache
def _sinusoids(count: int, dims: int, first: int | None) -> mx.array:
    """Vaswani et al. 2017 (arXiv 1706.03762) for positions below `count`, [count, dims]: sines, then cosines.

    first: the row of position 0 in fairseq's table, whose rates differ; None: it is not fairseq's.
    """
    rows = np.arange(count)[:, None]
    if first is None:
        angles = rows * 10000.0 ** (-2 * (np.arange(dims) // 2) / dims)
        waves = [np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])]
    else:  # float32 in the reference's order of operations: errors grow with the angle
        half = dims // 2
        step = np.float32(-np.log(10000.0) / max(half - 1, 1))
        rates = np.exp(np.arange(half, dtype=np.float32) * step)
        angles = (rows + first).astype(np.float32) * rates
        waves = [np.sin(angles), np.cos(angles), np.zeros((count, dims % 2), np.float32)]
    return mx.array(np.concatenate(waves, axis=1).astype(np.float32))


def _plus(x: mx.array, y: mx.array) -> mx.array:
    """x + y; in float16 clipped, as transformers does in the encoder, because it may overflow."""
    if x.dtype != mx.float16:
        return x + y
    return mx.clip(x + y.astype(x.dtype), -64504, 64504)


class Layer(transformer.Layer):
    """c: d_model, norm_first and activation. bias: of linear layers; affine: norms have weights and biases."""

    def __init__(
        self,
        c: Any,
        num_heads: int,
        ffn_dim: int,
        *attentions: str,
        bias: bool = True,
        affine: bool = True,
    ):
        super().__init__()
        width = c.d_model // num_heads
        self._norm_first = c.norm_first
        self._activation = activation(c.activation)
        for name in attentions:
            self[name] = Attention(c.d_model, num_heads, width, scale=width**-0.5, bias=bias)
            self[f"{name}_norm"] = nn.LayerNorm(c.d_model, affine=affine)
        self.up = nn.Linear(c.d_model, ffn_dim, bias)
        self.down = nn.Linear(ffn_dim, c.d_model, bias)
        self.feed_forward_norm = nn.LayerNorm(c.d_model, affine=affine)

    def residual(self, x: mx.array, name: str, sublayer: Sublayer) -> mx.array:
        norm = self[f"{name}_norm"]
        return _plus(x, sublayer(norm(x))) if self._norm_first else norm(_plus(x, sublayer(x)))

    def feed_forward(self, x: mx.array) -> mx.array:
        return self.down(self._activation(self.up(x)))


class Stack(transformer.Stack):
    def __init__(self, c: Config, layers: list[Layer]):
        super().__init__()
        self._config = c
        if c.positions == "learned":
            assert c.max_positions is not None
            self.positions = nn.Embedding(c.max_positions + _FIRST, c.d_model)
        if c.norm_embedding:
            self.embedding_norm = nn.LayerNorm(c.d_model)
        self.layers = layers
        if c.norm_first:
            self.norm = nn.LayerNorm(c.d_model)

    def begin(self, embedding: nn.Embedding, tokens: mx.array, positions: np.ndarray) -> mx.array:
        """The first layer's input for tokens [B, T] at positions [B, T] or [T]."""
        c = self._config
        x = embedding(tokens)
        if c.scale_embedding:
            x = x * c.d_model**0.5
        if c.positions == "learned":
            added = self.positions(mx.array(positions + _FIRST))
        else:  # fairseq counts from the row after padding's
            first = c.pad_token_id + 1 if c.positions == "counted" else None
            count = 512 * (int(positions.max()) // 512 + 1)
            added = _sinusoids(count, c.d_model, first)[mx.array(positions)]
        if c.positions == "counted":
            added = mx.where((tokens == c.pad_token_id)[..., None], 0, added)
        x = x + added.astype(x.dtype)
        return self.embedding_norm(x) if c.norm_embedding else x


class Model(EncoderDecoder):
    def __init__(self, config: Config):
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocab_size, c.d_model)
        if not c.shared_embedding:
            self.source_embedding = nn.Embedding(c.source_vocab_size, c.d_model)
        e = c.encoder_attention_heads, c.encoder_ffn_dim, "attention"
        self.encoder = Stack(c, [Layer(c, *e) for _ in range(c.encoder_layers)])
        d = c.decoder_attention_heads, c.decoder_ffn_dim, "attention", "cross_attention"
        self.decoder = Stack(c, [Layer(c, *d) for _ in range(c.decoder_layers)])
        if not c.tied_head:
            self.head = nn.Linear(c.d_model, c.vocab_size, bias=False)
        if c.logits_bias:
            self.logits_bias = mx.zeros((c.vocab_size,))
        self._ids = mx.array(np.arange(c.vocab_size))  # of the logits; mx.arange would be lazy

    def encode(self, tokens: mx.array, mask: np.ndarray) -> mx.array:
        c = self.config
        positions = np.arange(tokens.shape[1])
        if c.positions == "counted":  # by ids, as the reference does: a padding id is no token
            counted = np.cumsum(np.array(tokens) != c.pad_token_id, axis=1)
            positions = np.maximum(counted - 1, 0)  # [B, S]
        embedding = self.embedding if c.shared_embedding else self.source_embedding
        x = self.encoder.begin(embedding, tokens, positions)
        return self.encoder(x, [padding_mask(mask)] * c.encoder_layers)

    @property
    def source_vocab_size(self) -> int:
        return self.config.source_vocab_size

    @property
    def forced_bos_token_id(self) -> int | None:  # type: ignore[override]
        return self.config.forced_bos_token_id

    def prefix(self, prompt: Sequence[int]) -> list[int]:
        forced = self.forced_bos_token_id
        return super().prefix(prompt) + ([] if forced is None else [forced])

    def states(self, tokens: mx.array, positions: np.ndarray, cache: CrossCache) -> mx.array:
        """As the contract says. Raises InputError for a position beyond the model's last."""
        places = table_positions(positions)
        most = self.config.max_positions
        if most and places.max() >= most:
            raise InputError(f"the text is longer than the {most} positions that the model knows")
        cache.reserve(positions)
        x = self.decoder.begin(self.embedding, tokens, places)
        return self.decoder(x, [cache.self_mask()] * len(self.decoder.layers), cache)

    def logits(self, states: mx.array) -> mx.array:
        c = self.config
        logits = super().logits(states)
        if c.logits_bias:
            logits = logits + self.logits_bias
        if c.bans_padding:
            banned = self._ids == c.pad_token_id
            logits = mx.where(banned, mx.array(-mx.inf, logits.dtype), logits)
        return logits

    def narrowed(self, ids: mx.array) -> "Model":
        narrow = super().narrowed(ids)
        narrow._ids = ids
        if self.config.logits_bias:
            narrow.logits_bias = self.logits_bias[ids]
            mx.eval(narrow.logits_bias)
        return narrow


FAMILY = Family(Config, Model, rename, write_tokenizer, dtype="float16")
