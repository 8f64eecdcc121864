"""Damaged weight files end in an InputError, or in tensors that can be read.

FUZZ_EXAMPLES sets how many are tried of each kind.
"""

import io
import os
import tempfile
import tracemalloc
import zipfile
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from helpers.torch_files import legacy, tensor, zipped
from safetensors.torch import save

from checkpoints.npz import map_npz, write_npz_member
from checkpoints.safetensors_files import read_safetensors
from checkpoints.torch_files import read_torch
from errors import InputError

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", 200))


def saved(**options) -> bytes:
    stream = io.BytesIO()
    base = torch.randn(3, 4)
    state = {"w": base, "tied": base, "rows": base[1:], "columns": base.T, "b": torch.ones(2)}
    torch.save(state, stream, **options)
    return stream.getvalue()


def npz() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in {"a.b": np.ones((2, 3), "<f4"), "c": np.zeros(3, "V2")}.items():
            write_npz_member(archive, name, array.dtype, array.shape, [array])
    return stream.getvalue()


torch.manual_seed(0)
WHOLE = tensor()
VIEWED = {"w": tensor(view=[None]), "v": tensor(view=[("1", 1, 2)], shape=(2,), strides=(1,))}
OPCODES = [bytes([code]) for code in b"(.012BCGIJKLMNQRTUX]abcdehijlopqrstu}\x80\x81\x82\x85\x86"]
OPCODES += [code + b"\xff\xff\xff\x7f" for code in (b"r", b"j", b"X", b"\x8b")]
# Reader, valid files, and pieces that damage may bring in.
KINDS = {
    "safetensors": (
        read_safetensors,
        [
            save({"w": torch.randn(3, 4), "b": torch.ones(2).bfloat16()}, {"format": "pt"}),
            save({"scalar": torch.tensor(1.0), "empty": torch.ones(0, 3)}),
        ],
        [b'"F32"', b"[]", b"{}", b"null", b"-1", b"1e9", b"[" * 99, b"9" * 30, b'"\\ud800"', b"\0"],
    ),
    "zip": (
        read_torch,
        [saved(), zipped({"w": WHOLE}), zipped({"w": tensor(kind="BFloat16Storage")}, bytes(8))],
        [b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"\xff" * 4, b"\xff" * 8, *OPCODES],
    ),
    "legacy": (
        read_torch,
        [saved(_use_new_zipfile_serialization=False), legacy(VIEWED)],
        [b"\xff" * 8, (2**62).to_bytes(8, "little"), *OPCODES],
    ),
    "npz": (
        map_npz,
        [npz()],
        [b"PK\1\2", b"\xff" * 4, b"'<f8'", b"'|O'", b"'<U9'", b"True", b"(-1,)", b"9" * 30, b"["],
    ),
}


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


def read_all(found: dict) -> int:
    """Read every tensor; the elements in all."""
    total = 0
    for value in found.values():
        blocks = [value] if isinstance(value, np.ndarray) else value.blocks()
        sizes = [np.array(block).size for block in blocks]
        assert sum(sizes) == np.prod(value.shape)
        total += sum(sizes)
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_errors_or_readable(tmp_path, kind):
    read, files, pieces = KINDS[kind]
    random = Random(kind)
    contents = [damaged(random, files, pieces) for _ in range(EXAMPLES)]
    tracemalloc.start()
    try:
        for i, content in enumerate([*files, *contents]):
            with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
                path = Path(folder, "file")
                path.write_bytes(content)
                try:
                    assert read_all(read(path)) >= (i < len(files))
                except InputError as error:
                    assert i >= len(files) and str(error).isprintable()
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
