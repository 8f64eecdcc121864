"""Models of BART's family whose texts hang on their sources and on what was written; else on biases."""

from helpers.bart_checkpoints import VARIANTS
from helpers.pairs import both

KINDS = ["bart", "mbart", "m2m", "marian", "pegasus"]
LIVELY = {
    "fc2.weight": lambda w: 3 * w,
    "out_proj.weight": lambda w: 3 * w,
    "q_proj.weight": lambda w: 3 * w,
    "k_proj.weight": lambda w: 3 * w,
    "bias": lambda w: w / 5,
}


def lively_model(name: str):
    return both(VARIANTS[name], seed=1, changes=LIVELY)[1]
