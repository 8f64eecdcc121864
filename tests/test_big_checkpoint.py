"""The checkpoints that large conversions are measured with are what torch would have written."""

import pytest
import torch
from helpers import big_checkpoint
from safetensors.torch import load_file
from test_torch_files import payload, whole
from transformers import T5Config, T5ForConditionalGeneration

from checkpoints.folder import open_checkpoint


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", ["legacy", "zip", "safetensors"])
def test_torch_reads_the_same_from_big_checkpoints(tmp_path, kind, transposed):
    if kind == "safetensors" and transposed:
        pytest.skip("safetensors are never transposed")
    big_checkpoint.write(tmp_path, "t5-tiny", kind, transposed)
    read = load_file if kind == "safetensors" else torch.load
    state = read(next(p for p in tmp_path.iterdir() if p.suffix != ".json"))
    found = open_checkpoint(tmp_path)
    assert found.keys() == state.keys()
    for name, weight in state.items():
        assert whole(found[name]) == payload(weight), name
        assert weight.isfinite().all() and weight.std() > 0.05
        assert weight.is_contiguous() != (transposed and weight.dim() == 2)
    raw = big_checkpoint.CONFIG | big_checkpoint.SHAPES["t5-tiny"]
    model = T5ForConditionalGeneration(T5Config(**raw))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight", *big_checkpoint.ALIASES}
    assert unexpected == ["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"]


@pytest.mark.parametrize("kind", ["legacy", "safetensors"])
def test_holes_read_as_zeros(tmp_path, kind):
    dense = big_checkpoint.write(tmp_path / "dense", "t5-tiny", kind)
    sparse = big_checkpoint.write(tmp_path / "sparse", "t5-tiny", kind, sparse=True)
    dense, sparse = open_checkpoint(dense), open_checkpoint(sparse)
    assert {n: (t.offset, t.shape) for n, t in dense.items()} == {
        n: (t.offset, t.shape) for n, t in sparse.items()
    }
    assert not any(any(whole(tensor)) for tensor in sparse.values())
