"""Models of BART's family beside transformers', with the same random weights, and what to give both."""

import tempfile
from pathlib import Path

import numpy as np
import torch

from families.bart import Config, Model
from helpers import bart_checkpoints, checkpoints
from helpers.bart_checkpoints import VARIANTS
from helpers.models import mlx_model

KINDS = ["bart", "mbart", "m2m", "marian", "pegasus"]
B, S, T = 4, 21, 18  # rows, source tokens and decoder tokens of `inputs`
# With these a random model's text hangs on its source and on what was written; without, on biases.
LIVELY = {
    "fc2.weight": lambda w: 3 * w,
    "out_proj.weight": lambda w: 3 * w,
    "q_proj.weight": lambda w: 3 * w,
    "k_proj.weight": lambda w: 3 * w,
    "bias": lambda w: w / 5,
}


def both(folder: Path, raw: dict, seed: int = 0, **changes) -> tuple[torch.nn.Module, Model]:
    """(torch model, MLX model) with the same weights; `changes` to tensors, by the end of the name."""
    reference = bart_checkpoints.torch_model(raw, seed)
    with torch.no_grad():
        for name, tensor in reference.state_dict().items():
            for end, change in changes.items():
                if name.endswith(end):
                    tensor.copy_(change(tensor))
    checkpoints.save(folder, raw, bart_checkpoints.state_dict(reference))
    return reference, mlx_model(folder, raw)


def lively_model(name: str) -> Model:
    """A variant whose texts hang on the source and on every position."""
    with tempfile.TemporaryDirectory() as folder:
        return both(Path(folder), VARIANTS[name], seed=1, **LIVELY)[1]


def inputs(config: Config) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source tokens, their mask (rows whole, padded on the right, on the left), decoder tokens."""
    rng = np.random.default_rng(0)
    mask = np.ones((B, S), bool)
    mask[1, 13:] = mask[2, :7] = mask[3, 1:] = False
    source = rng.integers(3, config.source_vocab_size - 3, (B, S))
    source[source == config.pad_token_id] = 2
    source[~mask] = config.pad_token_id
    target = rng.integers(3, config.vocab_size - 3, (B, T))
    target[target == config.pad_token_id] = 2
    target[:, 0] = config.decoder_start_token_id
    return source, mask, target


def known(logits: np.ndarray, config: Config) -> np.ndarray:
    """The logits that both sides have: transformers bans Marian's padding later."""
    if not config.bans_padding:
        return logits
    return np.delete(logits, config.pad_token_id, axis=-1)
