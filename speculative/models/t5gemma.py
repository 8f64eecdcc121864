"""T5Gemma in MLX (Zhang et al. 2025, arXiv 2504.06225): two stacks of Gemma 2's blocks (arXiv 2408.00118).

Rotary positions, grouped queries, soft caps on scores and logits, sliding windows in every other layer, norms on both sides
of each sub-layer. Shapes: B rows, S source tokens, T new tokens, N cache slots, H heads of queries and H_kv of keys and
values, D head width, V the decoder's vocabulary.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np

import model
from speculative.checkpoints.config import BaseConfig, checked, is_tied, token_id, token_ids
from speculative.checkpoints.names import Names
from speculative.common.errors import InputError
from speculative.models import encoder_decoder
from speculative.models.encoder_decoder import EncoderDecoder, FeedForward, Mask, Sublayer, wide
from speculative.models.family import Family
from speculative.step.cache import CrossCache, padding_mask

SLIDING, FULL = ("sliding_attention", "full_attention")


@dataclass(frozen=True)
class StackConfig(BaseConfig):
    """The encoder's or decoder's settings, under Hugging Face's names where they exist, with transformers' defaults."""

    windows: tuple[int, ...]  # how far each layer sees; max_position_embeddings: everything
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    hidden_activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scale: float = 1.0  # of positions
    head_norms: bool = False  # of queries and keys
    query_pre_attn_scalar: float = 256
    attn_logit_softcapping: float | None = 50.0
    final_logit_softcapping: float | None = 30.0

    family: ClassVar[str] = "T5Gemma"
    pieces: ClassVar[int] = 256000
    # One layer in this many sees everything, if the file does not say.
    full_every: ClassVar[int] = 2

    def of_layer(self, index: int) -> "StackConfig":
        return self

    @classmethod
    def from_raw(cls, raw: object) -> "StackConfig":
        if not isinstance(raw, Mapping):
            raise InputError(f"config.json has no encoder and decoder: not a {cls.family} model")
        count = checked(raw, "num_hidden_layers", 26)
        window = checked(raw, "sliding_window", 4096)
        everything = checked(raw, "max_position_embeddings", cls.max_position_embeddings)
        every = raw.get("sliding_window_pattern") or cls.full_every
        pattern = [FULL if i % every == 0 else SLIDING for i in range(1, count + 1)]
        types = raw.get("layer_types") or pattern
        return cls.read(
            {"vocab_size": cls.pieces, **raw},
            cls.family,
            pad_token_id=token_id(raw, "pad_token_id", 0),
            eos_token_ids=token_ids(raw.get("eos_token_id"), 1),
            windows=tuple(window if kind == SLIDING else everything for kind in types),
            **cls.from_layers(raw, types),
        )

    @classmethod
    def from_layers(cls, raw: Mapping, types: list[str]) -> dict[str, Any]:
        values = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        theta, scale = rope(values, raw.get("rope_theta", cls.rope_theta))
        return {"rope_theta": theta, "rope_scale": scale}


def rope(values: Mapping, theta: float) -> tuple[float, float]:
    """The base of rotary positions, by default `theta`, and their scale, of a config.json's values for them."""
    kind = values.get("rope_type", "default")
    if kind not in ("default", "linear"):
        raise InputError(f"config.json: rotary positions of type {kind!r}, not default or linear")
    factor = checked(values, "factor", None, float) if kind == "linear" else 1
    return values.get("rope_theta") or theta, 1 / factor


@dataclass(frozen=True)
class Config(BaseConfig):
    """vocab_size is the decoder's."""

    encoder: StackConfig
    decoder: StackConfig
    tied_head: bool  # the output projection is the decoder's embedding
    max_positions: int
    decoder_start_token_id: int

    stack: ClassVar[type[StackConfig]] = StackConfig

    @property
    def max_prompt_tokens(self) -> int:  # type: ignore[override]
        return self.encoder.max_position_embeddings

    @classmethod
    def from_hub(cls, raw: Mapping, weights: Collection[str] | None) -> "Config":
        """Token ids default to the decoder's, as in transformers' generate, and its start to `bos`."""
        encoder = cls.stack.from_raw(raw.get("encoder"))
        decoder = cls.stack.from_raw(raw.get("decoder"))
        bos = token_id(raw, "bos_token_id", raw["decoder"].get("bos_token_id", 2))
        return cls(
            vocab_size=decoder.vocab_size,
            pad_token_id=token_id(raw, "pad_token_id", decoder.pad_token_id),
            eos_token_ids=token_ids(raw.get("eos_token_id") or [*decoder.eos_token_ids], 1),
            encoder=encoder,
            decoder=decoder,
            tied_head=is_tied(raw, weights),
            max_positions=decoder.max_position_embeddings,
            decoder_start_token_id=token_id(raw, "decoder_start_token_id", bos),
        )

    @classmethod
    def from_dict(cls, values: Mapping) -> "Config":
        stacks = ("encoder", "decoder")
        read = {name: cls.stack.from_dict(values[name]) for name in stacks if name in values}
        return super().from_dict({**values, **read})


