"""Small random models of mlx-lm's architectures, and what they write here and with mlx-lm alone."""

import dataclasses
import importlib
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from types import ModuleType

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path

from .causal_configs import COMMON, MORE, VOCAB


def build(name: str, seed: int = 0, noise: float = 0.0, **changes) -> nn.Module:
    """mlx-lm's model of the file models/<name>.py, with random weights that are all in play, and
    relative noise on each: a draft model that is often right."""
    sys.modules.setdefault("hf_olmo", ModuleType("hf_olmo"))  # olmo.py asks for it and uses nothing
    with redirect_stdout(StringIO()):
        module = importlib.import_module(f"mlx_lm.models.{name}")
    values = MORE.get(name, {}) | changes
    model = module.Model(module.ModelArgs.from_dict(arguments(module, **values)))
    size = sum(weight.size for _, weight in tree_flatten(model.parameters()))
    assert size < 5_000_000, f"{name} is not small: {size} weights"
    return randomised(model, seed, noise)


def arguments(module, **changes) -> dict:
    fields = {field.name for field in dataclasses.fields(module.ModelArgs)}
    small = {key: value for key, value in COMMON.items() if key in fields}
    return dict(model_type=module.__name__.rpartition(".")[2]) | small | changes


def randomised(model: nn.Module, seed: int = 0, noise: float = 0.0) -> nn.Module:
    rng, other = np.random.default_rng(seed), np.random.default_rng(seed + 1)

    def draw(name: str, weight: mx.array) -> mx.array:
        scale = 0.2 if weight.ndim < 2 else 1.0 if "embed" in name else weight.shape[-1] ** -0.5
        mean = 1.0 if weight.ndim < 2 and "bias" not in name else 0.0
        drawn = rng.normal(mean, scale, weight.shape)
        drawn += noise * scale * other.normal(size=weight.shape)
        return mx.array(drawn.astype(np.float32))

    model.eval()
    model.update(tree_map_with_path(draw, model.parameters()))
    return model


def alone(model: nn.Module, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """mlx-lm's own greedy tokens."""
    from mlx_lm.generate import generate_step

    steps = generate_step(mx.array(prompt), model, max_tokens=max_tokens)
    return [int(token) for token, _ in steps]


def prompts(count: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of 1 to `longest` tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.linspace(1, longest, count).astype(int)
    rng.shuffle(lengths)
    return [rng.integers(3, VOCAB, n).tolist() for n in lengths]
