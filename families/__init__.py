"""The architectures, behind the contract of speculative/model.py, and the table from config.json to family.

A new architecture is a module here with FAMILY, a `Family`, and a line in _MODULES. Conversion and loading
go by the names of weights: layers called query, key, value, out, gate, up and down are split among ranks
(distributed/sharding.py), and matrices are quantized, except tables that checkpoints/quantization.py names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import mlx.nn as nn

from checkpoints.config import BaseConfig
from checkpoints.folder import WEIGHTS, read_json, weight_files
from checkpoints.tensors import Tensor
from errors import InputError
from text.tokenizer import FILE as TOKENIZER
from text.tokenizer_files import copy_sources, from_transformers, save

_MODULES = {  # model_type in config.json -> module
    "t5": "families.t5",  # byT5, UL2, FLAN, MADLAD-400 and others say t5 or mt5
    "mt5": "families.t5",
    "umt5": "families.t5",
    "t5gemma": "families.t5gemma",
    "t5gemma2": "families.t5gemma2",
    "opt": "families.opt",
    "bart": "families.bart",
    "mbart": "families.bart",  # mBART-50 as well
    "m2m_100": "families.bart",  # NLLB-200 as well
    "marian": "families.bart",
    "pegasus": "families.bart",
    "whisper": "families.whisper",
}
# Trained or published in float16, as fairseq's and OpenAI's are. The others need bfloat16's range: T5, T5Gemma and
# Pegasus, trained in bfloat16 on TPUs, overflow float16.
_FLOAT16 = ("bart", "mbart", "m2m_100", "marian", "whisper")


def write_tokenizer(folder: Path, output: Path) -> None:
    """Copy the tokenizer's files, and write the tokenizer.json that transformers makes of them."""
    if not copy_sources(folder, output):
        raise InputError(f"{folder}: no tokenizer: it has no {TOKENIZER}")
    save(from_transformers("AutoTokenizer", folder), output)


@dataclass(frozen=True)
class Family:
    """What conversion and loading need to know of an architecture."""

    config: type[BaseConfig]
    model: Callable[..., nn.Module]  # model(config): keeps the contract above
    # Renames a checkpoint's tensors to ours and drops unneeded ones; InputError for unknown names.
    rename: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    # (checkpoint's folder, converted folder): copies the tokenizer's files and writes a tokenizer.json for
    # the `tokenizers` package.
    write_tokenizer: Callable[[Path, Path], None] = write_tokenizer
    # Suffixes of weights that stay float32 in a float16 model: see encoder_decoder.FeedForward.
    float32: tuple[str, ...] = ("feed_forward.down.weight",)
    shows_special: bool = False  # in the text, special tokens: T5's sentinels are for the reader


def family_of(raw: Mapping) -> Family:
    """The family of a config.json; InputError if there is none. Imports only its module."""
    kind = _kind(raw)
    if "n_mels" in raw:
        raise InputError("mlx_whisper's folder, without a tokenizer: convert the original model")
    if not kind:
        raise InputError("config.json has no model_type: not a model of Hugging Face's")
    if kind not in _MODULES:
        raise InputError(f"a {kind[:50]} model; there are {', '.join(_MODULES)}")
    return import_module(_MODULES[kind]).FAMILY


def default_dtype(raw: Mapping) -> str:
    """The type that conversion gives a model's weights if the user does not choose."""
    return "float16" if _kind(raw) in _FLOAT16 else "bfloat16"


def has_family(raw: Mapping) -> bool:
    """Whether a config.json belongs to one of these families."""
    return _kind(raw) in _MODULES


def is_mlx_lm_folder(path: Path) -> bool:
    """Whether a folder is a model for mlx-lm: of an architecture that convert.py does not convert, with
    safetensors. A converted folder and any other checkpoint is not."""
    if (path / WEIGHTS).exists() or not (path / "config.json").exists():
        return False
    if has_family(read_json(path / "config.json")):
        return False
    files = weight_files({file.name for file in path.iterdir()}, path.joinpath)
    return any(file.startswith("model") for file in files)


def _kind(raw: Mapping) -> str:
    """The model type or, if config.json has none (some umT5), the longest that its class name starts
    with, such as T5 in T5Model."""
    architecture = architecture_of(raw)
    kinds = [kind for kind in _MODULES if architecture.lower().startswith(kind.replace("_", ""))]
    return str(raw.get("model_type") or max(kinds, key=len, default=architecture))


def architecture_of(raw: Mapping) -> str:
    """The class that config.json names, such as T5ForConditionalGeneration, or ""."""
    listed = raw.get("architectures")
    return str(listed[0]) if isinstance(listed, list) and listed else ""
