"""The part of a model's config.json that all families share, and checks of its values."""

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from speculative.common.errors import InputError

# A size times a number of heads must stay below 2^31, MLX's limit for shapes.
_MAX = 1 << 20
MAX_LAYERS = 1 << 10
_IDS = ("_id", "_ids")
_Self = TypeVar("_Self", bound="BaseConfig")


@dataclass(frozen=True)
class BaseConfig:
    """A config that checks its fields by type and name; InputError for an invalid value.

    Sizes are from 1 to 2^20, `..._layers` (of one stack) and `..._heads` up to 1024. Every `..._id` and `..._ids` must be a row of
    the vocabulary: MLX does not check indices, and a model without its end-of-sequence token would never stop.
    """

    vocab_size: int  # rows of the embedding: at least the number of the tokenizer's pieces
    pad_token_id: int
    eos_token_ids: tuple[int, ...]

    max_prompt_tokens: ClassVar[int | None] = None  # the longest prompt; None: no limit

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            _check(field.name, field.type, value)
            ids = value if isinstance(value, tuple) else (value or 0,)
            if field.name.endswith(_IDS) and max(ids, default=0) >= self.vocab_size:
                fault = f"{field.name} is {max(ids)}, but vocab_size is only {self.vocab_size}"
                raise InputError(f"config.json: {fault}")

    @classmethod
    def from_hub(cls: type[_Self], raw: Mapping, weights: Collection[str] | None) -> _Self:
        """From `read_config`'s values and our names of the checkpoint's weights (None: not downloaded yet)."""
        raise NotImplementedError

    @classmethod
    def read(cls: type[_Self], raw: Mapping, family: str, **others: Any) -> _Self:
        """From the fields that Hugging Face's config.json has under the same names, and `others`."""
        values = {f.name: raw[f.name] for f in fields(cls) if f.name in raw} | others
        for field in fields(cls):
            if field.name not in values and field.default is MISSING:
                raise InputError(f"config.json has no {field.name}: not a {family}-type model")
        return cls(**values)

    @classmethod
    def from_dict(cls: type[_Self], values: Mapping) -> _Self:
        """From the config.json of a converted folder; other keys are ignored."""
        missing = [f.name for f in fields(cls) if f.name not in values]
        if missing:
            raise InputError(f"config.json has no {', '.join(missing)}: convert the model again")
        known = {f.name: values[f.name] for f in fields(cls)}
        tuples = {name: tuple(x) for name, x in known.items() if isinstance(x, list)}
        return cls(**known | tuples)


def _check(name: str, kind: Any, value: Any) -> None:
    """InputError if a field's value has the wrong type or is out of range."""
    low, high = -1e30, 1e30
    expected = str(getattr(kind, "__name__", kind))
    types = set(get_args(kind) or [kind])  # such as of int | None, or of tuple[int, ...]
    if name.endswith(_IDS):
        low, high = 0, math.inf
        expected = "a token id" if name.endswith("_id") else "token ids"
    elif int in types:
        low, high = 1, MAX_LAYERS if name.endswith(("_layers", "_heads")) else _MAX
        expected = f"a whole number from 1 to {high}"
    if float in types:
        types.add(int)
    fits = isinstance(value, tuple) == (get_origin(kind) is tuple)
    for x in value if isinstance(value, tuple) else (value,):
        fits &= type(x) in types and (type(x) not in (int, float) or low <= x <= high)
    if not fits:
        raise InputError(f"config.json: {name} is {repr(value)[:50]}, not {expected}")


def token_ids(value: int | list[int] | None, default: int) -> tuple[int, ...]:
    """Token ids as transformers writes them: one, a list, or null for the default."""
    if value is None or value == []:
        return (default,)
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def token_id(raw: Mapping, key: str, default: Any) -> Any:
    """A token id in config.json, or the first of a list; the default if there is none."""
    value = raw.get(key)
    return default if value in (None, []) else token_ids(value, 0)[0]


def is_tied(raw: Mapping, weights: Collection[str] | None) -> bool:
    """Whether the output projection is the embedding, by our names of the weights or else by config.json."""
    if weights is None:
        return raw.get("tie_word_embeddings") is not False
    return "head.weight" not in weights


def checked(raw: Mapping, name: str, default: Any, kind: Any = int) -> Any:
    """A value of config.json that is not itself a field, checked like one."""
    value = raw.get(name, default)
    _check(name, kind, value)
    return value
