"""Safetensors files, read without torch: the safetensors package reads bfloat16 only into torch.

Format: https://github.com/huggingface/safetensors#format
"""

import json
from math import prod
from pathlib import Path

import numpy as np

from checkpoints.tensors import BFLOAT16, MAX_HEADER, Tensor, are_sizes
from errors import InputError

_DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file: 8 bytes of header length, a JSON header, the data."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise InputError(f"{path}: truncated, or not a safetensors file")
        if length > MAX_HEADER:
            raise InputError(f"{path}: the header is too large: {length} bytes")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise InputError(f"{path}: the header is not JSON") from None
    if not isinstance(header, dict):
        raise InputError(f"{path}: the header is not a JSON object")
    header.pop("__metadata__", None)
    return {n: _safetensor(path, n, entry, 8 + length, size) for n, entry in header.items()}


def _safetensor(path: Path, name: str, entry: dict, start: int, size: int) -> Tensor:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        known = dtype in _DTYPES
    except (TypeError, KeyError, ValueError):
        raise InputError(f"{path}: {name} has a malformed header entry") from None
    if not known:
        raise InputError(f"{path}: {name} is {dtype}, not a floating-point type")
    if not are_sizes((begin, end, *shape)):
        raise InputError(f"{path}: {name} has an impossible shape")
    tensor = Tensor(path, start + begin, _DTYPES[dtype], shape)
    if end - begin != prod(shape) * tensor.dtype.itemsize:
        raise InputError(f"{path}: {name} has {end - begin} bytes for the shape {list(shape)}")
    if start + end > size:
        raise InputError(f"{path}: truncated: {name} lies beyond the end of the file")
    return tensor
