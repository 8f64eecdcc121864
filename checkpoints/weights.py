"""Writing a model's weights, cast and quantized, with one block of one tensor in memory at a time."""

import warnings
import zipfile
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import mlx.core as mx
import numpy as np

from checkpoints.quantization import Quantization, is_matrix
from checkpoints.tensors import BFLOAT16, Tensor, to_mlx, to_numpy, write_npz_member
from common.errors import InputError
from common.reporting import Advance, reporter

DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": BFLOAT16,
}


def stored_dtype(name: str, dtype: str, float32: tuple[str, ...]) -> np.dtype:
    """The type in which a model of `dtype` stores the weight `name`. float32: endings of names that stay
    float32 in a float16 model."""
    if dtype == "float16" and name.endswith(float32):
        return DTYPES["float32"]
    return DTYPES[dtype]


def stored_size(
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str,
    float32: tuple[str, ...],
    quantization: Quantization | None,
) -> int:
    """Bytes of all weights with these shapes. float32: as in `stored_dtype`."""
    total = 0
    for name, shape in shapes.items():
        itemsize = stored_dtype(name, dtype, float32).itemsize
        if quantization and quantization.covers(name, shape):
            total += quantization.size(shape, itemsize)
        else:
            total += prod(shape) * itemsize
    return total


def write_weights(
    path: Path,
    tensors: dict[str, Tensor],
    dtype: str,
    float32: tuple[str, ...] = (),
    quantization: Quantization | None = None,
) -> None:
    """Write tensors to an npz file under our names. float32: as in `stored_dtype`. Weights that are not
    finite in their new type are written anyway and named in a warning."""
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if quantization:
        _check_groups(shapes, quantization)
    size = stored_size(shapes, dtype, float32, None)
    progress = reporter.bar(path.parent.name, size, "B", 0)
    wrong: dict[str, None] = {}  # an ordered set
    with progress as advance, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in tensors.items():
            stored = stored_dtype(name, dtype, float32)
            blocks = _cast(tensor, stored, name, wrong, advance)
            if quantization and quantization.covers(name, tensor.shape):
                _write_quantized(archive, name, tensor.shape, blocks, quantization)
            else:
                write_npz_member(archive, name, stored, tensor.shape, blocks)
    if wrong:
        warnings.warn(f"warning: NaN or infinite as {dtype}: {', '.join(wrong)}", stacklevel=2)


def _check_groups(shapes: dict[str, tuple[int, ...]], quantization: Quantization) -> None:
    """Warn if some matrices cannot be quantized; InputError if none can."""
    matrices = [weight for weight in shapes.items() if is_matrix(*weight)]
    left = len(matrices) - sum(quantization.covers(*weight) for weight in matrices)
    reason = f"row lengths are not multiples of the group size {quantization.group_size}"
    if left == len(matrices):
        raise InputError(f"no weight can be quantized: {reason}")
    if left:
        message = f"{left} of {len(matrices)} matrices are not quantized: {reason}"
        warnings.warn(message, stacklevel=3)


def _cast(
    tensor: Tensor, dtype: np.dtype, name: str, wrong: dict[str, None], advance: Advance
) -> Iterator[np.ndarray]:
    """The tensor's blocks in their new type; adds `name` to `wrong` if a value is not finite."""
    to = {np.dtype("<f4"): mx.float32, np.dtype("<f2"): mx.float16, BFLOAT16: mx.bfloat16}[dtype]
    for block in tensor.blocks():
        array = to_mlx(block).astype(to)
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
