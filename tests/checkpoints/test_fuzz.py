"""Damaged weight files end in an InputError, or in tensors that can be read.

FUZZ_EXAMPLES sets how many are tried.
"""

import os
import tracemalloc
from random import Random

import numpy as np
import pytest
import torch
from safetensors.torch import save

from speculative.checkpoints.tensors import read_safetensors
from speculative.common.errors import InputError

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", 200))


torch.manual_seed(0)
FILES = [
    save({"w": torch.randn(3, 4), "b": torch.ones(2).bfloat16()}, {"format": "pt"}),
    save({"scalar": torch.tensor(1.0), "empty": torch.ones(0, 3)}),
]
# What damage may bring in.
PIECES = [b'"F32"', b"[]", b"{}", b"null", b"-1", b"1e9", b"[" * 99, b"9" * 30, b'"\\ud800"', b"\0"]


def damaged(random: Random, files: list[bytes], pieces: list[bytes]) -> bytes:
    """A valid file after one to six changes: bytes replaced, removed, repeated or brought in."""
    content = random.choice(files)
    for _ in range(random.randint(1, 6)):
        at, size = random.randint(0, len(content)), random.randint(0, 40)
        piece = random.choice([random.randbytes(random.randint(1, 9)), *pieces])
        repeated = content[at : at + size] * random.randint(2, 20)
        new = random.choice([b"", piece, piece, repeated, random.choice(files)[at:]])
        end = random.choice([at, at + size, at + len(new), len(content)])
        content = content[:at] + new + content[end:]
    return content


def read_all(tensors: dict) -> int:
    """Read every tensor; the elements in all."""
    total = 0
    for value in tensors.values():
        sizes = [np.array(block).size for block in value.blocks()]
        assert sum(sizes) == np.prod(value.shape)
        total += sum(sizes)
    return total


def test_damaged_files_are_errors_or_readable(tmp_path):
    """Only safetensors: what the readers of other formats raise is caught whole."""
    random, path = Random("safetensors"), tmp_path / "file"
    contents = [damaged(random, FILES, PIECES) for _ in range(EXAMPLES)]
    tracemalloc.start()
    try:
        for i, content in enumerate([*FILES, *contents]):
            path.write_bytes(content)
            try:
                assert read_all(read_safetensors(path)) >= (i < len(FILES))
            except InputError as error:
                assert i >= len(FILES) and str(error).isprintable()
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
