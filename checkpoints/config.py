"""What a T5 model's shape and arithmetic depend on, read from config.json."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from errors import InputError


@dataclass(frozen=True)
class Config:
    """What the model's shape and arithmetic depend on, under the names of Hugging Face's
    config.json where it has one."""

    max_positions: ClassVar[int | None] = None  # relative positions have no limit

    vocab_size: int
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
    pad_token_id: int
    eos_token_ids: tuple[int, ...]
    decoder_start_token_id: int

    def __post_init__(self):
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            kind: Any = field.type
            if kind is int:
                least = 0 if name.endswith("_id") else 1
                right, what = _is_int(value, least), f"a whole number of {least} or more"
            elif kind is float:
                right, what = isinstance(value, float) and 0 <= value < 1, "a small number"
            elif kind == tuple[int, ...]:
                right, what = all(_is_int(n, 0) for n in value), "token ids"
            else:
                right, what = isinstance(value, kind), f"a {kind.__name__}"
            if not right:
                raise InputError(f"config.json: {name} is {value!r}, not {what}")

    @classmethod
    def from_hub(cls, raw: Mapping, weights: Iterable[str]) -> "Config":
        """From a raw Hugging Face config.json and the checkpoint's names under our scheme.

        The file says too little and sometimes the wrong thing, so the weights decide what they
        can: whether the feed-forward layers are gated, the head is tied, every layer has a bias.
        """
        weights = set(weights)
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
        pad = _ids(raw.get("pad_token_id"), 0)[0]
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
            eos_token_ids=_ids(raw.get("eos_token_id"), 1),
            decoder_start_token_id=_ids(raw.get("decoder_start_token_id"), pad)[0],
        )

    @classmethod
    def from_dict(cls, values: Mapping) -> "Config":
        """From the config.json of a converted folder; keys that are not ours are ignored."""
        missing = [f.name for f in fields(cls) if f.name not in values]
        if missing:
            raise InputError(f"config.json has no {', '.join(missing)}: convert the model again")
        known = {f.name: values[f.name] for f in fields(cls)}
        return cls(**{**known, "eos_token_ids": _ids(known["eos_token_ids"], 1)})

    def to_dict(self) -> dict:
        return asdict(self)


def _is_int(value: object, least: int) -> bool:
    return type(value) is int and value >= least


def _ids(value: int | list[int] | None, default: int) -> tuple[int, ...]:
    """A token id, or a list of them, as transformers writes it; null where it means the default."""
    if value is None or value == []:
        return (default,)
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


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
