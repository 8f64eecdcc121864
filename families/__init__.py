"""Architectures behind one contract, and the one place that knows which config.json is whose.

What the speculative step needs from a model, T5's (model.py) as any other's:

    model.config                     vocab_size, eos_token_ids, pad_token_id; and, None without a limit,
                                     max_positions: how many tokens a row may have in the decoder, and
                                     max_prompt_tokens
    model.prefix(prompt) -> tokens   what a row's tokens begin with, given the prompt's tokens: T5's start
                                     token; for a decoder-only model the prompt itself
    model.start(tokens, mask)        tokens [B, S], mask [B, S] true on tokens (None: no padding): encodes
                                     and projects, or prefills all but the last token -> a cache
    model.decode(tokens, positions, cache)
                                     appends tokens [B, T] at positions [B, T] (np.int32; MASKED: a filler)
                                     to the cache -> logits [B, T, V]

One that reads prompts in chunks has an attribute `progress`, which it calls after each with how many tokens
have been read, and of how many; None: nobody is told.

The cache is one of speculative/cache.py, which says what sees what, or a subclass that adds what an
architecture needs besides. `model.ranks` are set where several processes share a model's layers.

A new architecture is a module here with FAMILY, a `Family`, and a line in _MODULES. Conversion and loading
are the same for all. They go by the names of weights: layers called query, key, value, out, gate, up and
down are split among ranks (distributed/sharding.py), and matrices are quantized, except tables that
checkpoints/quantization.py names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import mlx.nn as nn

from checkpoints.config import BaseConfig
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
}
_NOT_TAKEN = {  # close to one of these, and what is missing
    "blenderbot": "its texts depend on a ban of the prompt's n-grams",
    "blenderbot-small": "its texts depend on a ban of the prompt's n-grams",
    "nllb-moe": "its layers are mixtures of experts",
    "switch_transformers": "its layers are mixtures of experts",
    "longt5": "its encoder attends in windows",
    "led": "its encoder attends in windows",
    "bigbird_pegasus": "its encoder attends in blocks",
    "pegasus_x": "its encoder attends in blocks",
    "prophetnet": "its decoder predicts several tokens at once",
    "fsmt": "it has vocabularies and a tokenizer of its own kind",
}


def write_tokenizer(folder: Path, output: Path) -> None:
    """Copy the tokenizer's files, and write the tokenizer.json that transformers makes of them."""
    if not copy_sources(folder, output):
        raise InputError(f"{folder}: no tokenizer: it has no {TOKENIZER}")
    save(from_transformers("AutoTokenizer", folder), output)


@dataclass(frozen=True)
class Family:
    """What conversion and loading need to know of an architecture."""

    name: str  # for messages
    config: type[BaseConfig]
    model: Callable[..., nn.Module]  # model(config): keeps the contract above
    # A checkpoint's tensors under our names; what is not needed is left out, unknown names are an InputError.
    rename: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    # (checkpoint's folder, converted folder): writes a tokenizer.json that the `tokenizers` package alone
    # reads, and reads right; and copies what it was made from.
    write_tokenizer: Callable[[Path, Path], None] = write_tokenizer
    # Ends of the names of weights that stay float32 in a float16 model, where products outgrow float16.
    float32: tuple[str, ...] = ()
    shows_special: bool = False  # in the text, special tokens: T5's sentinels are for the reader


def family_of(raw: Mapping) -> Family:
    """The family of a config.json, by its model_type or, where it has none (some umT5), its architecture.

    InputError for one that there is no module for. Imports that module, and no other.
    """
    kind = raw.get("model_type") or _type_by_architecture(raw)
    if not kind:
        raise InputError("config.json has no model_type: not a model of Hugging Face's")
    if not isinstance(kind, str) or kind not in _MODULES:
        missing = _NOT_TAKEN.get(kind, "") if isinstance(kind, str) else ""
        reason = missing and f", which is not taken: {missing}"
        raise InputError(f"a {str(kind)[:50]} model{reason}; there are {', '.join(_MODULES)}")
    return import_module(_MODULES[kind]).FAMILY


def is_ours(raw: Mapping) -> bool:
    """Whether a config.json is of one of these families."""
    try:
        family_of(raw)
    except InputError:
        return False
    return True


def _type_by_architecture(raw: Mapping) -> str | None:
    """The longest model type that the class of config.json is called after, such as T5 in T5Model."""
    architecture = architecture_of(raw)
    kinds = [kind for kind in _MODULES if architecture.lower().startswith(kind.replace("_", ""))]
    return max(kinds, key=len, default=architecture)


def architecture_of(raw: Mapping) -> str:
    """The class that config.json names, such as T5ForConditionalGeneration; "" where it names none."""
    listed = raw.get("architectures")
    return str(listed[0]) if isinstance(listed, list) and listed else ""
