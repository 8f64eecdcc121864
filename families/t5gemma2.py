"""T5Gemma 2 in MLX, its text: T5Gemma with what Gemma 3 changed, and one attention in the decoder.

A layer's queries see the tokens so far and the source in one softmax, the source through the same
projections, without positions. Queries and keys have norms, local and global layers rotary positions of
their own, encoder and decoder one embedding. What is for images is left out.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np

from checkpoints import names
from checkpoints.tensors import Tensor
from errors import InputError
from families import Family, t5gemma_checkpoint
from families.t5gemma import EncoderLayer, Stack, T5Gemma, decoder_masks
from families.t5gemma_checkpoint import write_tokenizer
from model import source_mask
from speculative.cache import MASKED, CrossCache

_THETA = {"sliding_attention": ("rope_local_base_freq", 1e4), "full_attention": ("rope_theta", 1e6)}


@dataclass(frozen=True)
class StackConfig(t5gemma_checkpoint.StackConfig):
    rope_thetas: tuple[float, ...] = ()  # of each layer
    rope_scales: tuple[float, ...] = ()

    @classmethod
    def from_raw(cls, raw: object) -> "StackConfig":
        if not isinstance(raw, Mapping):
            raise InputError("config.json has no encoder and decoder: not a T5Gemma 2 model")
        given = {
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "final_logit_softcapping": None,
            **raw,
            "attn_logit_softcapping": None,  # which transformers does not apply
            "rope_parameters": None,
            "rope_scaling": None,
        }
        if raw.get("layer_types") is None:
            pattern, count = raw.get("sliding_window_pattern", 6), raw.get("num_hidden_layers", 26)
            if type(pattern) is not int or pattern < 1:
                raise InputError(
                    f"config.json: sliding_window_pattern is {pattern!r}, not a number"
                )
            layers = range(1, 1 + count) if type(count) is int and count <= 1024 else ()
            given["layer_types"] = [list(_THETA)[i % pattern == 0] for i in layers]
        plain = t5gemma_checkpoint.StackConfig.from_raw(given)  # checks the layers' types
        ropes = {kind: _rope(raw, kind) for kind in _THETA}
        values = {name: getattr(plain, name) for name in plain.__dataclass_fields__}
        thetas, scales = zip(*(ropes[kind] for kind in given["layer_types"]), strict=True)
        return cls(**values | dict(head_norms=True, rope_thetas=thetas, rope_scales=scales))

    def of_layer(self, index: int) -> "StackConfig":
        return replace(self, rope_theta=self.rope_thetas[index], rope_scale=self.rope_scales[index])


def _rope(raw: Mapping, kind: str) -> tuple[float, float]:
    """The base, and the scale of positions, of layers of a kind."""
    both = raw.get("rope_parameters") or {}
    given = both.get(kind) or {} if isinstance(both, Mapping) else both
    if kind == "full_attention":
        given = given or raw.get("rope_scaling") or {}
    name = given.get("rope_type", "default") if isinstance(given, Mapping) else given
    if name not in ("default", "linear"):
        raise InputError(f"config.json: rotary positions of type {name!r}, not default or linear")
    key, theta = _THETA[kind]
    factor: Any = given.get("factor") if name == "linear" else 1.0
    if type(factor) not in (int, float) or factor < 1:
        raise InputError(
            f"config.json: the factor of rotary positions is {factor!r}, not 1 or more"
        )
    return given.get("rope_theta", raw.get(key, theta)), 1 / factor


@dataclass(frozen=True)
class Config(t5gemma_checkpoint.Config):
    encoder: StackConfig
    decoder: StackConfig
    stack: ClassVar[type] = StackConfig

    @classmethod
    def from_hub(cls, raw: Mapping, weights: Iterable[str] | None) -> "Config":
        encoder = raw.get("encoder")
        text = encoder.get("text_config") if isinstance(encoder, Mapping) else None
        return super().from_hub({**raw, "encoder": text}, weights)  # type: ignore[return-value]

    def __post_init__(self):
        super().__post_init__()
        for name in ("hidden_size", "vocab_size"):
            one, other = getattr(self.encoder, name), getattr(self.decoder, name)
            if one != other:
                raise InputError(
                    f"config.json: {name} is {one} in the encoder, {other} in the decoder"
                )


_EXTRA: list[names.Rule] = [
    (
        r"(encoder|decoder)\.layers\.(\d+)\.self_attn\.(q|k)_norm\.weight",
        lambda m: f"{m[1]}.layers.{m[2]}.attention.{'query' if m[3] == 'q' else 'key'}_norm.weight",
    ),
    (r"encoder\.(vision_tower|multi_modal_projector)\..+", None),
    (r"(encoder|decoder)\.embed_tokens\.eoi_embedding", None),
]
_EMBEDDINGS = (
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.out_proj.weight",
)


def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors under our names, without those for images and aliases of the embedding."""
    bare = {
        re.sub(r"^(model\.)?(encoder\.text_model\.)?", _shorter, n): t for n, t in tensors.items()
    }
    tables = [bare[name] for name in _EMBEDDINGS[:2] if name in bare]
    if len(tables) == 2 and not names.equal(*tables):
        raise InputError("an embedding for each stack, which T5Gemma 2 has not")
    single = names.one_embedding(bare, _EMBEDDINGS, _EMBEDDINGS[-1], "T5Gemma 2")
    return names.renamed(single, [*_EXTRA, *t5gemma_checkpoint.NAMES], "T5Gemma 2")


