"""Loading models from converted folders."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from tokenizers import Tokenizer

from checkpoints.config import BaseConfig
from checkpoints.folder import WEIGHTS, read_json
from checkpoints.quantization import Quantization
from checkpoints.tensors import map_npz, to_mlx
from distributed import sharding
from distributed.ranks import Ranks
from errors import InputError, naming
from families import Family, family_of, is_mlx_lm_folder, ram
from text.generation import GenerationDefaults
from text.languages import Languages
from text.text_side import TextSide
from text.tokenizer import FILE as TOKENIZER
from text.tokenizer import load_tokenizers


def build(
    family: Family,
    config: BaseConfig,
    shapes: Mapping[str, tuple[int, ...]],
    quantization: Quantization | None = None,
) -> nn.Module:
    """A model to load weights of these names and shapes into; nothing is allocated. InputError names
    those that are missing, unknown or mis-shaped."""
    model = family.model(config)
    if quantization:

        def covered(name: str, module: nn.Module) -> bool:
            weight = module.get("weight")
            return weight is not None and quantization.covers(name, weight.shape)

        nn.quantize(model, **vars(quantization), class_predicate=covered)
    try:
        model.load_weights([(name, mx.zeros(shape)) for name, shape in shapes.items()])
    except (ValueError, OverflowError) as error:
        reason = shorten(str(error), 300, placeholder=" ...")
        raise InputError(f"not the weights that config.json says: {reason}") from None
    return model


def weight_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The name and shape of every weight."""
    weights = dict(tree_flatten(model.parameters()))
    return {name: weight.shape for name, weight in weights.items()}


def load(
    name: str | Path, group: mx.distributed.Group | None = None, split: bool = True
) -> tuple[Any, Tokenizer]:
    """Load the model and tokenizer of a converted folder or a name under mlx_models/, of a folder that mlx-lm can
    load, or of a checkpoint, a folder or owner/name on the Hugging Face hub, which is converted on first use.

    group: `mx.distributed.init()`, in processes that mlx.launch started. Each holds a part of the
    layers; or, without `split`, all of them.

    `model.text` is its text side (text/text_side.py).

    InputError for no such model, files that do not fit each other, or ranks that differ.
    """
    ranks = Ranks(group)
    from families import conversion  # which imports this module

    path = ranks.together(lambda: conversion.find(str(name)))
    if is_mlx_lm_folder(path):
        from families import causal_loading

        return causal_loading.load(str(name), path, group, split)
    family, model, quantization, arrays = ranks.together(lambda: _open(path))
    ranks.check_folder(path)

    def load_arrays() -> None:
        if split and group and ranks.size > 1:
            sharding.check_ranks(model.config, quantization, ranks.size)
            sharding.shard(model, group)
            sharding.load_shard(model, arrays, ranks.rank)
            model.ranks = ranks
        else:
            loaded = ram.load_weights(str(name), path, arrays, to_mlx)
            model.load_weights(list(loaded.items()))
        mx.eval(model.parameters())  # what is lazy can only be computed by the thread that made it
        with naming(path / TOKENIZER):  # a target compares it with its own
            rows = model.config.vocab_size
            tokenizer, source_tokenizer = load_tokenizers(path, rows, model.source_vocab_size)
        languages = Languages.load(path, rows)
        codes = languages.codes.values() if languages and languages.source else ()
        in_prefix = [] if model.forced_bos_token_id is None else ["forced_bos_token_id"]
        model.text = TextSide(
            tokenizer,
            source_tokenizer,
            languages,
            GenerationDefaults.load(path, in_prefix),
            hidden=frozenset({*codes, *without_text(family, tokenizer)}),
            start_token=model.start_token_id,
        )

    ranks.together(load_arrays)
    return model, model.text.tokenizer


def without_text(family: Family, tokenizer: Tokenizer) -> set[int]:
    """The special tokens that texts do not show."""
    added = {} if family.shows_special else tokenizer.get_added_tokens_decoder()
    return {token for token, piece in added.items() if piece.special}


def _open(path: Path) -> tuple[Family, nn.Module, Quantization | None, dict[str, np.ndarray]]:
    """A converted folder's family, the model without its weights, and the weights as views of the file."""
    raw = read_json(path / "config.json")
    with naming(path):
        family = family_of(raw)
        quantization = Quantization.from_config(raw)
        config = family.config.from_dict(raw)
    arrays = map_npz(path / WEIGHTS)
    with naming(path / WEIGHTS):
        shapes = {key: array.shape for key, array in arrays.items()}
        model = build(family, config, shapes, quantization)
    return family, model, quantization, arrays
