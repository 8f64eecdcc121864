"""Converted folders: a model of their weights, and its text side."""

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from checkpoints.config import BaseConfig
from checkpoints.folder import WEIGHTS
from checkpoints.quantization import Quantization
from checkpoints.tensors import map_npz, to_mlx
from common.errors import InputError, naming
from distributed import sharding
from distributed.ranks import Ranks
from families import Family, ram
from families.registry import family_of
from text.generation import GenerationDefaults
from text.languages import Languages
from text.text_side import TextSide
from text.tokenizer import SOURCE_FILE, load_tokenizer


def build(
    family: Family,
    config: BaseConfig,
    weights: Mapping[str, Any],
    quantization: Quantization | None = None,
) -> nn.Module:
    """A model to load weights, arrays or tensors, of these names and shapes into; nothing is allocated. InputError names
    those that are missing, unknown or mis-shaped."""
    model = family.model(config)
    if quantization:
        nn.quantize(model, **vars(quantization), class_predicate=quantization.covers)
    try:
        model.load_weights([(name, mx.zeros(weight.shape)) for name, weight in weights.items()])
    except (ValueError, OverflowError) as error:
        reason = shorten(str(error), 300, placeholder=" ...")
        raise InputError(f"not the weights that config.json says: {reason}") from None
    return model


def weights_of(model: nn.Module) -> dict[str, mx.array]:
    """A model's weights by their names."""
    return dict(tree_flatten(model.parameters()))


def load_converted(name: str, path: Path, raw: Mapping, ranks: Ranks, split: bool) -> Any:
    """The model in a converted folder with this config.json, or this rank's part of it."""
    with naming(path):
        family = family_of(raw)
        given = raw.get("quantization")
        quantization = None if given is None else Quantization.from_config(given)
        config = family.config.from_dict(raw)
    arrays = map_npz(path / WEIGHTS)
    with naming(path / WEIGHTS):
        model: Any = build(family, config, arrays, quantization)
    if split and ranks.group and ranks.size > 1:
        sharding.check_ranks(config, quantization, ranks.size)
        sharding.shard(model, ranks.group)
        sharding.load_shard(model, arrays, ranks.rank)
        model.ranks = ranks
    else:
        model.load_weights(list(ram.load_weights(name, path, arrays, to_mlx).items()))
    mx.eval(model.parameters())  # what is lazy can only be computed by the thread that made it
    model.text = _text_side(path, family, model)
    model.origin = str(raw.get("converted_from", path.name))
    return model


def _text_side(path: Path, family: Family, model: Any) -> TextSide:
    """The text side of a converted folder's model."""
    rows = model.config.vocab_size
    tokenizer = load_tokenizer(path, rows)
    source_tokenizer = None
    if (path / SOURCE_FILE).exists():
        source_tokenizer = load_tokenizer(path, model.source_vocab_size, SOURCE_FILE)
    languages = Languages.load(path, rows)
    codes = languages.codes.values() if languages and languages.source else ()
    hidden = {code for code in codes if isinstance(code, int)}
    for token, piece in tokenizer.get_added_tokens_decoder().items():
        if piece.special and not re.fullmatch(family.shown_special, piece.content):
            hidden.add(token)
    in_prefix = [] if model.forced_bos_token_id is None else ["forced_bos_token_id"]
    return TextSide(
        tokenizer,
        source_tokenizer,
        languages,
        GenerationDefaults.load(path, in_prefix),
        frozenset(hidden),
        start_token=model.start_token_id,
    )
