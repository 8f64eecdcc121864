"""OPT in MLX (Zhang et al. 2022, arXiv 2205.01068), in both its forms, and Galactica, which is one too.

Learned positions, norms before the sub-layers and one after the last; in opt-350m norms after them, none
at the end, and words narrower than layers. Shapes: B rows, T new tokens, N cache slots, D head width.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from checkpoints.config import BaseConfig, token_ids
from checkpoints.names import Names
from distributed.ranks import ALONE
from errors import InputError
from families import Family
from families.causal import Progress, prefill
from speculative.cache import SlotCache
from text.tokenizer_files import copy_sources, from_transformers, save

_ACTIVATIONS = {"relu": nn.relu, "gelu": nn.gelu, "gelu_new": nn.gelu_approx, "silu": nn.silu}
_FIRST = 2  # the row of the position table that is position 0's


# ---------------------------------------------------------------------------------------------
# From files


@dataclass(frozen=True)
class Config(BaseConfig):
    """Under the names of Hugging Face's config.json where it has one."""

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
    def max_prompt_tokens(self) -> int:
        return self.max_positions - 1

    @property
    def d_kv(self) -> int:
        return self.d_model // self.num_heads

    @classmethod
    def from_hub(cls, raw: Mapping, weights: Iterable[str] | None) -> "Config":
        try:
            d_model, d_ff, vocab_size = (raw[k] for k in ("hidden_size", "ffn_dim", "vocab_size"))
            num_heads, num_layers = raw["num_attention_heads"], raw["num_hidden_layers"]
        except KeyError as error:
            raise InputError(f"config.json has no {error.args[0]}: not an OPT-type model") from None
        norm_first = raw.get("do_layer_norm_before", True)
        tied = raw.get("tie_word_embeddings", True)
        return cls(
            vocab_size=vocab_size,
            pad_token_id=token_ids(raw.get("pad_token_id"), 1)[0],
            eos_token_ids=token_ids(raw.get("eos_token_id"), 2),
            max_positions=raw.get("max_position_embeddings", 2048),
            d_word=raw.get("word_embed_proj_dim") or d_model,
            d_model=d_model,
            d_ff=d_ff,
            num_heads=num_heads,
            num_layers=num_layers,
            activation=raw.get("activation_function", "relu"),
            norm_first=norm_first,
            last_norm=norm_first and not raw.get("_remove_final_layer_norm", False),
            norm_weights=raw.get("layer_norm_elementwise_affine", True),
            biases=raw.get("enable_bias", True),
            tied_head=tied if weights is None else "head.weight" not in set(weights),
        )

    def __post_init__(self):
        super().__post_init__()
        if self.d_model % self.num_heads:
            raise InputError(f"config.json: {self.d_model} units for {self.num_heads} heads")
        if self.activation not in _ACTIVATIONS:
            raise InputError(f"config.json: unknown activation {self.activation!r}")


_DECODER = r"(?:model\.)?decoder\."  # some checkpoints are of the model without its head
_LAYER = _DECODER + r"layers\.(\d+)\."
NAMES = Names(
    family="OPT",
    rules=[
        (_DECODER + r"embed_tokens\.weight", "embedding.weight"),
        (r"lm_head\.weight", "head.weight"),
        (_DECODER + r"embed_positions\.weight", "positions.weight"),
        (_DECODER + r"(project_in|project_out)\.weight", "{}.weight"),
        (_DECODER + r"final_layer_norm\.(weight|bias)", "norm.{}"),
        (_LAYER + r"self_attn\.(q|k|v|out)_proj\.(weight|bias)", "layers.{}.{}.{}"),
        (_LAYER + r"(self_attn|final)_layer_norm\.(weight|bias)", "layers.{}.{}_norm.{}"),
        (_LAYER + r"(fc[12])\.(weight|bias)", "layers.{}.{}.{}"),
    ],
    words={"self_attn": "attention", "final": "feed_forward", "fc1": "up", "fc2": "down"}
    | {"q": "query", "k": "key", "v": "value"},
    embedding=(
        "model.decoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "lm_head.weight",
    ),
)


def write_tokenizer(folder: Path, output: Path) -> None:
    """Copy the tokenizer's files, and write the tokenizer.json that follows from them: OPT's puts </s>
    before a text."""
    copy_sources(folder, output)
    save(from_transformers("AutoTokenizer", folder), output)


