"""Opening the models that a command line names."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from apps.cli import cli
from apps.cli.flags import read_draft_vocabulary
from decoder import Options, SpeculativeDecoder, load
from demo.pair import demo_model
from speculative.checkpoints.folder import converted, converted_path, read_json, stamp
from speculative.common.errors import InputError
from speculative.common.files import Busy, locked
from speculative.common.reporting import reporter
from speculative.models.loading import find
from speculative.models.ranks import ALONE, Ranks
from speculative.text.memory import load_memory


def merge_adapter(args: argparse.Namespace) -> None:
    """Put the folder in which --adapter-path is merged into --model in place of the model."""
    if args.adapter_path:
        args.model = str(find(args.adapter_path, args.model))


def merged_from(model: str | Path) -> list[str]:
    """The adapter and the base from which a model was made, as they were named; none of any other model."""
    file = (converted(str(model)) or Path(model)) / "config.json"
    raw = read_json(file) if file.exists() else {}
    return [raw["converted_from"], raw["adapter_base"]] if "adapter_base" in raw else []


@dataclass(frozen=True)
class Models:
    """The flags for models: names or folders, files, and what a decoder has besides."""

    model: str | Path
    draft_model: str | Path | None = None
    draft_vocabulary: str | None = None
    memory: Path | None = None
    prefix_cache: float | None = None  # bytes; None: SpeculativeDecoder's default
    extra_eos_token: tuple[str, ...] | None = None
    distill: Path | None = None  # the folder of a draft model that learns; Path(): the usual one
    verbose: bool = False  # say which settings of its own a model applies

    @classmethod
    def of(cls, args: argparse.Namespace, demo: str = "") -> "Models":
        """The models of a command line, adapters merged, with the demo pair in place of none. demo: what its roles begin with"""
        merge_adapter(args)
        models = cls(**{name: x for name, x in vars(args).items() if name in cls.__annotations__})
        if models.model is None:
            models = replace(models, model=demo_model(f"{demo}target"))
            if models.distill is None:
                models = replace(models, draft_model=demo_model(f"{demo}draft"))
        return models

    def stamp(self) -> str:
        """Of what a text depends on besides its row: another conversion has another one."""
        return stamp(find(str(self.model))) + repr(self.extra_eos_token)


def open_decoder(
    models: Models, options: Options, ranks: Ranks = ALONE, serves: bool = False
) -> SpeculativeDecoder:
    """Load the models, the memory and the draft vocabulary, with notes as in `_note_settings`. serves: for serve.py"""
    model, tokenizer = load(models.model, ranks.group)
    for name in models.extra_eos_token or ():
        token = tokenizer.token_to_id(name)
        if token is None:
            raise InputError(f"--extra-eos-token: {name[:50]!r} is not a token of this model")
        model.config = replace(model.config, eos_token_ids=(*model.config.eos_token_ids, token))
    draft = None
    vocabulary = None
    drafts = options.num_draft and options.num_beams == 1
    if models.distill is not None and drafts:
        draft = learning_draft(model, models.model, models.distill, serves)
    elif models.draft_model and drafts:
        draft, _ = load(models.draft_model, ranks.group, split=False)
    if draft and models.draft_vocabulary:
        vocabulary = read_draft_vocabulary(models.draft_vocabulary, tokenizer)
    note_types(model, draft)
    memory = load_memory(models.memory, reporter.note) if models.memory else None
    decoder = SpeculativeDecoder(model, tokenizer, draft, memory, vocabulary, models.prefix_cache)
    _note_settings(decoder, options, models.verbose, serves)
    return decoder


def note_types(*models: Any) -> None:
    """Say on stderr if weights are in 16 bits or quantized and there is no GPU."""
    modules = [model.parameters() for model in models if isinstance(model, nn.Module)]
    is_narrow = any(x.dtype != mx.float32 for x in dict(tree_flatten(modules)).values())
    if mx.default_device() == mx.cpu and is_narrow:
        slower = "half-precision and quantized weights are several times slower than float32"
        reporter.note(f"without a GPU, {slower}")


def _note_settings(
    decoder: SpeculativeDecoder, options: Options, verbose: bool, serves: bool
) -> None:
    """Say which settings of generation_config.json are ignored and, if `verbose`, which are used."""
    defaults = decoder.text.defaults
    ignored = defaults.ignored(options.num_beams)
    if ignored:
        beams = defaults.not_done.get("num_beams")
        can_search = beams and options.num_beams == 1 and not serves
        reporter.note(f"{ignored} (use --num-beams {beams})" if can_search else ignored)
    if verbose:
        listed = ", ".join(f"{name}={value}" for name, value in defaults.applied(options).items())
        if listed:
            reporter.note(f"used from generation_config.json: {listed}")


def draft_folder(model: Path) -> Path:
    return model.with_name(f"{model.name}-draft")


def learning_draft(model: Any, name: str | Path, folder: Path, serves: bool = False) -> Any:
    """A draft model that learns while a model decodes; None, after a note, if there can be none. Busy if another run's
    learns in the same folder."""
    from apps.distillation.learning import Learner

    usual = converted_path(str(name))
    if folder == Path():
        folder = draft_folder(usual)
    try:
        if model.ranks:
            raise InputError("it trains in one process, not under mlx.launch")
        learner = Learner(model, usual.name, folder, serves)
        cli.at_end.enter_context(locked(folder))
        return learner.draft
    except Busy:
        raise
    except (InputError, OSError) as error:
        reporter.note(f"--distill: {cli.line_of(error)}")
        return None


def note_alone(decoder: SpeculativeDecoder) -> None:
    """Say on stderr if the model cannot decode in batches."""
    if decoder.max_batch_size(2) == 1:
        reporter.note("this model decodes one prompt at a time (docs/mlx_lm_models.md)")
