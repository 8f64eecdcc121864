"""Tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053): each rank holds a part of the attention heads and
feed-forward units, and each block ends with one sum over the ranks. Every rank holds all other weights."""

from collections.abc import Mapping
from math import gcd

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.nn.layers.distributed import shard_inplace, shard_linear
from mlx.utils import tree_flatten, tree_map_with_path

from checkpoints.tensors import to_mlx
from checkpoints.weights import Quantization
from common.errors import InputError

# Whether a layer's outputs or inputs are split, by the last part of its name. The bias is [buckets, heads].
_OUTPUTS, _INPUTS = ("query", "key", "value", "gate", "up"), ("out", "down")


def shard(model: nn.Module, group: mx.distributed.Group) -> None:
    """Reduce each layer of a T5 to this rank's shard, in place; unevaluated weights take no memory."""

    def shard_layer(name: str, layer: nn.Module) -> nn.Module:
        if "relative_bias" in name:
            shard_inplace(layer, lambda path, weight: 1, group=group)
            return layer
        last = name.rpartition(".")[2]
        if last in _OUTPUTS:
            return shard_linear(layer, "all-to-sharded", group=group)
        return shard_linear(layer, "sharded-to-all", group=group) if last in _INPUTS else layer

    layers = tree_map_with_path(shard_layer, model.leaf_modules(), is_leaf=nn.Module.is_module)
    model.update_modules(layers)


def load_shard(model: nn.Module, arrays: Mapping[str, np.ndarray], rank: int) -> None:
    """Load this rank's parts of the arrays into a model from `shard`; no other part is read."""
    weights = []
    for name, parameter in dict(tree_flatten(model.parameters())).items():
        weight = to_mlx(_part(arrays[name], parameter.shape, rank))
        if weight.dtype == mx.float16 and ".out." in name:
            # One rank's part of a sum may overflow float16 even if the sum does not.
            weight = weight.astype(mx.float32)
        weights.append((name, weight))
    model.load_weights(weights)


def _part(array: np.ndarray, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """The rank's part of `array`, of this shape: a slice along the axis in which the shapes differ."""
    index = (
        slice(None) if part == whole else slice(rank * part, (rank + 1) * part)
        for part, whole in zip(shape, array.shape, strict=True)
    )
    return np.ascontiguousarray(array[tuple(index)])  # MLX would keep two copies of a view


def check_ranks(model: nn.Module, quantization: Quantization | None, size: int) -> None:
    """InputError if the model cannot be split among `size` ranks."""
    heads, units, widths = [], [], []
    for _, module in model.named_modules():
        if "key" in module:
            heads.append(len(module.key.weight) // module.head_width)
            widths.append(len(module.query.weight))
        if "up" in module:
            units.append(len(module.up.weight))
    parts = f"{gcd(*heads)} attention heads and {gcd(*units)} feed-forward units"
    divides = all(count % size == 0 for count in heads + units)
    if quantization:
        group = quantization.group_size
        parts += f", quantized in groups of {group},"
        # Input widths of the layers split along them: no group may span two ranks.
        divides &= all(n // size % group == 0 for n in widths + units if n % group == 0)
    if not divides:
        raise InputError(f"{parts} cannot be split among {size} ranks")
