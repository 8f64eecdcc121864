"""The folder of a draft model made from its target. What it holds gets no worse."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apps.distillation.evaluation import call_times
from apps.distillation.texts import TrainingText
from apps.distillation.training import Training
from speculative.checkpoints.folder import WEIGHTS, read_json
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.models import distilled
from speculative.models.registry import DISTILLED

KEPT = 1000  # about so many tokens of texts are kept of the latest run, and of those before


def trained_draft(folder: Path, model: Any) -> Any:
    """The draft model of `model` in a folder; None if there is none. InputError if there is something else."""
    names = {path.name for path in folder.glob("[!.]*")}
    config = read_json(folder / "config.json") if "config.json" in names else {}
    if names and config.get("model_type") != DISTILLED:
        raise InputError(f"{folder} is something else: choose another folder")
    if WEIGHTS not in names:
        return None
    return distilled.Distilled(folder).for_target(model)


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


def run(training: Training, name: str, folder: Path, dtype: str) -> None:
    """Train the draft model of the target `name` to the end: say how far it is, and save it whenever it is better."""
    times = call_times(training.narrow_draft, training.target, training.texts[0].prompt)
    for evaluation in training:
        if training.is_news(evaluation) and not training.is_worse:
            save(training, name, folder, dtype, training.held_out)
        done = f"step {training.steps_done}, {training.seconds / 60:.1f} min"
        line = f"{done}: {evaluation}, up to {evaluation.speedup(times):.2f} times plain"
        if evaluation.agreement < 0.8:
            line += f" (the model itself would write only {evaluation.agreement:.0%} of these texts' tokens: they teach less)"
        if training.is_worse:
            line += "; not kept: the last one is better on the texts that it was made from (--output FOLDER keeps both)"
        reporter.note(line)
