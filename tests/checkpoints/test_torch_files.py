"""Torch's two formats: what torch wrote is read exactly, and every way a file can be wrong."""

import os
import zipfile
from collections import OrderedDict

import pytest
import torch
from helpers import checkpoints
from helpers.torch_files import DATA, Call, Global, legacy, payload, tensor, whole, zipped

from speculative.checkpoints import tensors
from speculative.checkpoints.tensors import read_torch
from speculative.common.errors import InputError

KINDS = ["zip", "legacy"]


def save(state, path, kind) -> None:
    checkpoints.FORMATS[kind][0](state, path)


def check(state, path) -> None:
    tensors = read_torch(path)
    assert tensors.keys() == state.keys()
    for name, weight in state.items():
        assert tensors[name].shape == tuple(weight.shape), name
        assert whole(tensors[name]) == payload(weight), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_what_torch_saved_is_read_exactly(tmp_path, kind, dtype):
    base = torch.randn(7, 5, 3).to(dtype)
    state = {
        "plain": torch.randn(7, 5).to(dtype),
        "vector": torch.randn(3).to(dtype),
        "scalar": torch.tensor(2.5).to(dtype),
        "empty": torch.empty(0, 4, dtype=dtype),
        "parameter": torch.nn.Parameter(torch.randn(2, 2).to(dtype)),
        "tied": base,
        "tied.too": base,
        "flat": base.view(-1),
        "rows": base[2:5],
        "column": base[:, 1],
        "transposed": base.permute(2, 0, 1),
        "transposed, wide": torch.randn(40, 3).to(dtype).T,
        "every other": base.view(-1)[1::2],
        "of size one": base[:, :1, 2:],
    }
    save(state, tmp_path / "m.bin", kind)
    check(state, tmp_path / "m.bin")
    tensors = read_torch(tmp_path / "m.bin")
    assert tensors["tied"] == tensors["tied.too"]
    assert tensors["rows"].strides == (15, 3, 1) and tensors["transposed"].strides == (1, 15, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_state_dicts_of_modules_are_read(tmp_path, kind):
    """An OrderedDict that has its modules' versions as an attribute."""
    state = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4)).state_dict()
    assert isinstance(state, OrderedDict) and state._metadata
    save(state, tmp_path / "m.bin", kind)
    check(state, tmp_path / "m.bin")
    save({"state_dict": state, "epoch": 3, "lr": 0.1}, tmp_path / "nested.bin", kind)
    check(state, tmp_path / "nested.bin")


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_bound_what_is_read_at_once(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(tensors, "BLOCK_BYTES", 100)
    state = {"w": torch.randn(11, 9), "t": torch.randn(9, 11).T}
    save(state, tmp_path / "m.bin", kind)
    for found in read_torch(tmp_path / "m.bin").values():
        assert [len(block) for block in found.blocks()] == [2, 2, 2, 2, 2, 1]
        assert all(block.base is None or block.nbytes <= 100 for block in found.blocks())
    check(state, tmp_path / "m.bin")


# ---------------------------------------------------------------------------------------------
# Files made by hand


EVIL = Global(f"{os.system.__module__} system")

MALFORMED = "truncated, or not a torch state dict"

# What the pickle says, and the error, in both formats.
WRONG_PICKLES = {
    "code": (Call((EVIL, ("echo pwned",))), "the pickle asks for posix.system$"),
    "wrong arguments": (Call((Global("torch._utils _rebuild_tensor_v2"), (1, 2))), MALFORMED),
    "a list": ([tensor()], MALFORMED),
    "no tensor": ({"w": tensor(), "step": 3}, "step is not a tensor but int"),
    "integers": ({"w": tensor(kind="IntStorage")}, "bin: it has torch.IntStorage, not floating"),
    "too many elements": ({"w": tensor(shape=(2, 3), strides=(3, 1))}, MALFORMED),
    "large strides": ({"w": tensor(strides=(4, 1))}, MALFORMED),
    "an expanded tensor": ({"w": tensor(shape=(9**9, 9), strides=(0, 0))}, MALFORMED),
    "an absurd shape": ({"w": tensor(shape=(2**62, 2))}, MALFORMED),
    "shapes that differ": ({"w": tensor(strides=(2, 1, 1))}, MALFORMED),
    "another size": ({"w": tensor(numel=5)}, MALFORMED),
    "a missing storage": ({"w": tensor(key="../1")}, MALFORMED),
    "nothing": (b"", MALFORMED),
}


@pytest.mark.parametrize("make", [zipped, legacy])
@pytest.mark.parametrize("case", WRONG_PICKLES)
def test_wrong_pickles_are_named(tmp_path, case, make):
    state, message = WRONG_PICKLES[case]
    assert_wrong(tmp_path / "pytorch_model.bin", make(state), message)


GOOD = {"w": tensor()}
WRONG_FILES = {
    "empty": (b"", MALFORMED),
    "another zip file": (zipped(GOOD, **{"data.pkl": None}), MALFORMED),
    "deflated": (zipped(GOOD, compression=zipfile.ZIP_DEFLATED), "compressed"),
    "a smaller size": (zipped(GOOD, data=DATA[:12]), MALFORMED),
    "zip, missing storage": (zipped(GOOD, storages=()), MALFORMED),
    "legacy, another count": (legacy(GOOD, numel=3), MALFORMED),
    "legacy, too short": (legacy(GOOD, data=DATA[:-1]), MALFORMED),
    "another pickle": (legacy(GOOD, magic=7), MALFORMED),
    "a zip file cut": (zipped(GOOD)[:-9], MALFORMED),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_wrong_torch_files_are_named(tmp_path, case):
    content, message = WRONG_FILES[case]
    assert_wrong(tmp_path / "pytorch_model.bin", content, message)


def assert_wrong(path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_torch(path)
    text = str(caught.value)
    assert str(path) in text and "\n" not in text and len(text) < 300
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [zipped(GOOD), legacy({"w": tensor(view=[None])})], ids=KINDS)
def test_files_made_by_hand_are_right_but_for_what_is_wrong(tmp_path, content):
    (tmp_path / "m.bin").write_bytes(content)
    assert whole(read_torch(tmp_path / "m.bin")["w"]) == DATA
    assert torch.load(tmp_path / "m.bin")["w"].tolist() == [[0, 1], [2, 3]]


def test_views_of_legacy_storages_are_read(tmp_path):
    view = tensor(view=[("9", 1, 2)], shape=(2,), strides=(1,))
    (tmp_path / "m.bin").write_bytes(legacy({"w": view}))
    assert whole(read_torch(tmp_path / "m.bin")["w"]) == DATA[4:12]
