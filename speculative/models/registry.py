"""The families by name."""

from collections.abc import Mapping
from importlib import import_module
from textwrap import shorten
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from speculative.checkpoints.weights import Quantization
from speculative.common.errors import InputError
from speculative.models.family import Family

DISTILLED = "distilled"  # the model_type of a draft model made from its target (distilled.py)
# config.json's model_type -> the family, in a module beside this one that is imported when a checkpoint asks for it
FAMILIES = {
    "t5": "t5.FAMILY",  # byT5, UL2, FLAN, MADLAD-400 and others say t5 or mt5
    "mt5": "t5.FAMILY",
    "umt5": "t5.FAMILY",
    "t5gemma": "t5gemma.FAMILY",
    "t5gemma2": "t5gemma2.FAMILY",
    "opt": "opt.FAMILY",
    "bart": "bart.FAMILY",
    "mbart": "bart.FAMILY",  # mBART-50 as well
    "m2m_100": "bart.FAMILY",  # NLLB-200 as well
    "marian": "bart.FAMILY",
    "pegasus": "bart.PEGASUS",
    "whisper": "whisper.FAMILY",
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
    module, _, name = FAMILIES[kind].partition(".")
    return getattr(import_module(f"speculative.models.{module}"), name)


def model_type(raw: Mapping) -> str:
    """config.json's model_type or, without one (some umT5), the longest that its class's name begins with: t5 for T5Model."""
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


def build(model: Any, weights: Mapping, quantization: Quantization | None = None) -> Any:
    """The model for weights, arrays or tensors, of these names and shapes; nothing is allocated. InputError names misfits."""
    if quantization:
        nn.quantize(model, **vars(quantization), class_predicate=quantization.covers)
    try:
        model.load_weights([(name, mx.zeros(weight.shape)) for name, weight in weights.items()])
    except (ValueError, OverflowError) as error:
        reason = shorten(str(error), 300, placeholder=" ...")
        raise InputError(f"not the weights that config.json says: {reason}") from None
    return model
