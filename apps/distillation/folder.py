"""The folder of a draft model made from its target. What it holds gets no worse."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apps.distillation.texts import TrainingText
from apps.distillation.training import Training
from speculative.checkpoints.folder import WEIGHTS, read_json
from speculative.common.errors import InputError
from speculative.models import distilled

KEPT = 1000  # about so many tokens of texts are kept of the latest run, and of those before


def draft_folder(model: Path) -> Path:
    """The usual folder of a converted model's draft model."""
    return model.with_name(f"{model.name}-draft")


def trained_draft(folder: Path, model: Any) -> Any:
    """The draft model of `model` in a folder; None if there is none. InputError if there is something else."""
    names = {path.name for path in folder.glob("[!.]*")}
    config = read_json(folder / "config.json") if "config.json" in names else {}
    if names and config.get("model_type") != distilled.KIND:
        raise InputError(f"{folder} is something else: choose another folder")
    if WEIGHTS not in names:
        return None
    return distilled.Distilled(folder, config).for_target(model)


def save(
    training: Training, name: str, folder: Path, dtype: str, held_out: Sequence[TrainingText]
) -> None:
    """Write the draft model of the target `name` as it is at its best, with some of these texts and of the earlier ones."""
    assert training.best
    target = training.target
    kept = dict[int, distilled.HeldOut]()
    for texts in (training.earlier, held_out):
        tokens = 0
        for text in sorted(texts, key=lambda text: text.order):
            if tokens < KEPT:
                kept[text.order] = target.prompt_array(text.prompt), text.tokens, text.prefix
            tokens += len(text.tokens)
    training.draft.held_out = tuple(kept.values())
    distilled.save(training.draft, target, name, folder, dtype, training.best.accuracy)
