"""What a command says on stderr about the models that it has loaded."""

import sys

from decoder import SpeculativeDecoder
from speculative.options import Options


def report_generation(model, options: Options, verbose: bool, beams: bool = True) -> None:
    """Say on stderr which of the checkpoint's generation settings are ignored and, if `verbose`, which are used.
    beams: whether the command has --num-beams."""
    ignored = dict(model.generation.not_done)
    if options.num_beams > 1:
        ignored.pop("num_beams", None)
    hint = f" (use --num-beams {ignored['num_beams']})" if beams and "num_beams" in ignored else ""
    taken = model.generation.taken(options) if verbose else {}
    for what, settings, after in (("ignored", ignored, hint), ("used", taken, "")):
        if settings:
            listed = ", ".join(f"{name}={value}" for name, value in settings.items())
            print(f"{what} from generation_config.json: {listed}{after}", file=sys.stderr)


def report_alone(decoder: SpeculativeDecoder) -> None:
    """Say on stderr if the model cannot decode in batches."""
    if decoder.at_most(2) == 1:
        print("this model decodes one prompt at a time (docs/mlx_lm_models.md)", file=sys.stderr)