def _shorter(match: re.Match) -> str:
    return "encoder." if match[2] else ""


# ---------------------------------------------------------------------------------------------
# The model


class DecoderLayer(EncoderLayer):
    def __call__(  # type: ignore[override]
        self, x: mx.array, positions: mx.array, mask: mx.array | None, cache: CrossCache, index: int
    ) -> mx.array:
        y = self.pre_attention_norm(x)
        own = cache.append(index, *self.attention.project(y, positions))
        both = zip(own, cache.cross[index], strict=True)
        keys, values = (mx.concatenate(list(pair), axis=2) for pair in both)  # [B, H_kv, N + S, D]
        y = self.attention(y, keys, values, mask, positions)
        return self._fed_forward(x + self.post_attention_norm(y))


class T5Gemma2(T5Gemma):
    def __init__(self, config: Config):
        super().__init__(config)
        e, d = config.encoder, config.decoder
        self.encoder = Stack(e, [EncoderLayer(e.of_layer(i)) for i in range(len(e.windows))])
        self.decoder = Stack(d, [DecoderLayer(d.of_layer(i)) for i in range(len(d.windows))])
        del self.decoder["embedding"]  # it is the encoder's

    def reaches(self) -> list[tuple[int, int]]:
        everywhere = self.config.encoder.max_position_embeddings
        return [
            (w, w) if w >= everywhere else ((w + 1) // 2 - 1, w // 2)
            for w in self.config.encoder.windows
        ]

    def start(self, tokens: mx.array, mask: np.ndarray | None = None) -> CrossCache:
        mask = source_mask(tokens, mask, self.config.max_prompt_tokens)
        memory = self.encode(tokens, mask)
        return CrossCache([layer.attention.project(memory) for layer in self.decoder.layers], mask)

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: CrossCache) -> mx.array:
        slots, windows = cache.reserve(positions), self.config.decoder.windows
        own = dict(zip(windows, decoder_masks(positions, slots, windows), strict=True))
        shape = (*positions.shape, slots.shape[1], cache.mask.shape[1])
        masks = {window: _beside(mask, cache.cross_mask, shape) for window, mask in own.items()}
        at = mx.array(np.where(positions == MASKED, 0, positions))
        x = self.encoder.embed(tokens)
        for i, (layer, window) in enumerate(zip(self.decoder.layers, windows, strict=True)):
            x = layer(x, at, masks[window], cache, i)
        x = self.decoder.norm(x)
        return self.capped(
            self.encoder.embedding.as_linear(x) if self.config.tied_head else self.head(x)
        )


def _beside(
    own: mx.array | None, cross: mx.array | None, shape: tuple[int, int, int, int]
) -> mx.array | None:
    """What queries see, own slots and then the source; shape: B, T, N, S. Boolean [B, 1, T, N + S]."""
    if own is None and cross is None:
        return None
    B, T, *sizes = shape
    parts = [mx.array(True) if mask is None else mask for mask in (own, cross)]
    whole = [mx.broadcast_to(mask, (B, 1, T, n)) for mask, n in zip(parts, sizes, strict=True)]
    return mx.concatenate(whole, axis=-1)


FAMILY = Family(
    name="T5Gemma 2",
    config=Config,
    model=T5Gemma2,
    rename=rename,
    write_tokenizer=write_tokenizer,
    float32=("feed_forward.down.weight",),
)
