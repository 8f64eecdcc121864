"""A checkpoint with tensors as large as t5-11b's, made of holes: they take no space on the disk."""

import json
from pathlib import Path

import torch
import transformers

from helpers import checkpoints

CONFIG = checkpoints.VARIANTS["t5"] | dict(
    vocab_size=32128, d_model=1024, d_kv=128, d_ff=65536, num_layers=1, num_heads=8
)


def write(folder: Path) -> Path:
    """Write a checkpoint of 1 GB in float32."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**CONFIG))
    header, end = {}, 0
    for name, weight in checkpoints.state_dict(model, CONFIG).items():
        size = 4 * weight.numel()
        header[name] = dict(dtype="F32", shape=tuple(weight.shape), data_offsets=(end, end + size))
        end += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder
