"""Tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053): each rank has some of the attention heads and of the
feed-forward units, and one sum over the ranks ends each block. All else is whole on every rank."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.nn.layers.distributed import shard_inplace, shard_linear
from mlx.utils import tree_flatten, tree_map_with_path

from checkpoints.quantization import Quantization
from checkpoints.tensors import to_mlx
from errors import InputError

# What is split of a layer, by the last part of its name; the bias is [buckets, heads].
_OUTPUTS, _INPUTS = ("query", "key", "value", "gate", "up"), ("out", "down")


def shard(model: nn.Module, group: mx.distributed.Group) -> None:
    """Leave each layer of a T5 its shard, in place; weights that are not evaluated take no memory."""

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
    """Load this rank's part of the arrays, and read no other, into a model from `shard`."""
    weights = []
    for name, parameter in dict(tree_flatten(model.parameters())).items():
        weight = to_mlx(_part(arrays[name], parameter.shape, rank))
        if weight.dtype == mx.float16 and ".out." in name:
            # One rank's part of a sum may overflow float16 where the sum does not.
            weight = weight.astype(mx.float32)
        weights.append((name, weight))
    model.load_weights(weights)


def _part(array: np.ndarray, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """The part of `array` that has this shape: the rank's along the axis where they differ."""
    index = (
        slice(None) if part == whole else slice(rank * part, (rank + 1) * part)
        for part, whole in zip(shape, array.shape, strict=True)
    )
    return np.ascontiguousarray(array[tuple(index)])  # MLX keeps two copies of what is not


def check_ranks(config: Any, quantization: Quantization | None, size: int) -> None:
    """InputError where the model cannot be split among so many ranks."""
    parts = f"{config.num_heads} attention heads and {config.d_ff} feed-forward units"
    divides = config.num_heads % size == config.d_ff % size == 0
    if quantization:
        group = quantization.group_size
        parts += f", quantized in groups of {group},"
        # The inputs of the layers that are split along them: a group lies on one rank.
        widths = config.num_heads * config.d_kv, config.d_ff
        divides &= all(width // size % group == 0 for width in widths if width % group == 0)
    if not divides:
        raise InputError(f"{parts} cannot be split among {size} ranks")
