"""T5Gemma 2 in MLX, text only: T5Gemma with Gemma 3's changes, and one attention in the decoder.

A layer's queries see the tokens so far and the source in one softmax, the source through the same projections, without
positions. Local and global layers have their own rotary positions. Encoder and decoder share one embedding.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn

from speculative.models import t5gemma
from speculative.models.encoder_decoder import Mask
from speculative.models.family import Family
from speculative.models.t5gemma import FULL, SLIDING, Layer, T5Gemma, rope
from speculative.step.cache import CrossCache


@dataclass(frozen=True)
class StackConfig(t5gemma.StackConfig):
    max_position_embeddings: int = 131072
    final_logit_softcapping: float | None = None
    head_norms: bool = True
    rope_thetas: tuple[float, ...] = ()  # of each layer
    rope_scales: tuple[float, ...] = ()

    family: ClassVar[str] = "T5Gemma 2"
    pieces: ClassVar[int] = 262208
    full_every: ClassVar[int] = 6

    @classmethod
    def from_layers(cls, raw: Mapping, types: list[str]) -> dict[str, Any]:
        values = raw.get("rope_parameters") or {FULL: raw.get("rope_scaling")}
        local = rope(values.get(SLIDING) or {}, raw.get("rope_local_base_freq", 1e4))
        ropes = {SLIDING: local, FULL: rope(values.get(FULL) or {}, raw.get("rope_theta", 1e6))}
        thetas, scales = zip(*(ropes[kind] for kind in types), strict=True)
        # transformers does not cap attention's scores.
        return dict(rope_thetas=thetas, rope_scales=scales, attn_logit_softcapping=None)

    def of_layer(self, index: int) -> "StackConfig":
        return replace(self, rope_theta=self.rope_thetas[index], rope_scale=self.rope_scales[index])


@dataclass(frozen=True)
class Config(t5gemma.Config):
    encoder: StackConfig
    decoder: StackConfig
    stack: ClassVar[type] = StackConfig

    @classmethod
    def from_hub(cls, raw: Mapping, weights: Collection[str] | None) -> "Config":
        text = (raw.get("encoder") or {}).get("text_config")
        return super().from_hub({**raw, "encoder": text}, weights)  # type: ignore[return-value]


_GEMMA = t5gemma.NAMES
_ENCODERS = ("encoder.embed_tokens.weight", "encoder.text_model.embed_tokens.weight")
NAMES = replace(
    _GEMMA,
    family="T5Gemma 2",
    rules=[
        (r"encoder\.(vision_tower|multi_modal_projector)\..+", None),
        (r"(encoder|decoder)\.(text_model\.)?embed_tokens\.eoi_embedding", None),
        *_GEMMA.rules,
    ],
    embedding=(*_ENCODERS, *_GEMMA.embedding),
)


class DecoderLayer(Layer):
    """A layer with one attention to both the text so far and the source."""

    def attend(
        self, x: mx.array, mask: Mask, cache: CrossCache | None, index: int, *positions: mx.array
    ) -> mx.array:
        assert cache is not None
        slots = cache.append(index, *self.attention.project(x, *positions))
        both = zip(slots, cache.cross[index], strict=True)
        keys, values = (mx.concatenate(list(pair), axis=2) for pair in both)  # [B, H_kv, N + S, D]
        return self.attention(x, keys, values, mask, *positions)


class T5Gemma2(T5Gemma):
    def __init__(self, config: Config):
        super().__init__(config)
        del self.decoder["embedding"]  # it is the encoder's

    def decoder_layer(self, index: int) -> Layer:
        return DecoderLayer(self.config.decoder.of_layer(index))

    @property
    def embedding(self) -> nn.Embedding:
        return self.encoder.embedding

    def reach(self, window: int) -> tuple[int, int]:
        everything = self.config.encoder.max_position_embeddings
        return (window, window) if window >= everything else ((window + 1) // 2 - 1, window // 2)

    def decoder_mask(self, slots: CrossCache, window: int) -> Mask:
        """The mask of the layer's own slots and then the source: boolean [B, 1, T, N + S]."""
        masks = slots.self_mask(window), slots.cross_mask
        if all(mask is None for mask in masks):
            return None
        B, T, N = slots.distance.shape
        shapes = (B, 1, T, N), (B, 1, T, slots.mask.shape[1])
        seen = (mx.array(True) if mask is None else mask for mask in masks)
        return mx.concatenate([*map(mx.broadcast_to, seen, shapes)], axis=-1)


FAMILY = Family(Config, T5Gemma2, NAMES.rename)
