"""What a model's shape and arithmetic depend on, read from config.json: what is common to all, and T5's."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from types import UnionType
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from errors import InputError

# A product of a size and of a number of heads stays below 2^31, as MLX's shapes have to.
_MOST, _MOST_LAYERS = 1 << 20, 1 << 10
_Self = TypeVar("_Self", bound="BaseConfig")


@dataclass(frozen=True)
class BaseConfig:
    """A config whose fields are checked by type and name; InputError for a value that cannot be.

    An `int` is from 1 to 2^20, `..._layers` (of one stack) and `..._heads` to 1024, `..._id` from 0; a
    `float` is finite, `..._epsilon` below 1; unions with None and tuples are checked by their parts.
    Every `..._id` and `..._ids` is a row of the vocabulary: a model that has no such end of sequence would
    never end, and MLX reads outside a table unasked.
    """

    vocab_size: int  # rows of the embedding: as many as the tokenizer has pieces, or more
    pad_token_id: int
    eos_token_ids: tuple[int, ...]

    def __post_init__(self):
        for field in fields(self):
            _check(field.name, field.type, getattr(self, field.name))
        for field in fields(self):
            if field.name.endswith(("_id", "_ids")):
                self._check_rows(field.name, token_ids(getattr(self, field.name), 0))

    def _check_rows(self, name: str, ids: tuple[int, ...]) -> None:
        if (largest := max(ids, default=0)) >= self.vocab_size:
            raise InputError(
                f"config.json: {name} is {largest}, but vocab_size only {self.vocab_size}"
            )

    @classmethod
    def from_hub(cls: type[_Self], raw: Mapping, weights: Iterable[str] | None) -> _Self:
        """From Hugging Face's config.json, with the token ids of its generation_config.json, and the
        names of the checkpoint's weights under our scheme; None: they are not here yet."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls: type[_Self], values: Mapping) -> _Self:
        """From the config.json of a converted folder; keys that are not ours are ignored."""
        missing = [f.name for f in fields(cls) if f.name not in values]
        if missing:
            raise InputError(f"config.json has no {', '.join(missing)}: convert the model again")
        known = {f.name: values[f.name] for f in fields(cls)}
        tuples = {k: tuple(v) for k, v in known.items() if isinstance(v, list)}  # JSON has none
        return cls(**known | tuples)

    def to_dict(self) -> dict:
        return asdict(self)

    @property
    def max_prompt_tokens(self) -> int | None:
        """How many tokens a prompt may have; None: any number."""
        return None

    def check_layers(self, weights: Iterable[str]) -> None:
        """InputError where there are more layers than in the weights, by the names of these: a layer
        takes memory and time before it has any."""
        said = sum(getattr(self, f.name) for f in fields(self) if f.name.endswith("_layers"))
        found = {match[0] for name in weights if (match := re.match(r".*?layers\.\d+\.", name))}
        if said > len(found):
            raise InputError(f"config.json has {said} layers, the weights {len(found)}")


def _check(name: str, kind: Any, value: object) -> None:
    """InputError where a field's value is not of its type, or absurd."""
    limits, what = (-1e30, 1e30), f"{getattr(kind, '__name__', kind)}"
    if name.endswith(("_id", "_ids")):
        limits, what = (0, math.inf), "a token id" if name.endswith("_id") else "token ids"
    elif name.endswith("_epsilon"):
        limits, what = (0, 1), "a small number"
    elif kind is int or int in get_args(kind):
        limits = (1, _MOST_LAYERS if name.endswith(("_layers", "_heads")) else _MOST)
        what = f"a whole number from 1 to {limits[1]}"
    if not _fits(kind, value, *limits):
        raise InputError(f"config.json: {name} is {repr(value)[:50]}, not {what}")


def _fits(kind: Any, value: Any, least: float, most: float) -> bool:
    """Whether a value is of the type `kind`, and its numbers are from `least` to `most`."""
    if isinstance(kind, UnionType):  # such as int | None
        return any(_fits(part, value, least, most) for part in get_args(kind))
    if get_origin(kind) is tuple:
        of = get_args(kind)[0]
        return isinstance(value, tuple) and all(_fits(of, x, least, most) for x in value)
    if kind is int:
        return type(value) is int and least <= value <= most
    if kind is float:
        return type(value) in (int, float) and least <= value < most
    return isinstance(value, kind)


