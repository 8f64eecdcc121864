"""Finding a model's folder, converting it on first use, and loading it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import Tokenizer

from speculative.checkpoints.folder import WEIGHTS, converted, is_outdated, read_json
from speculative.checkpoints.tensors import map_npz, to_mlx
from speculative.checkpoints.weights import Quantization
from speculative.common.errors import errors_name
from speculative.models import ram
from speculative.models.family import Family
from speculative.models.mlx_lm_folders import find_mlx_lm_folder, is_mlx_lm_folder
from speculative.models.ranks import ALONE, Ranks, check_ranks, load_shard, shard
from speculative.models.registry import DISTILLED, build, family_of
from speculative.text.generation import GenerationDefaults
from speculative.text.languages import Languages
from speculative.text.text_side import TextSide
from speculative.text.tokenizer import SOURCE_FILE, load_tokenizer


def find(name: str, base: str | None = None) -> Path:
    """The folder that a user means: a converted one or one for mlx-lm, by its path or its name under mlx_models/, or that of a
    checkpoint, which is converted first. base: the model that an adapter of this name is merged into"""
    if base is None and is_mlx_lm_folder(Path(name)):
        return Path(name)
    path = converted(name, base)
    if path is None and base is None:
        path = find_mlx_lm_folder(name)
    if path and not is_outdated(path):
        return path
    from speculative.models import conversion

    if path:
        return conversion.convert_again(name, path, base)
    return conversion.convert_first(name, base)


def load(
    name: str | Path, group: mx.distributed.Group | None = None, split: bool = True
) -> tuple[Any, Tokenizer]:
    """The model and tokenizer of whatever `find` finds. `model.text` is its text side (speculative/text/text_side.py).

    group: `mx.distributed.init()`, in processes that mlx.launch started. Without `split` each holds all of the layers."""
    ranks = Ranks(group) if group else ALONE
    path = ranks.together(lambda: find(str(name)))
    if not (path / WEIGHTS).exists():
        from speculative.models import causal_loading

        return causal_loading.load(str(name), path, group, split)
    config = ranks.together(lambda: read_json(path / "config.json"))
    if group:
        ranks.check_folder(path)
    if config.get("model_type") == DISTILLED:
        from speculative.models import distilled

        draft: Any = ranks.together(lambda: distilled.Distilled(path))
        return draft, draft.text  # its target has the tokenizer
    model = ranks.together(lambda: _load_converted(str(name), path, config, ranks, split))
    return model, model.text.tokenizer


def _load_converted(name: str, path: Path, raw: Mapping, ranks: Ranks, split: bool) -> Any:
    with errors_name(path):
        family = family_of(raw)
        stored = raw.get("quantization")
        quantization = stored and Quantization.from_config(stored)
        config = family.config.from_dict(raw)
    arrays = map_npz(path / WEIGHTS)
    with errors_name(path / WEIGHTS):
        model = build(family.model(config), arrays, quantization)
    if split and ranks.group and ranks.size > 1:
        check_ranks(model, quantization, ranks.size)
        shard(model, ranks.group)
        load_shard(model, arrays, ranks.rank)
        model.ranks = ranks
    else:
        model.load_weights(list(ram.load_weights(name, path, arrays, to_mlx).items()))
    mx.eval(model.parameters())  # what is lazy can only be computed by the thread that made it
    model.text = _text_side(path, family, model)
    model.origin = str(raw.get("converted_from", path.name))
    return model


def _text_side(path: Path, family: Family, model: Any) -> TextSide:
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
        start_token=model.config.decoder_start_token_id if model.attend_to else None,
    )
