"""Checkpoints with tensors as large as t5-11b's, made of holes: they take no space on the disk."""

import json
from collections import OrderedDict
from math import prod
from pathlib import Path

from helpers import pickles
from helpers.torch_files import MAGIC

CONFIG = dict(
    model_type="t5",
    vocab_size=32128,
    d_model=1024,
    d_kv=128,
    d_ff=65536,
    num_layers=1,
    num_heads=128,
    pad_token_id=0,
    eos_token_id=1,
    decoder_start_token_id=0,
    relative_attention_num_buckets=32,
)


def shapes() -> dict[str, tuple[int, ...]]:
    width, inner, hidden = CONFIG["d_model"], CONFIG["num_heads"] * CONFIG["d_kv"], CONFIG["d_ff"]
    found = {"shared.weight": (CONFIG["vocab_size"], width)}
    for stack, kinds in (
        ("encoder", ["SelfAttention"]),
        ("decoder", ["SelfAttention", "EncDecAttention"]),
    ):
        layers = f"{stack}.block.0.layer"
        for i, kind in enumerate(kinds):
            for part in "qkvo":
                shape = (width, inner) if part == "o" else (inner, width)
                found[f"{layers}.{i}.{kind}.{part}.weight"] = shape
            found[f"{layers}.{i}.layer_norm.weight"] = (width,)
        bias = (CONFIG["relative_attention_num_buckets"], CONFIG["num_heads"])
        found[f"{layers}.0.SelfAttention.relative_attention_bias.weight"] = bias
        found[f"{layers}.{len(kinds)}.DenseReluDense.wi.weight"] = (hidden, width)
        found[f"{layers}.{len(kinds)}.DenseReluDense.wo.weight"] = (width, hidden)
        found[f"{layers}.{len(kinds)}.layer_norm.weight"] = (width,)
        found[f"{stack}.final_layer_norm.weight"] = (width,)
    return found


def write(folder: Path, kind: str) -> Path:
    """Write a checkpoint of 2 GB in float32: "safetensors" or, in torch's older format, "legacy"."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = shapes()
    if kind == "safetensors":
        header, end = {}, 0
        for name, shape in tensors.items():
            header[name] = dict(dtype="F32", shape=shape, data_offsets=(end, end + 4 * prod(shape)))
            end += 4 * prod(shape)
        text = json.dumps(header).encode()
        with open(folder / "model.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
        return folder
    state = OrderedDict(
        (name, pickles.tensor(name, prod(s), s, (*s[1:], 1), view=(None,)))
        for name, s in tensors.items()
    )
    system = dict(little_endian=True)
    with open(folder / "pytorch_model.bin", "wb") as file:
        for part in (MAGIC, 1001, system, state, list(tensors)):
            file.write(pickles.dump(part))
        for shape in tensors.values():
            file.write(prod(shape).to_bytes(8, "little"))
            file.seek(4 * prod(shape), 1)
        file.truncate()
    return folder
