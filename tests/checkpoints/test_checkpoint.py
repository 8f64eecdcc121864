"""Reading safetensors, writing and mapping npz: the formats, and every way a file can be wrong."""

import json
import zipfile

import mlx.core as mx
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from speculative.checkpoints.folder import open_checkpoint
from speculative.checkpoints.tensors import (
    BFLOAT16,
    map_npz,
    read_safetensors,
    to_mlx,
    to_numpy,
    write_npz_member,
)
from speculative.common.errors import InputError


def whole(tensor) -> np.ndarray:
    return np.concatenate(list(tensor.blocks()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_safetensors_are_read_exactly(tmp_path, dtype):
    weights = {"a": torch.randn(7, 5).to(dtype), "b.c": torch.randn(3).to(dtype)}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    tensors = open_checkpoint(tmp_path)
    assert tensors.keys() == weights.keys()
    for name, weight in weights.items():
        array = whole(tensors[name])
        assert array.shape == tensors[name].shape == tuple(weight.shape)
        assert array.tobytes() == weight.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_npz_round_trip(tmp_path, dtype):
    """Ours is what MLX reads, and what we map is what was written."""
    arrays = {"a.b": mx.random.normal((6, 4)).astype(dtype), "c": mx.arange(3).astype(dtype)}
    path = tmp_path / "w.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            data = to_numpy(array)
            blocks = [data[:1], data[1:]]
            write_npz_member(archive, name, data.dtype, data.shape, blocks)
    mapped, loaded = map_npz(path), mx.load(str(path))
    assert mapped.keys() == loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded[name].dtype == to_mlx(mapped[name]).dtype == dtype
        assert mx.array_equal(loaded[name], array)
        assert mx.array_equal(to_mlx(mapped[name]), array)
    assert mapped["c"].dtype == (BFLOAT16 if dtype == mx.bfloat16 else mapped["c"].dtype)


INDEX = "model.safetensors.index.json"


def safetensors_bytes(header, data: bytes = bytes(16)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2, 2), offsets=(0, 16)) -> dict:
    return {"w": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated, or not a safetensors file"),
        ((10**9).to_bytes(8, "little") + b"{}", "truncated, or not a safetensors file"),
        (safetensors_bytes(b"{]"), "its header is damaged"),
        (safetensors_bytes({"w": {"dtype": "F32"}}), "its header is damaged"),
        (safetensors_bytes(entry(offsets=(-16, 0))), "its header is damaged"),
        (safetensors_bytes(entry(dtype="I8", offsets=(0, 4))), "safetensors: w is I8, not float"),
        (safetensors_bytes(entry(dtype="F8_E4M3", offsets=(0, 4))), "tensors: w is F8_E4M3, not"),
        (safetensors_bytes(entry(shape=(2, 3))), "its header is damaged"),
        (safetensors_bytes(entry(), bytes(15)), "its header is damaged"),
    ],
)
def test_wrong_safetensors_are_named(tmp_path, content, message):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (INDEX, "{", "not JSON"),
        (INDEX, "[]", "not a JSON object"),
        (INDEX, "{}", "no weight_map"),
        (INDEX, '{"weight_map": {"w": "../1.safetensors"}}', "no weights: "),
        ("tf_model.h5", "", "no weights: "),
    ],
)
def test_folders_without_whole_weights_are_named(tmp_path, file, content, message):
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=message):
        open_checkpoint(tmp_path)


def npz_bytes(path, compression=zipfile.ZIP_STORED, member=b"") -> bytes:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("w.npy", member)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: npz_bytes(path)[:-40], "not a zip file"),
        (lambda path: npz_bytes(path, zipfile.ZIP_DEFLATED), "is compressed"),
        (lambda path: npz_bytes(path, member=b"no npy"), "magic string"),
    ],
)
def test_wrong_npz_files_are_named(tmp_path, make, message):
    path = tmp_path / "weights.npz"
    path.write_bytes(make(path))
    with pytest.raises(InputError, match=message) as caught:
        map_npz(path)
    assert str(path) in str(caught.value)
