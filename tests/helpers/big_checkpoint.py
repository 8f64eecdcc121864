"""Checkpoints with tensors as large as t5-11b's, made of holes: they take no space on the disk."""

import json
from collections import OrderedDict
from math import prod
from pathlib import Path

import torch
import transformers

from helpers import checkpoints
from helpers.torch_files import MAGIC, dump, tensor

CONFIG = checkpoints.VARIANTS["t5"] | dict(
    vocab_size=32128, d_model=1024, d_kv=128, d_ff=65536, num_layers=1, num_heads=128
)


def write(folder: Path, kind: str) -> Path:
    """Write a checkpoint of 2 GB in float32: "safetensors" or, in torch's older format, "legacy"."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**CONFIG))
    state = checkpoints.state_dict(model, CONFIG)
    tensors = {name: tuple(weight.shape) for name, weight in state.items()}
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
        (name, tensor(prod(s), s, (*s[1:], 1), name, view=(None,))) for name, s in tensors.items()
    )
    system = dict(little_endian=True)
    with open(folder / "pytorch_model.bin", "wb") as file:
        for part in (MAGIC, 1001, system, state, list(tensors)):
            file.write(dump(part))
        for shape in tensors.values():
            file.write(prod(shape).to_bytes(8, "little"))
            file.seek(4 * prod(shape), 1)
        file.truncate()
    return folder
