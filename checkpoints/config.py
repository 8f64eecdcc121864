"""What a model's shape and arithmetic depend on, read from config.json: what is common to all families."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from errors import InputError

# A product of a size and of a number of heads stays below 2^31, as MLX's shapes have to.
_MOST, MOST_LAYERS = 1 << 20, 1 << 10
_IDS = ("_id", "_ids")
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

    max_prompt_tokens = property(lambda c: None)  # how many a prompt may have; None: any number

    def __post_init__(self):
        for field in fields(self):
            _check(field.name, field.type, getattr(self, field.name))
        for field in fields(self):
            ids = token_ids(getattr(self, field.name), 0) if field.name.endswith(_IDS) else (0,)
            if (largest := max(ids, default=0)) >= self.vocab_size:
                fault = f"{field.name} is {largest}, but vocab_size only {self.vocab_size}"
                raise InputError(f"config.json: {fault}")

    @classmethod
    def from_hub(cls: type[_Self], raw: Mapping, weights: Iterable[str] | None) -> _Self:
        """From Hugging Face's config.json, with the token ids of its generation_config.json, and the
        names of the checkpoint's weights under our scheme; None: they are not here yet."""
        raise NotImplementedError

    @classmethod
    def read(cls: type[_Self], raw: Mapping, family: str, **others: Any) -> _Self:
        """The fields that Hugging Face's config.json has under their own names, and `others`; where a
        field has a default, that is transformers'. InputError for one that is missing."""
        given = {f.name: raw[f.name] for f in fields(cls) if f.name in raw} | others
        for field in fields(cls):
            if field.name not in given and field.default is MISSING:
                raise InputError(f"config.json has no {field.name}: not a {family}-type model")
        return cls(**given)

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


def _check(name: str, kind: Any, value: object) -> None:
    """InputError where a field's value is not of its type, or absurd."""
    limits, what = (-1e30, 1e30), f"{getattr(kind, '__name__', kind)}"
    if name.endswith(_IDS):
        limits, what = (0, math.inf), "a token id" if name.endswith("_id") else "token ids"
    elif name.endswith("_epsilon"):
        limits, what = (0, 1), "a small number"
    elif kind is int or int in get_args(kind):
        limits = (1, MOST_LAYERS if name.endswith(("_layers", "_heads")) else _MOST)
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


def token_id(raw: Mapping, key: str, default: Any) -> Any:
    """A token id of config.json, or the first of a list; where it says none, the default."""
    value = raw.get(key)
    return default if value in (None, []) else token_ids(value, 0)[0]


def checked(raw: Mapping, name: str, default: Any, kind: Any = int) -> Any:
    """A value of config.json that no field is made of as it is; InputError as a field's."""
    value = raw.get(name, default)
    _check(name, kind, value)
    return value