# ---------------------------------------------------------------------------------------------
# The model


class Layer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        c = self._config = config
        self._activation = _ACTIVATIONS[c.activation]
        self.query = nn.Linear(c.d_model, c.d_model, c.biases)
        self.key = nn.Linear(c.d_model, c.d_model, c.biases)
        self.value = nn.Linear(c.d_model, c.d_model, c.biases)
        self.out = nn.Linear(c.d_model, c.d_model, c.biases)
        self.attention_norm = nn.LayerNorm(c.d_model, affine=c.norm_weights)
        self.up = nn.Linear(c.d_model, c.d_ff, c.biases)
        self.down = nn.Linear(c.d_ff, c.d_model, c.biases)
        self.feed_forward_norm = nn.LayerNorm(c.d_model, affine=c.norm_weights)

    def _split(self, x: mx.array) -> mx.array:
        B, T, _ = x.shape
        return x.reshape(B, T, -1, self._config.d_kv).transpose(0, 2, 1, 3)  # [B, H, T, D]

    def _attend(self, x: mx.array, mask: mx.array, cache: SlotCache, index: int) -> mx.array:
        B, T, _ = x.shape
        query, key, value = map(self._split, (self.query(x), self.key(x), self.value(x)))
        keys, values = cache.append(index, key, value)
        heads = mx.fast.scaled_dot_product_attention(
            query, keys, values, scale=query.shape[-1] ** -0.5, mask=mask
        )
        return self.out(heads.transpose(0, 2, 1, 3).reshape(B, T, -1))

    def __call__(self, x: mx.array, mask: mx.array, cache: SlotCache, index: int) -> mx.array:
        if self._config.norm_first:
            x = x + self._attend(self.attention_norm(x), mask, cache, index)
            y = self.feed_forward_norm(x)
            return x + self.down(self._activation(self.up(y)))
        x = self.attention_norm(x + self._attend(x, mask, cache, index))
        return self.feed_forward_norm(x + self.down(self._activation(self.up(x))))


class OPT(nn.Module):
    ranks = ALONE  # the processes that share the model's layers
    progress: Progress | None = None  # while `start` reads

    def __init__(self, config: Config):
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocab_size, c.d_word)
        self.positions = nn.Embedding(c.max_positions + _FIRST, c.d_model)
        if c.d_word != c.d_model:
            self.project_in = nn.Linear(c.d_word, c.d_model, bias=False)
            self.project_out = nn.Linear(c.d_model, c.d_word, bias=False)
        self.layers = [Layer(c) for _ in range(c.num_layers)]
        if c.last_norm:
            self.norm = nn.LayerNorm(c.d_model, affine=c.norm_weights)
        if not c.tied_head:
            self.head = nn.Linear(c.d_word, c.vocab_size, bias=False)

    def prefix(self, prompt: Sequence[int]) -> list[int]:
        """What the tokens of a row begin with."""
        return list(prompt)

    def start(self, tokens: mx.array, mask: np.ndarray | None = None) -> SlotCache:
        """Prefill all but the last token of each row, tokens [B, S] with mask [B, S] (true on tokens)."""
        cache = SlotCache(len(tokens), len(self.layers))
        return prefill(self.decode, cache, tokens, mask, self.progress)

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: SlotCache) -> mx.array:
        """Append tokens [B, T] at positions [B, T] to the cache; their logits [B, T, V].

        A token at position MASKED is a filler: its logits mean nothing and no other token sees it. Beyond
        config.max_positions, where only a draft model may be asked, the last position stands for all.
        """
        c = self.config
        known = np.minimum(positions, c.max_positions - 1)
        slots = cache.reserve(positions)
        mask = mx.array(slots[:, None, None, :] <= positions[:, None, :, None])  # [B, 1, T, N]
        x = self.embedding(tokens)
        if "project_in" in self:
            x = self.project_in(x)
        x = x + self.positions(mx.array(known + _FIRST))
        for i, layer in enumerate(self.layers):
            x = layer(x, mask, cache, i)
        if "norm" in self:
            x = self.norm(x)
        if "project_out" in self:
            x = self.project_out(x)
        return self.embedding.as_linear(x) if c.tied_head else self.head(x)


FAMILY = Family(Config, OPT, NAMES.rename, write_tokenizer)
