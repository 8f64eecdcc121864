"""T5Gemma's checkpoints: their config.json, and the names of their tensors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, ClassVar

from checkpoints.config import BaseConfig, checked, token_id, token_ids
from checkpoints.names import Names
from common.errors import InputError

SLIDING, FULL = ("sliding_attention", "full_attention")
_STACKS = ("encoder", "decoder")


@dataclass(frozen=True)
class StackConfig(BaseConfig):
    """The encoder's or decoder's settings, under Hugging Face's names where they exist, with transformers'
    defaults for what files leave out."""

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
    full_every: ClassVar[int] = (
        2  # one layer in this many sees everything, if the file does not say
    )

    def of_layer(self, index: int) -> "StackConfig":
        """This config for one layer."""
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
        """The fields of rotary positions."""
        given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        theta, scale = rope(given, raw.get("rope_theta", cls.rope_theta))
        return {"rope_theta": theta, "rope_scale": scale}


def rope(given: Mapping, theta: float) -> tuple[float, float]:
    """The base of rotary positions, `theta` if none is given, and their scale."""
    kind = given.get("rope_type", "default")
    if kind not in ("default", "linear"):
        raise InputError(f"config.json: rotary positions of type {kind!r}, not default or linear")
    factor = checked(given, "factor", None, float) if kind == "linear" else 1
    return given.get("rope_theta") or theta, 1 / factor


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

    # What distributed/sharding.py splits: numbers that divide both stacks.
    @property
    def num_heads(self) -> int:
        return gcd(self.encoder.num_key_value_heads, self.decoder.num_key_value_heads)

    @property
    def d_ff(self) -> int:
        return gcd(self.encoder.intermediate_size, self.decoder.intermediate_size)

    @property
    def d_kv(self) -> int:
        stacks = (self.encoder, self.decoder)
        return gcd(*(s.num_attention_heads * s.head_dim for s in stacks)) // self.num_heads

    @classmethod
    def from_hub(cls, raw: Mapping, weights: Iterable[str] | None) -> "Config":
        """Token ids default to the decoder's, as in transformers' generate, and its start to `bos`."""
        encoder, decoder = (cls.stack.from_raw(raw.get(name)) for name in _STACKS)
        tied = raw.get("tie_word_embeddings") is not False
        bos = token_id(raw, "bos_token_id", raw["decoder"].get("bos_token_id", 2))
        return cls(
            vocab_size=decoder.vocab_size,
            pad_token_id=token_id(raw, "pad_token_id", decoder.pad_token_id),
            eos_token_ids=token_ids(raw.get("eos_token_id") or [*decoder.eos_token_ids], 1),
            encoder=encoder,
            decoder=decoder,
            tied_head=tied if weights is None else "head.weight" not in set(weights),
            max_positions=decoder.max_position_embeddings,
            decoder_start_token_id=token_id(raw, "decoder_start_token_id", bos),
        )

    @classmethod
    def from_dict(cls, values: Mapping) -> "Config":
        stacks = {n: cls.stack.from_dict(values[n]) for n in _STACKS if n in values}
        return super().from_dict({**values, **stacks})


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
