"""Writing a model's weights, cast and quantized, with one block of one tensor in memory at a time."""

import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from checkpoints.quantization import Quantization, is_matrix
from checkpoints.tensors import BFLOAT16, Tensor, to_mlx, to_numpy, write_npz_member
from common.errors import InputError
from common.reporting import Advance, reporter

DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": BFLOAT16,
}


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
    path: Path,
    tensors: dict[str, Tensor],
    dtype: str,
    model: nn.Module,
    quantization: Quantization | None = None,
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
    archive: zipfile.ZipFile,
    name: str,
    shape: tuple[int, ...],
    blocks: Iterator[np.ndarray],
    quantization: Quantization,
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
