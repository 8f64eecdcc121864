"""OPT in MLX (Zhang et al. 2022, arXiv 2205.01068), and Galactica, an OPT too.

In opt-350m norms are after the sub-layers, none at the end, and words narrower than layers. Shapes: B rows, T new tokens.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from speculative.checkpoints.config import BaseConfig, is_tied, token_id, token_ids
from speculative.checkpoints.tensors import Tensor
from speculative.models import bart
from speculative.models.causal import DecoderOnly
from speculative.models.family import Family
from speculative.step.cache import SlotCache


@dataclass(frozen=True)
class Config(BaseConfig):
    """OPT's settings, under Hugging Face's names where they exist."""

    max_positions: int
    d_word: int  # word_embed_proj_dim: of the embedding
    d_model: int
    d_ff: int
    num_heads: int
    num_layers: int
    activation: str
    norm_first: bool
    last_norm: bool
    norm_weights: bool  # norms have weights and biases
    biases: bool  # linear layers have biases
    tied_head: bool  # the output projection is the embedding

    @property
    def max_prompt_tokens(self) -> int:  # type: ignore[override]
        return self.max_positions - 1

    @classmethod
    def from_hub(cls, raw: Mapping, weights: Collection[str] | None) -> "Config":
        norm_first = raw.get("do_layer_norm_before", True)
        return cls.read(
            raw,
            "OPT",
            pad_token_id=token_id(raw, "pad_token_id", 1),
            eos_token_ids=token_ids(raw.get("eos_token_id"), 2),
            max_positions=raw.get("max_position_embeddings", 2048),
            d_word=raw.get("word_embed_proj_dim") or raw.get("hidden_size"),
            d_model=raw.get("hidden_size"),
            d_ff=raw.get("ffn_dim"),
            num_heads=raw.get("num_attention_heads"),
            num_layers=raw.get("num_hidden_layers"),
            activation=raw.get("activation_function", "relu"),
            norm_first=norm_first,
            last_norm=norm_first and not raw.get("_remove_final_layer_norm", False),
            norm_weights=raw.get("layer_norm_elementwise_affine", True),
            biases=raw.get("enable_bias", True),
            tied_head=is_tied(raw, weights),
        )


NAMES = replace(
    bart.NAMES,
    family="OPT",
    rules=[
        (r"decoder\.embed_tokens\.weight", "embedding.weight"),
        (r"decoder\.(project_in|project_out)\.weight", "{}.weight"),
        (r"decoder\.final_layer_norm\.(weight|bias)", "norm.{}"),
        *bart.NAMES.rules,
    ],
    embedding=("decoder.embed_tokens.weight", "lm_head.weight"),
)


def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """BART's names for a decoder that is all there is."""
    return {name.removeprefix("decoder."): x for name, x in NAMES.rename(tensors).items()}


class OPT(DecoderOnly):
    def __init__(self, config: Config):
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocab_size, c.d_word)
        self.positions = nn.Embedding(c.max_positions + bart.FIRST, c.d_model)
        if c.d_word != c.d_model:
            self.project_in = nn.Linear(c.d_word, c.d_model, bias=False)
            self.project_out = nn.Linear(c.d_model, c.d_word, bias=False)
        sizes = c.num_heads, c.d_ff, "attention"
        settings = dict(bias=c.biases, affine=c.norm_weights)
        self.layers = [bart.Layer(c, *sizes, **settings) for _ in range(c.num_layers)]
        if c.last_norm:
            self.norm = nn.LayerNorm(c.d_model, affine=c.norm_weights)
        if not c.tied_head:
            self.head = nn.Linear(c.d_word, c.vocab_size, bias=False)

    def states(self, tokens: mx.array, positions: np.ndarray, cache: SlotCache) -> mx.array:
        known = self.known_positions(positions)
        cache.reserve(positions)
        mask = cache.self_mask()
        x = self.embedding(tokens)
        if "project_in" in self:
            x = self.project_in(x)
        x = x + self.positions(mx.array(known + bart.FIRST))
        for i, layer in enumerate(self.layers):
            x = layer(x, mask, cache, i)
        if "norm" in self:
            x = self.norm(x)
        return self.project_out(x) if "project_out" in self else x


FAMILY = Family(Config, OPT, rename)