def token_ids(value: int | list[int] | None, default: int) -> tuple[int, ...]:
    """A token id, or a list of them, as transformers writes it; null where it means the default."""
    if value is None or value == []:
        return (default,)
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


@dataclass(frozen=True)
class Config(BaseConfig):
    """T5's, under the names of Hugging Face's config.json where it has one."""

    d_model: int
    d_kv: int
    d_ff: int
    num_heads: int
    num_layers: int
    num_decoder_layers: int
    relative_attention_num_buckets: int
    relative_attention_max_distance: int
    layer_norm_epsilon: float
    activation: str
    gated: bool
    tied_head: bool  # the output projection is the embedding
    bias_per_layer: bool  # umT5
    scale_decoder_outputs: bool
    decoder_start_token_id: int

    max_positions: ClassVar[int | None] = None  # positions are relative

    def __post_init__(self):
        super().__post_init__()
        # The encoder keeps a quarter of the buckets for single distances, the decoder half of them.
        buckets, limit = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if buckets < 4:
            raise InputError(
                f"config.json: relative_attention_num_buckets is {buckets}, not 4 or more"
            )
        if limit <= buckets // 2:
            raise InputError(
                f"config.json: relative_attention_max_distance is {limit}, not more than half of "
                f"{buckets} buckets"
            )

    @classmethod
    def from_hub(cls, raw: Mapping, weights: Iterable[str] | None) -> "Config":
        """As all configs. The file says too little and sometimes the wrong thing, so the weights decide what they
        can: whether the feed-forward layers are gated, the head is tied, every layer has a bias.
        """
        weights = set(_likely(raw) if weights is None else weights)
        stacks = {name.partition(".")[0] for name in weights}
        if "encoder" in stacks and "decoder" not in stacks:
            raise InputError("an encoder without a decoder, which writes no text")
        try:
            shape = {
                key: raw[key] for key in ("vocab_size", "d_model", "d_kv", "d_ff", "num_heads")
            }
            num_layers = raw["num_layers"]
        except KeyError as error:
            raise InputError(f"config.json has no {error.args[0]}: not a T5-type model") from None
        gated = "decoder.layers.0.feed_forward.gate.weight" in weights
        activation = str(raw.get("feed_forward_proj", "relu")).removeprefix("gated-")
        if gated and activation == "gelu":
            activation = "gelu_new"  # what every gated-gelu checkpoint was trained with
        pad = token_ids(raw.get("pad_token_id"), 0)[0]
        return cls(
            **shape,
            num_layers=num_layers,
            num_decoder_layers=raw.get("num_decoder_layers") or num_layers,
            relative_attention_num_buckets=raw.get("relative_attention_num_buckets", 32),
            relative_attention_max_distance=raw.get("relative_attention_max_distance", 128),
            layer_norm_epsilon=raw.get("layer_norm_epsilon", 1e-6),
            activation=activation,
            gated=gated,
            tied_head="head.weight" not in weights,
            bias_per_layer="decoder.relative_bias.1.weight" in weights,
            scale_decoder_outputs=_scales_outputs(raw),
            pad_token_id=pad,
            eos_token_ids=token_ids(raw.get("eos_token_id"), 1),
            decoder_start_token_id=token_ids(raw.get("decoder_start_token_id"), pad)[0],
        )


def _likely(raw: Mapping) -> list[str]:
    """Names of weights that a checkpoint has if config.json is right, as far as they tell variants apart."""
    gated = str(raw.get("feed_forward_proj", "relu")).startswith("gated-")
    names = [f"decoder.layers.0.feed_forward.{'gate' if gated else 'up'}.weight"]
    if raw.get("tie_word_embeddings") is False:
        names.append("head.weight")
    if raw.get("model_type") == "umt5":
        names.append("decoder.relative_bias.1.weight")
    return names


def _scales_outputs(raw: Mapping) -> bool:
    """Whether the decoder's output is multiplied by d_model**-0.5 before the head.

    `tie_word_embeddings: false` in a T5-type config.json has always meant "do not scale", whatever
    the head. transformers 5 writes the meaning under its own name. mT5 never scales.
    """
    if raw.get("model_type") == "mt5":
        return False
    if "scale_decoder_outputs" in raw:
        return raw["scale_decoder_outputs"]
    return raw.get("tie_word_embeddings") is not False
