"""Safetensors files (https://github.com/huggingface/safetensors#format); the package needs torch for bfloat16."""

import json
from math import prod
from pathlib import Path

import numpy as np

from checkpoints.tensors import BFLOAT16, QUANTIZED, Tensor, are_sizes
from common.errors import InputError

_DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I64": np.dtype("<i8"),  # never weights
}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file: 8 bytes of header length, a JSON header, the data."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise InputError(f"{path}: truncated, or not a safetensors file")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            return {n: _safetensor(path, n, entry, 8 + length, size) for n, entry in header.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            fault = "" if isinstance(error, InputError) else "truncated, or its header is damaged: "
            raise InputError(f"{path}: {fault}{error}") from None


def _safetensor(path: Path, name: str, entry: dict, start: int, size: int) -> Tensor:
    dtype = entry["dtype"]
    if dtype not in _DTYPES:
        raise InputError(f"{name} is {dtype}, {QUANTIZED}")
    begin, end = entry["data_offsets"]
    tensor = Tensor(path, start + begin, _DTYPES[dtype], tuple(entry["shape"]))
    fits = are_sizes((begin, end, *tensor.shape)) and start + end <= size
    if not fits or end - begin != prod(tensor.shape) * tensor.dtype.itemsize:
        raise ValueError(f"{name} does not have as many bytes as its shape needs")
    return tensor
