"""Opening the models that a command line names."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checkpoints.folder import converted_path
from common.errors import InputError
from common.files import stamp
from common.reporting import reporter
from decoder import Options, SpeculativeDecoder, load
from demo.pair import demo_model
from distillation.learning import Learner, draft_folder
from distributed.ranks import ALONE, Ranks
from families.loading import find
from speech.transcriber import Transcriber
from terminal.cli import note_types
from terminal.flags import read_draft_vocabulary, read_memory
from text.generation import GenerationDefaults


def merge_adapter(args: argparse.Namespace) -> None:
    """Put the folder in which --adapter-path is merged into --model in place of the model."""
    if args.adapter_path:
        args.model = str(find(args.adapter_path, args.model))


@dataclass(frozen=True)
class Models:
    """What the flags for models say: names or folders, files, and what a decoder has besides."""

    model: str | Path
    draft_model: str | Path | None = None
    draft_vocabulary: str | None = None
    memory: Path | None = None
    prefix_cache: float | None = None  # bytes; None: SpeculativeDecoder's default
    extra_eos_tokens: tuple[str, ...] = ()
    distill: Path | None = None  # the folder of a draft model that learns; Path(): the usual one

    @classmethod
    def of(cls, args: argparse.Namespace, ranks: Ranks = ALONE) -> "Models":
        """The models of a command line, with the demo pair in place of none."""
        model = args.model
        draft_model = args.draft_model
        if model is None:
            model = ranks.together(lambda: demo_model("target"))
            if vars(args).get("distill") is None:
                draft_model = ranks.together(lambda: demo_model("draft"))
        given = vars(args)  # not every command has all of these flags
        return cls(
            model,
            draft_model,
            args.draft_vocabulary,
            args.memory,
            given.get("prefix_cache"),
            tuple(given.get("extra_eos_token") or ()),
            given.get("distill"),
        )

    def stamp(self) -> str:
        """Of the model's files: another conversion has another one."""
        return stamp(find(str(self.model)))


def open_decoder(
    models: Models,
    options: Options,
    ranks: Ranks = ALONE,
    verbose: bool = False,
    has_beams: bool = True,
) -> SpeculativeDecoder:
    """Load the models, the memory and the draft vocabulary. Says on stderr which of the checkpoint's settings are
    ignored and, if `verbose`, which are used. has_beams: the command has --num-beams."""
    model, tokenizer = load(models.model, ranks.group)
    for name in models.extra_eos_tokens:
        token = tokenizer.token_to_id(name)
        if token is None:
            raise InputError(f"--extra-eos-token: {name[:50]!r} is not a token of this model")
        model.config = replace(model.config, eos_token_ids=(*model.config.eos_token_ids, token))
    draft_model = None
    vocabulary = None
    learner = None
    drafts = options.num_draft and options.num_beams == 1
    if models.distill is not None and drafts:
        learner = learner_of(model, models.model, models.distill, serves=not has_beams)
        draft_model = learner.draft if learner else None
    elif models.draft_model and drafts:
        draft_model, _ = load(models.draft_model, ranks.group, split=False)
    if draft_model and models.draft_vocabulary:
        vocabulary = read_draft_vocabulary(models.draft_vocabulary, tokenizer)
    note_types(model, draft_model)
    memory = read_memory(models.memory) if models.memory else None
    decoder = SpeculativeDecoder(
        model, tokenizer, draft_model, memory, vocabulary, models.prefix_cache
    )
    decoder.learner = learner
    defaults = decoder.text.defaults
    if defaults.not_done:
        _note_ignored(defaults, options, has_beams)
    applied = defaults.applied(options) if verbose else {}
    if applied:
        listed = ", ".join(f"{name}={value}" for name, value in applied.items())
        reporter.note(f"used from generation_config.json: {listed}")
    return decoder


def learner_of(model: Any, name: str | Path, folder: Path, serves: bool = False) -> Learner | None:
    """The learner for a model; None, after a note, if it cannot have one. folder: Path(): the usual one"""
    converted = converted_path(str(name))
    try:
        if model.ranks:
            raise InputError("it trains in one process, not under mlx.launch")
        usual = draft_folder(converted)
        return Learner(model, converted.name, usual if folder == Path() else folder, serves)
    except InputError as error:
        reporter.note(f"--distill: {error}")
        return None


def _note_ignored(defaults: GenerationDefaults, options: Options, has_beams: bool) -> None:
    ignored = defaults.ignored(options.num_beams)
    if ignored:
        beams = defaults.not_done.get("num_beams") if options.num_beams == 1 else None
        hint = f" (use --num-beams {beams})" if has_beams and beams else ""
        reporter.note(f"{ignored}{hint}")


def distill_while_decoding(transcriber: Transcriber, folder: Path, serves: bool = False) -> None:
    """Let a speech model learn a draft model. folder, serves: see `learner_of`"""
    model = transcriber.model
    learner = learner_of(model, transcriber.name, folder, serves)
    if learner:
        transcriber.decoder = SpeculativeDecoder(model, transcriber.tokenizer, learner.draft)
        transcriber.decoder.learner = learner


def note_learned(decoder: SpeculativeDecoder) -> None:
    """Say what came of a draft model that was made while the work ran."""
    line = decoder.learner.summary() if decoder.learner else None
    if line:
        reporter.note(line)


def note_alone(decoder: SpeculativeDecoder) -> None:
    """Say on stderr if the model cannot decode in batches."""
    if decoder.max_batch_size(2) == 1:
        reporter.note("this model decodes one prompt at a time (docs/mlx_lm_models.md)")
