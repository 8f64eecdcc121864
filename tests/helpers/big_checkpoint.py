"""Write a checkpoint of a large T5's shape, in bounded memory and without torch.

    python tests/helpers/big_checkpoint.py --shape t5-3b --format legacy OUTDIR

Float32, under the names of the checkpoints of 2020, in any of three formats. The values come from
one repeated block of random numbers, scaled so that the model computes something finite.
"""

import argparse
import json
import shutil
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np

from helpers import pickles

SHAPES = {
    "t5-tiny": dict(vocab_size=1024, d_model=24, d_kv=10, d_ff=40, num_layers=2, num_heads=3),
    "t5-3b": dict(
        vocab_size=32128, d_model=1024, d_kv=128, d_ff=16384, num_layers=24, num_heads=32
    ),
    "t5-11b": dict(
        vocab_size=32128, d_model=1024, d_kv=128, d_ff=65536, num_layers=24, num_heads=128
    ),
}
# What else those config.json said: no layer count of the decoder, no feed_forward_proj.
CONFIG = dict(
    architectures=["T5WithLMHeadModel"],
    decoder_start_token_id=0,
    dropout_rate=0.1,
    eos_token_id=1,
    initializer_factor=1.0,
    is_encoder_decoder=True,
    layer_norm_epsilon=1e-6,
    model_type="t5",
    n_positions=512,
    output_past=True,
    pad_token_id=0,
    relative_attention_num_buckets=32,
)
ALIASES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
MAGIC = 0x1950A86A20F9469CFC6C


def shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint, but for the embedding's aliases."""
    width, inner = config["d_model"], config["num_heads"] * config["d_kv"]
    bias = (config["relative_attention_num_buckets"], config["num_heads"])
    found = {"shared.weight": (config["vocab_size"], width)}
    for stack in ("encoder", "decoder"):
        kinds = ["SelfAttention", "EncDecAttention"][: 1 + (stack == "decoder")]
        for block in range(config["num_layers"]):
            layers = f"{stack}.block.{block}.layer"
            for i, kind in enumerate(kinds):
                for part in "qkvo":
                    shape = (width, inner) if part == "o" else (inner, width)
                    found[f"{layers}.{i}.{kind}.{part}.weight"] = shape
                if block == 0:  # in cross-attention, too, where nothing reads it
                    found[f"{layers}.{i}.{kind}.relative_attention_bias.weight"] = bias
                found[f"{layers}.{i}.layer_norm.weight"] = (width,)
            last = f"{layers}.{len(kinds)}"
            found[f"{last}.DenseReluDense.wi.weight"] = (config["d_ff"], width)
            found[f"{last}.DenseReluDense.wo.weight"] = (width, config["d_ff"])
            found[f"{last}.layer_norm.weight"] = (width,)
        found[f"{stack}.final_layer_norm.weight"] = (width,)
    return found


class Values:
    """The tensors' bytes, in chunks; None leaves a hole, which takes no space on the disk."""

    def __init__(self, sparse: bool, seed: int = 0):
        random = np.random.default_rng(seed).standard_normal(1 << 22, dtype=np.float32)
        self.block = None if sparse else random

    def __call__(self, name: str, shape: tuple[int, ...]) -> Iterator[np.ndarray | None]:
        if self.block is None:
            yield None
            return
        embedding = name == "shared.weight" or "relative_attention_bias" in name
        scale = 1 if embedding else shape[-1] ** -0.5
        block = 1 + 0.1 * self.block if len(shape) == 1 else scale * self.block
        for start in range(0, prod(shape), block.size):
            yield block[: min(block.size, prod(shape) - start)]


def _write(file: BinaryIO, chunks: Iterator[np.ndarray | None], size: int) -> None:
    for chunk in chunks:
        if chunk is None:
            file.seek(size, 1)
        else:
            file.write(chunk.data)


def _state(tensors: dict, keys: dict[str, str], transposed: bool, view: tuple) -> OrderedDict:
    state = OrderedDict()
    for name, shape in tensors.items():
        strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
        if transposed and len(shape) == 2:
            strides = (1, shape[0])
        state[name] = pickles.tensor(keys[name], prod(shape), shape, strides, view=view)
    for alias in ALIASES:
        state[alias] = state["shared.weight"]
    return state


def write_legacy(path: Path, tensors: dict, values: Values, transposed: bool = False) -> None:
    keys = {name: str(94000000000000 + 64 * i) for i, name in enumerate(tensors)}
    system = dict(protocol_version=1001, little_endian=True, type_sizes=dict(short=2, int=4))
    state = _state(tensors, keys, transposed, (None,))
    with open(path, "wb") as file:
        for part in (MAGIC, 1001, system, state, sorted(keys.values())):
            file.write(pickles.dump(part))
        for name, shape in tensors.items():
            file.write(prod(shape).to_bytes(8, "little"))
            _write(file, values(name, shape), 4 * prod(shape))
        file.truncate()


def write_zip(path: Path, tensors: dict, values: Values, transposed: bool = False) -> None:
    keys = {name: str(i) for i, name in enumerate(tensors)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        state = _state(tensors, keys, transposed, ())
        archive.writestr("archive/data.pkl", pickles.dump(state))
        for name, shape in tensors.items():
            with archive.open(f"archive/data/{keys[name]}", "w", force_zip64=True) as file:
                _write(file, values(name, shape), 4 * prod(shape))
        archive.writestr("archive/version", "3\n")


def write_safetensors(path: Path, tensors: dict, values: Values, transposed: bool = False) -> None:
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors.items():
        start, end = end, end + 4 * prod(shape)
        header[name] = dict(dtype="F32", shape=shape, data_offsets=(start, end))
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors.items():
            _write(file, values(name, shape), 4 * prod(shape))
        file.truncate()


FORMATS = {
    "legacy": ("pytorch_model.bin", write_legacy),
    "zip": ("pytorch_model.bin", write_zip),
    "safetensors": ("model.safetensors", write_safetensors),
}


def write(
    folder: Path, shape: str, kind: str, transposed: bool = False, sparse: bool = False
) -> Path:
    """Write the checkpoint of one of SHAPES in one of FORMATS, without a tokenizer."""
    if (sparse and kind == "zip") or (transposed and kind == "safetensors"):
        raise ValueError(f"a {kind} file cannot be so")
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | SHAPES[shape]
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    file, write_file = FORMATS[kind]
    write_file(folder / file, shapes(config), Values(sparse), transposed)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--format", choices=FORMATS, required=True)
    parser.add_argument("--transposed", action="store_true", help="matrices stored by columns")
    parser.add_argument("--sparse", action="store_true", help="zeros that take no disk space")
    parser.add_argument("--tokenizer", type=Path, help="a folder to take spiece.model from")
    parser.add_argument("folder", type=Path, metavar="OUTDIR")
    args = parser.parse_args()
    write(args.folder, args.shape, args.format, args.transposed, args.sparse)
    if args.tokenizer:
        shutil.copy(args.tokenizer / "spiece.model", args.folder)


if __name__ == "__main__":
    main()
