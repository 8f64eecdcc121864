"""Reads checkpoints of BART's family: config.json and the names of tensors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import gcd

from checkpoints.config import BaseConfig, token_id, token_ids
from checkpoints.names import Names, equal
from checkpoints.tensors import Tensor


@dataclass(frozen=True)
class Kind:
    """The settings of a model_type, and transformers' defaults for keys that old files lack."""

    norm_first: bool  # before each sub-layer and after the stack, not after each residual sum
    positions: str  # "learned"; "sinusoidal"; "counted": fairseq's sinusoids, padding skipped
    norm_embedding: bool
    pad: int
    bos: int | None
    eos: int
    start: int | None  # None: bos
    activation: str = "gelu"
    scale_embedding: bool = False


KINDS = {
    "bart": Kind(False, "learned", True, 1, 0, 2, 2),
    "mbart": Kind(True, "learned", True, 1, 0, 2, None),
    "m2m_100": Kind(True, "counted", False, 1, 0, 2, 2, "relu", True),
    "marian": Kind(False, "sinusoidal", False, 58100, None, 0, 58100),
    "pegasus": Kind(True, "sinusoidal", False, 0, None, 1, 0),
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
    norm_embedding: bool
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

    # What distributed/sharding.py splits: numbers that divide both stacks.
    @property
    def num_heads(self) -> int:
        return gcd(self.encoder_attention_heads, self.decoder_attention_heads)

    @property
    def d_ff(self) -> int:
        return gcd(self.encoder_ffn_dim, self.decoder_ffn_dim)

    @property
    def d_kv(self) -> int:
        return self.d_model // self.num_heads

    @classmethod
    def from_hub(cls, raw: Mapping, weights: Iterable[str] | None) -> "Config":
        kind = KINDS[raw["model_type"]]
        shared = raw.get("share_encoder_decoder_embeddings") is not False
        tied = raw.get("tie_word_embeddings") is not False
        bias = kind.positions != "counted"
        if weights is not None:
            present = set(weights)
            shared = "source_embedding.weight" not in present
            tied = "head.weight" not in present
            bias = "logits_bias" in present
        own = None if shared else raw.get("decoder_vocab_size")
        limit = raw.get("max_position_embeddings", 1024) if kind.positions != "counted" else None
        bos = token_id(raw, "bos_token_id", kind.bos)
        # A start token that is null is bos; a missing one is the kind's.
        start = bos if "decoder_start_token_id" in raw or kind.start is None else kind.start
        forced = bos if raw.get("force_bos_token_to_be_generated") else None  # its name in 2020
        return cls.read(
            {"scale_embedding": kind.scale_embedding, **raw},
            "BART",
            **{"vocab_size": own} if own else {},
            pad_token_id=token_id(raw, "pad_token_id", kind.pad),
            eos_token_ids=token_ids(raw.get("eos_token_id"), kind.eos),
            source_vocab_size=raw.get("vocab_size"),
            max_positions=limit,
            positions=kind.positions,
            norm_first=kind.norm_first,
            norm_embedding=kind.norm_embedding,
            activation=raw.get("activation_function", kind.activation),
            shared_embedding=shared,
            tied_head=tied,
            logits_bias=bias,
            bans_padding=raw["model_type"] == "marian",
            decoder_start_token_id=token_id(raw, "decoder_start_token_id", start),
            forced_bos_token_id=token_id(raw, "forced_bos_token_id", forced),
        )


_SHARED, _HEAD = "shared.weight", "lm_head.weight"
_ENCODER, _DECODER = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
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
    embedding=(_SHARED, _DECODER, _ENCODER, _HEAD),
    prefix="model.",
)


def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors under our names. A shared embedding has up to four names in a file; some
    Marian models, and those trained untied, have another for the encoder."""
    bare = NAMES.bare(tensors)
    own = {}
    if {_ENCODER, _DECODER} <= bare.keys() and not equal(bare[_ENCODER], bare[_DECODER]):
        own = {_ENCODER: bare.pop(_ENCODER)}
        bare.pop(_SHARED, None)  # neither stack reads it
    single = NAMES.one_embedding(bare) | own
    if not any(".layernorm_embedding." in name for name in single):  # its positions are sinusoids
        single = {n: t for n, t in single.items() if not n.endswith("embed_positions.weight")}
    ours = NAMES.renamed(single)
    bias = ours.get("logits_bias")  # [1, V] in the file
    if bias:
        ours["logits_bias"] = replace(bias, shape=bias.shape[-1:], strides=bias.strides[-1:])
    return ours
