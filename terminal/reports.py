"""What a command says on stderr about the models that it has loaded."""

import sys

from decoder import SpeculativeDecoder
from speculative.options import Options


def report_generation(model, options: Options, verbose: bool, beams: bool = True) -> None:
    """Say on stderr which of the checkpoint's generation settings are ignored and, if `verbose`, which are used.
    beams: whether the command has --num-beams."""
    if ignored := model.generation.ignored(options.num_beams):
        beams = beams and options.num_beams == 1 and "num_beams" in model.generation.not_done
        hint = f" (use --num-beams {model.generation.not_done['num_beams']})" if beams else ""
        print(f"{ignored}{hint}", file=sys.stderr)
    if taken := model.generation.taken(options) if verbose else {}:
        listed = ", ".join(f"{name}={value}" for name, value in taken.items())
        print(f"used from generation_config.json: {listed}", file=sys.stderr)


def report_alone(decoder: SpeculativeDecoder) -> None:
    """Say on stderr if the model cannot decode in batches."""
    if decoder.at_most(2) == 1:
        print("this model decodes one prompt at a time (docs/mlx_lm_models.md)", file=sys.stderr)
