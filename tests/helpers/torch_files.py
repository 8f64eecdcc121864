"""Files of torch's in both formats, right and wrong ones, made without torch; and tensors' bytes."""

import io
import struct
import zipfile

import numpy as np
import torch

from helpers import pickles
from helpers.pickles import Call, dump


def whole(tensor) -> bytes:
    return b"".join(block.tobytes() for block in tensor.blocks())


def payload(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def tensor(numel=4, shape=(2, 2), strides=(2, 1), key="0", **other) -> Call:
    return pickles.tensor(key, numel, shape, strides, **other)


DATA = np.arange(4, dtype="<f4").tobytes()
MAGIC = 0x1950A86A20F9469CFC6C


def zipped(state, data=DATA, storages=("0",), compression=zipfile.ZIP_STORED, **extra) -> bytes:
    """A zip file of torch's; `extra` replaces or adds members, None removes one."""
    members = {"data.pkl": dump(state), "byteorder": b"little", "version": b"3\n"}
    members |= {f"data/{key}": data for key in storages} | extra
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members.items():
            if content is not None:
                archive.writestr(f"m/{name}", content)
    return stream.getvalue()


def legacy(state, data=DATA, keys=("0",), numel=4, magic=MAGIC) -> bytes:
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}
    pickles = [magic, 1001, system, state, list(keys)]
    storages = b"".join(struct.pack("<q", numel) + data for _ in keys)
    return b"".join(map(dump, pickles)) + storages
