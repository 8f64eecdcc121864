"""BART's family in MLX: BART, mBART and mBART-50, M2M-100 and NLLB-200, Marian (OPUS-MT), Pegasus.

One architecture (Lewis et al. 2019, arXiv 1910.13461); config.json says where norms are, what positions are, what is scaled.
Shapes: B rows, S source tokens, T new tokens, V vocabulary.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from speculative.checkpoints.config import BaseConfig, is_tied, token_id, token_ids
from speculative.checkpoints.names import Names
from speculative.checkpoints.tensors import Tensor
from speculative.models import encoder_decoder
from speculative.models.bart_tokenizer import write_tokenizer
from speculative.models.encoder_decoder import Attention, EncoderDecoder, Sublayer, activation
from speculative.models.family import Family
from speculative.step.cache import CrossCache, padding_mask

FIRST = 2  # a learned table's row for position 0


@dataclass(frozen=True)
class Kind:
    """The settings of a model_type, and transformers' defaults for keys that old files lack."""

    norm_first: bool  # before each sub-layer and after the stack, not after each residual sum
    positions: str  # "learned", normed; "sinusoidal"; "counted": fairseq's, padding skipped
    pad: int
    bos: int | None
    eos: int
    start: int | None  # None: bos
    activation: str = "gelu"
    scale_embedding: bool = False


KINDS = {
    "bart": Kind(False, "learned", 1, 0, 2, 2),
    "mbart": Kind(True, "learned", 1, 0, 2, None),
    "m2m_100": Kind(True, "counted", 1, 0, 2, 2, "relu", True),
    "marian": Kind(False, "sinusoidal", 58100, None, 0, 58100),
    "pegasus": Kind(True, "sinusoidal", 0, None, 1, 0),
}


@dataclass(frozen=True)
class Config(BaseConfig):
    """The settings, under Hugging Face's names where they exist. vocab_size is the decoder's."""

    source_vocab_size: int
    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_layers: int
    decoder_attention_heads: int
    decoder_ffn_dim: int
    max_positions: int | None  # in a source, and in a row of the decoder
    positions: str
    norm_first: bool
    scale_embedding: bool
    activation: str
    shared_embedding: bool  # by encoder and decoder
    tied_head: bool  # the output projection is the decoder's embedding
    logits_bias: bool
    bans_padding: bool  # Marian's decoder starts with it and never writes it
    decoder_start_token_id: int
    forced_bos_token_id: int | None  # the first token of every text

    @property
    def max_prompt_tokens(self) -> int | None:  # type: ignore[override]
        return self.max_positions

    @classmethod
    def from_hub(cls, raw: Mapping, weights: Collection[str] | None) -> "Config":
        kind = KINDS[raw["model_type"]]
        shared = raw.get("share_encoder_decoder_embeddings") is not False
        bias = kind.positions != "counted"
        limit = raw.get("max_position_embeddings", 1024) if bias else None
        if weights is not None:
            shared = "source_embedding.weight" not in weights
            bias = "logits_bias" in weights
        vocab_size = raw.get("vocab_size")
        bos = token_id(raw, "bos_token_id", kind.bos)
        # A start token that is null is bos; a missing one is the kind's.
        start = bos if "decoder_start_token_id" in raw or kind.start is None else kind.start
        forced = bos if raw.get("force_bos_token_to_be_generated") else None  # its name in 2020
        return cls.read(
            {"scale_embedding": kind.scale_embedding, **raw},
            "BART",
            vocab_size=vocab_size if shared else raw.get("decoder_vocab_size") or vocab_size,
            pad_token_id=token_id(raw, "pad_token_id", kind.pad),
            eos_token_ids=token_ids(raw.get("eos_token_id"), kind.eos),
            source_vocab_size=vocab_size,
            max_positions=limit,
            positions=kind.positions,
            norm_first=kind.norm_first,
            activation=raw.get("activation_function", kind.activation),
            shared_embedding=shared,
            tied_head=is_tied(raw, weights),
            logits_bias=bias,
            bans_padding=raw["model_type"] == "marian",
            decoder_start_token_id=token_id(raw, "decoder_start_token_id", start),
            forced_bos_token_id=token_id(raw, "forced_bos_token_id", forced),
        )


