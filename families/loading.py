"""Finding a model's folder, converting it on first use, and loading it."""

from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import Tokenizer

from checkpoints.folder import WEIGHTS, converted, is_outdated, read_json
from distributed.ranks import Ranks
from families import causal_loading, conversion
from families.converted import load_converted
from families.distilled import Distilled
from families.registry import model_type


def find(name: str, base: str | None = None) -> Path:
    """The folder that a user means: a converted one or one for mlx-lm, by its path or its name under mlx_models/, or a
    checkpoint, a folder or owner/name on the hub, which is converted on first use, and a folder again when it has
    changed. base: the model that an adapter of this name is merged into. InputError if there is none."""
    path = converted(name, base)
    if path is None:
        return causal_loading.find_mlx_lm_folder(name, base) or conversion.convert_first(name, base)
    return conversion.convert_again(name, path) if is_outdated(path) else path


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
        return causal_loading.load(str(name), path, group, split)
    config = ranks.together(lambda: read_json(path / "config.json"))
    ranks.check_folder(path)
    if model_type(config) == "distilled":
        draft: Any = ranks.together(lambda: Distilled.load(path, config))
        return draft, draft.text  # its target has the tokenizer
    model = ranks.together(lambda: load_converted(str(name), path, config, ranks, split))
    return model, model.text.tokenizer
