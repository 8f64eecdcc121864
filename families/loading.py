"""Which family a model is of, and loading models from converted folders."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from tokenizers import Tokenizer

from checkpoints.config import BaseConfig
from checkpoints.folder import WEIGHTS, converted, is_outdated, read_json
from checkpoints.quantization import Quantization
from checkpoints.tensors import map_npz, to_mlx
from distributed import sharding
from distributed.ranks import Ranks
from errors import InputError, naming
from families import Family, bart, opt, ram, t5, t5gemma, t5gemma2, whisper
from text.generation import GenerationDefaults
from text.languages import Languages
from text.text_side import TextSide
from text.tokenizer import SOURCE_FILE, load_tokenizer

FAMILIES = {  # by config.json's model_type
    "t5": t5.FAMILY,  # byT5, UL2, FLAN, MADLAD-400 and others say t5 or mt5
    "mt5": t5.FAMILY,
    "umt5": t5.FAMILY,
    "t5gemma": t5gemma.FAMILY,
    "t5gemma2": t5gemma2.FAMILY,
    "opt": opt.FAMILY,
    "bart": bart.FAMILY,
    "mbart": bart.FAMILY,  # mBART-50 as well
    "m2m_100": bart.FAMILY,  # NLLB-200 as well
    "marian": bart.FAMILY,
    "pegasus": replace(bart.FAMILY, dtype="bfloat16"),  # trained in it, unlike its kin
    "whisper": whisper.FAMILY,
}


def family_of(raw: Mapping) -> Family:
    """The family of a config.json; InputError if there is none."""
    kind = model_type(raw)
    if "n_mels" in raw:
        raise InputError("mlx_whisper's folder, without a tokenizer: convert the original model")
    if not kind:
        raise InputError("config.json has no model_type: not a model of Hugging Face's")
    if kind not in FAMILIES:
        raise InputError(f"a {kind[:50]} model; there are {', '.join(FAMILIES)}")
    return FAMILIES[kind]


def model_type(raw: Mapping) -> str:
    """config.json's model_type or, if there is none (some umT5), the longest that its class's name starts with, such as
    t5 in T5Model."""
    if raw.get("model_type"):
        return str(raw["model_type"])
    name = architecture_of(raw)
    kinds = [kind for kind in FAMILIES if name.lower().startswith(kind.replace("_", ""))]
    return max(kinds, key=len, default=name)


def architecture_of(raw: Mapping) -> str:
    """The class that config.json names, such as T5ForConditionalGeneration, or ""."""
    listed = raw.get("architectures")
    return str(listed[0]) if isinstance(listed, list) and listed else ""


def check_head(raw: Mapping) -> None:
    """InputError if config.json is of a model without a decoder, or with a head for another task."""
    name = architecture_of(raw)
    if name.endswith(("EncoderModel", "Classification", "QuestionAnswering", "MultipleChoice")):
        raise InputError(f"a {name} is for other tasks: it cannot generate text")


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


def find(name: str) -> Path:
    """The folder that a user means: a converted one or one for mlx-lm, by its path or its name under mlx_models/, or a
    checkpoint, a folder or owner/name on the hub, which is converted on first use, and a folder again when it has
    changed. InputError if there is none."""
    path = converted(name)
    if path is None or is_outdated(path):
        from families import causal_loading, conversion  # which import this module

        if path is not None:
            return conversion.convert_again(name, path)
        path = causal_loading.find_mlx_lm_folder(name) or conversion.convert_first(name)
    return path


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
    path = ranks.together(lambda: find(str(name)))
    if not (path / WEIGHTS).exists():
        from families import causal_loading  # which imports this module

        return causal_loading.load(str(name), path, group, split)
    config = ranks.together(lambda: read_json(path / "config.json"))
    ranks.check_folder(path)
    if model_type(config) == "distilled":
        from families.distilled import Distilled  # which few need

        draft: Any = ranks.together(lambda: Distilled.load(path, config))
        return draft, draft.text  # its target has the tokenizer
    model = ranks.together(lambda: _load(str(name), path, config, ranks, split))
    return model, model.text.tokenizer


def _load(name: str, path: Path, raw: Mapping, ranks: Ranks, split: bool) -> Any:
    """The model in a converted folder with this config.json, or this rank's part of it."""
    with naming(path):
        family = family_of(raw)
        given = raw.get("quantization")
        quantization = None if given is None else Quantization.from_config(given)
        config = family.config.from_dict(raw)
    arrays = map_npz(path / WEIGHTS)
    with naming(path / WEIGHTS):
        shapes = {key: array.shape for key, array in arrays.items()}
        model: Any = build(family, config, shapes, quantization)
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
