"""Every family's variants, ours beside transformers' with the same random weights, and what to give both."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from helpers import bart_checkpoints, checkpoints, t5gemma2_checkpoints, t5gemma_checkpoints
from helpers.models import mlx_model, padded_inputs
from helpers.oracle import flat_weights
from speculative.checkpoints.weights import stored_type
from speculative.models.distilled import from_target, own_weights, set_weights

_SLOW = {"bart": bart_checkpoints, "t5gemma": t5gemma_checkpoints, "t5gemma2": t5gemma_checkpoints}
RAW: dict[str, dict] = {
    name: raw
    for module in (checkpoints, *_SLOW.values(), t5gemma2_checkpoints)
    for name, raw in module.VARIANTS.items()
}
VARIANTS = [
    name if name in checkpoints.VARIANTS else pytest.param(name, marks=pytest.mark.slow)
    for name in RAW
]
Changes = Mapping[str, Callable[[torch.Tensor], torch.Tensor]]


def both(raw: dict, seed: int = 0, changes: Changes | None = None) -> tuple[torch.nn.Module, Any]:
    """(torch model, MLX model) with the same weights; `changes` to tensors, by the end of the name."""
    t5 = raw["model_type"] in ("t5", "mt5", "umt5")
    module = checkpoints if t5 else _SLOW.get(raw["model_type"], bart_checkpoints)
    reference = module.torch_model(raw, seed)
    with torch.no_grad():
        for name, tensor in reference.state_dict().items():
            for end, change in (changes or {}).items():
                if name.endswith(end):
                    tensor.copy_(change(tensor))
    arguments = (reference, raw) if module is checkpoints else (reference,)
    with tempfile.TemporaryDirectory() as folder:
        return reference, mlx_model(
            checkpoints.save(Path(folder), raw, module.state_dict(*arguments)), raw
        )


def ours(name: str):
    """The model of one of RAW."""
    return both(RAW[name])[1]


def in_dtype(model, dtype: mx.Dtype):
    """The model as conversion would write it."""
    other = type(model)(model.config)
    name = str(dtype).removeprefix("mlx.core.")
    weights = flat_weights(model)
    other.load_weights([(n, w.astype(getattr(mx, stored_type(n, name)))) for n, w in weights])
    return other


def inputs(config) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `padded_inputs`, with padding where it belongs only: some models count tokens by their ids."""
    sizes = config.vocab_size, getattr(config, "source_vocab_size", config.vocab_size)
    source, mask, target = padded_inputs(min(sizes))
    for tokens in (source, target):
        tokens[tokens == config.pad_token_id] = 2
    source[~mask] = config.pad_token_id
    return source, mask, target


def known(logits: np.ndarray, config) -> np.ndarray:
    """The logits that both sides have: transformers bans Marian's padding later."""
    if not getattr(config, "bans_padding", False):
        return logits
    return np.delete(logits, config.pad_token_id, axis=-1)


def with_states(target, layers=(0,)):
    """A draft model that reads states, untrained."""
    draft = from_target(target, list(layers))
    weights = own_weights(draft)
    mix = mx.random.normal(weights["mix.weight"].shape, key=mx.random.key(1))
    set_weights(draft, weights | {"mix.weight": 0.05 * mix})
    return draft
