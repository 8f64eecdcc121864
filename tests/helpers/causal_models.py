"""Small random models of mlx-lm's architectures, and what they write here and with mlx-lm alone."""

import dataclasses
import importlib
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from types import ModuleType
from unittest.mock import patch

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path

from families.causal import CausalModel
from speculative import rounds
from speculative.drafting import CombinedDrafter, InputDrafter, ModelDrafter, padded
from speculative.options import Options

from .causal_configs import COMMON, MORE, VOCAB


def build(name: str, seed: int = 0, **changes) -> nn.Module:
    """mlx-lm's model of the file models/<name>.py, with random weights that are all in play."""
    sys.modules.setdefault("hf_olmo", ModuleType("hf_olmo"))  # olmo.py asks for it and uses nothing
    with redirect_stdout(StringIO()):
        module = importlib.import_module(f"mlx_lm.models.{name}")
    values = MORE.get(name, {}) | changes
    model = module.Model(module.ModelArgs.from_dict(arguments(module, **values)))
    size = sum(weight.size for _, weight in tree_flatten(model.parameters()))
    assert size < 5_000_000, f"{name} is not small: {size} weights"
    return randomised(model, seed)


def arguments(module, **changes) -> dict:
    fields = {field.name for field in dataclasses.fields(module.ModelArgs)}
    small = {key: value for key, value in COMMON.items() if key in fields}
    return dict(model_type=module.__name__.rpartition(".")[2]) | small | changes


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    rng = np.random.default_rng(seed)

    def draw(name: str, weight: mx.array) -> mx.array:
        scale = 0.2 if weight.ndim < 2 else 1.0 if "embed" in name else weight.shape[-1] ** -0.5
        mean = 1.0 if weight.ndim < 2 and "bias" not in name else 0.0
        return mx.array(rng.normal(mean, scale, weight.shape).astype(np.float32))

    model.eval()
    model.update(tree_map_with_path(draw, model.parameters()))
    return model


def disturbed(model: nn.Module, twin: nn.Module, noise: float, seed: int = 1) -> nn.Module:
    """`twin`, of the same architecture, with the model's weights and relative noise on each."""
    rng = np.random.default_rng(seed)

    def shift(name: str, weight: mx.array) -> mx.array:
        scale = noise * float(weight.std())
        return weight + mx.array(rng.normal(0, scale, weight.shape).astype(np.float32))

    twin.update(tree_map_with_path(shift, model.parameters()))
    return twin


def alone(model: nn.Module, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """mlx-lm's own greedy tokens."""
    from mlx_lm.generate import generate_step

    steps = generate_step(mx.array(prompt), model, max_tokens=max_tokens)
    return [int(token) for token, _ in steps]


class _Decoding(rounds.Decoding):
    """The loop, for rows whose tokens begin with their prompt."""

    def _admit(self, rows):
        self.sampler = self.options.sampler([row.seed for row in self.rows])
        for row in rows:
            row.tokens = self.model.prefix(row.source)
        tokens, mask = padded([row.source for row in rows], self.model.config.pad_token_id)
        return mx.array(tokens), mask

    def _encoded(self, rows):
        self.cache.wait()


class _Lookup(InputDrafter):
    """Prompt lookup, for rows whose tokens begin with their prompt."""

    def offers(self, rows):
        sizes = [len(copier.text) - copier.output_size for copier in self._copiers]
        return super().offers([r and [0, *r[n:]] for r, n in zip(rows, sizes, strict=True)])


def drafters(models: dict[str, CausalModel]) -> dict:
    """Every kind of drafter, by name; a draft model under its own."""
    found = {name: ModelDrafter(model) for name, model in models.items()}
    found["lookup"] = _Lookup()
    first = next(iter(models.values()))
    return found | {"both": CombinedDrafter(_Lookup(), ModelDrafter(first))}


def decode(
    model: CausalModel, drafter, prompts: Sequence, batch_size: int, **options
) -> list[rounds.Row]:
    """The finished rows of the prompts, in their order; a finished row's place goes to the next."""
    rows = [rounds.Row(list(prompt), str(i).encode()) for i, prompt in enumerate(prompts)]
    with patch.object(rounds, "Decoding", _Decoding):
        for _ in rounds.decode(model, drafter, rows, Options(**options), batch_size):
            pass
    return rows


def written(row: rounds.Row) -> list[int]:
    """What was generated of a row's tokens."""
    return row.tokens[len(row.source) :]


def prompts(count: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of 1 to `longest` tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.linspace(1, longest, count).astype(int)
    rng.shuffle(lengths)
    return [rng.integers(3, VOCAB, n).tolist() for n in lengths]


def architectures() -> list[str]:
    """The names of mlx-lm's files that define a model."""
    from pathlib import Path

    import mlx_lm.models

    files = sorted(Path(mlx_lm.models.__path__[0]).glob("*.py"))
    return [file.stem for file in files if "class ModelArgs" in file.read_text()]