_LAYER = r"(encoder|decoder)\.layers\.(\d+)\."
NAMES = Names(
    family="BART",
    rules=[
        (r"shared\.weight", "embedding.weight"),
        (r"encoder\.embed_tokens\.weight", "source_embedding.weight"),
        (r"lm_head\.weight", "head.weight"),
        (r"final_logits_bias", "logits_bias"),
        (r"(encoder|decoder)\.embed_positions\.weight", "{}.positions.weight"),
        (r"(encoder|decoder)\.layernorm_embedding\.(.+)", "{}.embedding_norm.{}"),
        (r"(encoder|decoder)\.layer_norm\.(.+)", "{}.norm.{}"),
        (_LAYER + r"(self_attn|encoder_attn)\.(q|k|v|out)_proj\.(.+)", "{}.layers.{}.{}.{}.{}"),
        (_LAYER + r"(fc[12])\.(.+)", "{}.layers.{}.{}.{}"),
        (_LAYER + r"(self_attn|encoder_attn|final)_layer_norm\.(.+)", "{}.layers.{}.{}_norm.{}"),
        # Fairseq's markers, and sinusoids, which we compute.
        (r"(encoder|decoder)\.version", None),
        (r"(encoder|decoder)\.embed_positions\.(weights|_float_tensor)", None),
    ],
    words={"self_attn": "attention", "encoder_attn": "cross_attention", "final": "feed_forward"}
    | {"q": "query", "k": "key", "v": "value", "fc1": "up", "fc2": "down"},
    embedding="shared.weight decoder.embed_tokens.weight encoder.embed_tokens.weight lm_head.weight".split(),
    prefix="model.",
)


def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    single = NAMES.one_embedding(NAMES.bare(tensors))
    if not any(".layernorm_embedding." in name for name in single):  # its positions are sinusoids
        single = {n: t for n, t in single.items() if not n.endswith("embed_positions.weight")}
    ours = NAMES.renamed(single)
    bias = ours.get("logits_bias")  # [1, V] in the file
    if bias:
        ours["logits_bias"] = replace(bias, shape=bias.shape[-1:], strides=bias.strides[-1:])
    return ours


@functools.cache
def _sinusoids(count: int, dims: int, first: int | None) -> mx.array:
    """Vaswani et al. 2017 (arXiv 1706.03762) for positions below `count`, [count, dims]: sines, then cosines. first: the row of
    position 0 in fairseq's table, whose rates differ; None: it is not fairseq's."""
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


class Layer(encoder_decoder.Layer):
    """c: d_model, norm_first and activation. bias: of linear layers; affine: norms have weights and biases."""

    def __init__(
        self, c: Any, num_heads: int, ffn_dim: int, *attentions: str, bias=True, affine=True
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


class Stack(encoder_decoder.Stack):
    def __init__(self, c: Config, layers: list[Layer]):
        super().__init__()
        self._config = c
        if c.positions == "learned":
            assert c.max_positions is not None
            self.positions = nn.Embedding(c.max_positions + FIRST, c.d_model)
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
            added = self.positions(mx.array(positions + FIRST))
        else:  # fairseq counts from the row after padding's
            first = c.pad_token_id + 1 if c.positions == "counted" else None
            count = 512 * (int(positions.max()) // 512 + 1)
            added = _sinusoids(count, c.d_model, first)[mx.array(positions)]
        if c.positions == "counted":
            added = mx.where((tokens == c.pad_token_id)[..., None], 0, added)
        x = x + added.astype(x.dtype)
        return self.embedding_norm(x) if c.positions == "learned" else x


class Bart(EncoderDecoder):
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
        self.forced_bos_token_id = c.forced_bos_token_id
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

    def prefix(self, prompt: Sequence[int]) -> list[int]:
        forced = self.forced_bos_token_id
        return super().prefix(prompt) + ([] if forced is None else [forced])

    def states(self, tokens: mx.array, positions: np.ndarray, cache: CrossCache) -> mx.array:
        known = self.known_positions(positions)
        cache.reserve(positions)
        x = self.decoder.begin(self.embedding, tokens, known)
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

    def narrowed(self, ids: mx.array) -> "Bart":
        narrow = super().narrowed(ids)
        narrow._ids = ids
        if self.config.logits_bias:
            narrow.logits_bias = self.logits_bias[ids]
            mx.eval(narrow.logits_bias)
        return narrow


FAMILY = Family(Config, Bart, rename, write_tokenizer, dtype="float16")
PEGASUS = replace(FAMILY, dtype="bfloat16")  # trained in it, unlike its kin