_STACK = r"(encoder|decoder)\.(?:text_model\.)?"
_LAYER = _STACK + r"layers\.(\d+)\."
NAMES = Names(
    family="T5Gemma",
    rules=[
        (r"lm_head\.out_proj\.weight", "head.weight"),
        (_STACK + r"embed_tokens\.weight", "{}.embedding.weight"),
        (_STACK + r"norm\.weight", "{}.norm.weight"),
        (_LAYER + r"(self_attn|cross_attn)\.([qkvo])_proj\.(weight|bias)", "{}.layers.{}.{}.{}.{}"),
        (_LAYER + r"self_attn\.(q|k)_norm\.weight", "{}.layers.{}.attention.{}_norm.weight"),
        (_LAYER + r"mlp\.(gate|up|down)_proj\.weight", "{}.layers.{}.feed_forward.{}.weight"),
        (
            _LAYER + r"(pre|post)_(self_attn|cross_attn|feedforward)_layernorm\.weight",
            "{}.layers.{}.{}_{}_norm.weight",
        ),
    ],
    words={"self_attn": "attention", "cross_attn": "cross_attention", "feedforward": "feed_forward"}
    | {"q": "query", "k": "key", "v": "value", "o": "out"},
    embedding=("decoder.embed_tokens.weight", "lm_head.out_proj.weight"),
    prefix="model.",
)


@partial(mx.compile, shapeless=True)
def _soft_cap(x: mx.array, cap: mx.array) -> mx.array:
    return mx.tanh(x / cap) * cap


class Norm(model.Norm):
    """An RMS norm that multiplies by 1 + weight."""

    def __call__(self, x: mx.array) -> mx.array:
        factor = 1 + self.weight.astype(mx.float32)  # in float32: bfloat16 would lose small weights
        return mx.fast.rms_norm(x, factor, self._eps).astype(self.weight.dtype)


class Attention(encoder_decoder.Attention):
    """Grouped-query attention with capped scores, and rotary positions if positions are given."""

    def __init__(self, config: StackConfig, source_dims: int):
        c = self._config = config
        scale = c.query_pre_attn_scalar**-0.5
        bias = c.attention_bias
        super().__init__(c.hidden_size, c.num_attention_heads, c.head_dim, scale, bias)
        inner = c.num_key_value_heads * c.head_dim
        self.key = nn.Linear(source_dims, inner, bias)
        self.value = nn.Linear(source_dims, inner, bias)
        if c.head_norms:
            self.query_norm = Norm(c.head_dim, c.rms_norm_eps)
            self.key_norm = Norm(c.head_dim, c.rms_norm_eps)

    def heads(self, name: str, x: mx.array, *positions: mx.array) -> mx.array:
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


class Layer(encoder_decoder.Layer):
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


class Stack(encoder_decoder.Stack):
    def __init__(self, config: StackConfig, layers: Sequence[Layer]):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = list(layers)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        for layer, window in zip(self.layers, config.windows, strict=True):
            layer.window = window


def embed(embedding: nn.Embedding, tokens: mx.array) -> mx.array:
    x = embedding(tokens)
    scale = mx.array(x.shape[-1] ** 0.5, x.dtype)  # rounded to the model's type, as in training
    return wide(x) * scale


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
        """The number of tokens back and ahead that an encoder layer with this window sees."""
        return window, window

    def decoder_mask(self, slots: CrossCache, window: int) -> Mask:
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

        masks = [seen(layer.window) for layer in self.encoder.layers]
        x = embed(self.encoder.embedding, tokens)
        return self.encoder(x, masks, None, mx.broadcast_to(index, tokens.shape))

    def states(self, tokens: mx.array, positions: np.ndarray, slots: CrossCache) -> mx.array:
        slots.reserve(positions)
        seen = cache(lambda window: self.decoder_mask(slots, window))
        masks = [seen(layer.window) for layer in self.decoder.layers]
        at = mx.array(self.known_positions(positions))
        return self.decoder(embed(self.embedding, tokens), masks, slots, at)

    def logits(self, states: mx.array) -> mx.array:
        logits = super().logits(states)
        cap = self.config.decoder.final_logit_softcapping
        return logits if cap is None else _soft_cap(logits, mx.array(cap, logits.dtype))


FAMILY = Family(Config, T5Gemma, NAMES.rename)
