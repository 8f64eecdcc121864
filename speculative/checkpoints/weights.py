"""A model's weights, cast and quantized (modes and their names are MLX's), and writing them: one block of one tensor is in
memory at a time."""

import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from speculative.checkpoints.tensors import (
    BFLOAT16,
    Tensor,
    Tensors,
    to_mlx,
    to_numpy,
    write_npz_member,
)
from speculative.common.errors import InputError
from speculative.common.reporting import Advance, reporter

DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": BFLOAT16,
}
# mode: (bits, group sizes), defaults first
MODES = {
    "affine": ((4, 2, 3, 5, 6, 8), (64, 32, 128)),
    "mxfp4": ((4,), (32,)),
    "nvfp4": ((4,), (16,)),
    "mxfp8": ((8,), (32,)),
}
BITS, GROUP_SIZES = (sorted({n for mode in MODES.values() for n in mode[i]}) for i in (0, 1))


def is_matrix(name: str, module: nn.Module) -> bool:
    """Whether it has a matrix to multiply by: a linear layer, or an embedding of tokens, called so."""
    is_embedding = isinstance(module, nn.Embedding) and "embed" in name.rpartition(".")[2]
    return is_embedding or isinstance(module, nn.Linear)


@dataclass(frozen=True)
class Quantization:
    """Weights of `bits` bits; each `group_size` of them in a row share a scale and, in the affine mode, an offset."""

    mode: str = "affine"
    bits: int = 0  # 0: the mode's default
    group_size: int = 0

    def __post_init__(self):
        if self.mode not in MODES:
            raise InputError(f"mode is {self.mode!r}, not one of {', '.join(MODES)}")
        for field, allowed in zip(("bits", "group_size"), MODES[self.mode], strict=True):
            value = getattr(self, field)
            if not value:
                object.__setattr__(self, field, allowed[0])
            elif value not in allowed:
                listed = ", ".join(map(str, sorted(allowed)))
                raise InputError(f"{field} is {value!r}, but the mode {self.mode} needs {listed}")

    @classmethod
    def from_config(cls, values: Any) -> "Quantization":
        """From what a converted config.json has under "quantization"."""
        if not isinstance(values, dict) or not values.keys() <= {"mode", "bits", "group_size"}:
            raise InputError(f"config.json: unknown quantization {values!r}")
        return cls(**values)

    def covers(self, name: str, module: nn.Module) -> bool:
        """Whether a module is quantized: a matrix whose rows divide into groups."""
        return is_matrix(name, module) and module.weight.shape[1] % self.group_size == 0

    def covered(self, model: nn.Module) -> set[str]:
        return {f"{name}.weight" for name, part in model.named_modules() if self.covers(name, part)}

    def size(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Bytes of a quantized weight of this shape; itemsize: bytes of a scale or offset."""
        per_group = 2 * itemsize if self.mode == "affine" else 1
        return prod(shape) * self.bits // 8 + prod(shape) // self.group_size * per_group


def stored_type(name: str, dtype: str) -> str:
    """The type in which a model of `dtype` stores the weight `name`. One overflows float16: see transformer.FeedForward."""
    exact = dtype == "float16" and name.endswith("feed_forward.down.weight")
    return "float32" if exact else dtype


def stored_size(model: nn.Module, dtype: str, quantization: Quantization | None = None) -> int:
    """Bytes of a model's weights once they are stored in `dtype`."""
    covered = quantization.covered(model) if quantization else set()
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    total = 0
    for name, weight in weights.items():
        itemsize = DTYPES[stored_type(name, dtype)].itemsize
        if quantization and name in covered:
            total += quantization.size(weight.shape, itemsize)
        else:
            total += weight.size * itemsize
    return total


def write_weights(
    path: Path, tensors: Tensors, dtype: str, model: nn.Module, quantization: Quantization | None
) -> None:
    """Write a model's tensors to an npz file under our names. Those that are not finite in their new type are named in a warning."""
    covered: set[str] = set()
    if quantization:
        covered = quantization.covered(model)
        count = sum(is_matrix(*named) for named in model.named_modules())
        reason = f"row lengths are not multiples of the group size {quantization.group_size}"
        if not covered:
            raise InputError(f"no weight can be quantized: {reason}")
        if len(covered) < count:
            left = f"{count - len(covered)} of {count} matrices are not quantized"
            warnings.warn(f"{left}: {reason}", stacklevel=2)
    progress = reporter.bar(path.parent.name, stored_size(model, dtype), "B", 0)
    wrong: dict[str, None] = {}  # an ordered set
    with progress as advance, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in tensors.items():
            stored = stored_type(name, dtype)
            blocks = _cast(tensor, stored, name, wrong, advance)
            if quantization and name in covered:
                _write_quantized(archive, name, tensor.shape, blocks, quantization)
            else:
                write_npz_member(archive, name, DTYPES[stored], tensor.shape, blocks)
    if wrong:
        warnings.warn(f"warning: NaN or infinite as {dtype}: {', '.join(wrong)}", stacklevel=2)


def _cast(
    tensor: Tensor, dtype: str, name: str, wrong: dict[str, None], advance: Advance
) -> Iterator[np.ndarray]:
    """The tensor's blocks in their new type; adds `name` to `wrong` if a value is not finite."""
    for block in tensor.blocks():
        array = to_mlx(block).astype(getattr(mx, dtype))
        if not mx.isfinite(array).all():
            wrong[name] = None
        yield to_numpy(array)
        advance(array.nbytes)


def _write_quantized(
    archive: zipfile.ZipFile, name: str, shape: tuple, blocks: Iterator, quantization: Quantization
) -> None:
    """Write the packed weight block by block, then its scales and offsets, which are small."""
    scales: list[np.ndarray] = []
    biases: list[np.ndarray] = []  # none in some modes

    def packed() -> Iterator[np.ndarray]:
        for block in blocks:
            weight, block_scales, *block_biases = mx.quantize(to_mlx(block), **vars(quantization))
            scales.append(to_numpy(block_scales))
            biases.extend(map(to_numpy, block_biases))
            yield to_numpy(weight)

    rows, width = shape
    packed_shape = rows, width * quantization.bits // 32
    write_npz_member(archive, name, np.dtype("<u4"), packed_shape, packed())
    groups = rows, width // quantization.group_size
    for suffix, parts in (("scales", scales), ("biases", biases)):
        if parts:
            member = name.removesuffix("weight") + suffix
            write_npz_member(archive, member, parts[0].dtype, groups, parts)
